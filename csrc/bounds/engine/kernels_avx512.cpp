// The loops of crown_leaves.h and bound_leaves.h for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/engine/kernels.h"
#include "bounds/engine/network.h"
#include "bounds/engine/relaxation_kernels.h"
#include "simd/vec_avx512.h"

#include "bounds/engine/kernels.inl"
#include "bounds/engine/relaxation_kernels.inl"

namespace pyrobust::cpu {

const CrownLeaves<float> kCrownFloatAvx512 = kCrown<float>;
const CrownLeaves<double> kCrownDoubleAvx512 = kCrown<double>;
const LineLeaves<float> kLinesFloatAvx512 = kLines<float>;
const LineLeaves<double> kLinesDoubleAvx512 = kLines<double>;

}  // namespace pyrobust::cpu
#endif

// The loops of crown_leaves.h and bound_leaves.h for AVX2.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/engine/kernels.h"
#include "bounds/engine/network.h"
#include "bounds/engine/relaxation_kernels.h"
#include "simd/vec_avx2.h"

#include "bounds/engine/kernels.inl"
#include "bounds/engine/relaxation_kernels.inl"

namespace pyrobust::cpu {

const CrownLeaves<float> kCrownFloatAvx2 = kCrown<float>;
const CrownLeaves<double> kCrownDoubleAvx2 = kCrown<double>;
const LineLeaves<float> kLinesFloatAvx2 = kLines<float>;
const LineLeaves<double> kLinesDoubleAvx2 = kLines<double>;

}  // namespace pyrobust::cpu
#endif

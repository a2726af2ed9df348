// The loops of norm_balls for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "projections/cpu/norm_balls_kernels.h"
#include "simd/vec_avx512.h"

#include "projections/cpu/norm_balls_kernels.inl"

namespace pyrobust::cpu {

const NormLeaves<float> kNormFloatAvx512 = kLeaves<float>;
const NormLeaves<double> kNormDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

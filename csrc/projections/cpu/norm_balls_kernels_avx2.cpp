// The loops of norm_balls for AVX2.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "projections/cpu/norm_balls_kernels.h"
#include "simd/vec_avx2.h"

#include "projections/cpu/norm_balls_kernels.inl"

namespace pyrobust::cpu {

const NormLeaves<float> kNormFloatAvx2 = kLeaves<float>;
const NormLeaves<double> kNormDoubleAvx2 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

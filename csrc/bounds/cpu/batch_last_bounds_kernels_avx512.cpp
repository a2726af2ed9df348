// The loops of lane_bounds for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/batch_last_bounds_kernels.h"
#include "simd/vec_avx512.h"

#include "bounds/cpu/batch_last_bounds_kernels.inl"

namespace pyrobust::cpu {

const BoundLeaves<float> kBoundFloatAvx512 = kLeaves<float>;
const BoundLeaves<double> kBoundDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

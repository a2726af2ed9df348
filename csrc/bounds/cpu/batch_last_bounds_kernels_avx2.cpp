// The loops of lane_bounds for AVX2.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/batch_last_bounds_kernels.h"
#include "simd/vec_avx2.h"

#include "bounds/cpu/batch_last_bounds_kernels.inl"

namespace pyrobust::cpu {

const BoundLeaves<float> kBoundFloatAvx2 = kLeaves<float>;
const BoundLeaves<double> kBoundDoubleAvx2 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

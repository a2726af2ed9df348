// The loops of lane_bounds for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/lane_bounds_leaves.h"
#include "cpu/lanes_avx512.h"

#include "cpu/lane_bounds.inl"

namespace pyrobust::cpu {

const BoundLeaves<float> kBoundFloatAvx512 = kLeaves<float>;
const BoundLeaves<double> kBoundDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

// The loops of lane_bounds in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/batch_last_bounds_kernels.h"
#include "simd/vec_scalar.h"

#include "bounds/cpu/batch_last_bounds_kernels.inl"

namespace pyrobust::cpu {

const BoundLeaves<float> kBoundFloatScalar = kLeaves<float>;
const BoundLeaves<double> kBoundDoubleScalar = kLeaves<double>;

}  // namespace pyrobust::cpu

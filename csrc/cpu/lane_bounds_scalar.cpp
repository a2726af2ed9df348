// The loops of lane_bounds in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/lane_bounds_leaves.h"
#include "cpu/lanes_scalar.h"

#include "cpu/lane_bounds.inl"

namespace pyrobust::cpu {

const BoundLeaves<float> kBoundFloatScalar = kLeaves<float>;
const BoundLeaves<double> kBoundDoubleScalar = kLeaves<double>;

}  // namespace pyrobust::cpu

// The loops of crown_leaves.h in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/bound_network.h"
#include "cpu/crown_leaves.h"
#include "cpu/lanes_scalar.h"

#include "cpu/crown.inl"

namespace pyrobust::cpu {

const CrownLeaves<float> kCrownFloatScalar = kCrown<float>;
const CrownLeaves<double> kCrownDoubleScalar = kCrown<double>;

}  // namespace pyrobust::cpu

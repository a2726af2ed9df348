// The loops of crown_leaves.h and bound_leaves.h in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/bound_leaves.h"
#include "cpu/bound_network.h"
#include "cpu/crown_leaves.h"
#include "cpu/lanes_scalar.h"

#include "cpu/bound_lines.inl"
#include "cpu/crown.inl"

namespace pyrobust::cpu {

const CrownLeaves<float> kCrownFloatScalar = kCrown<float>;
const CrownLeaves<double> kCrownDoubleScalar = kCrown<double>;
const LineLeaves<float> kLinesFloatScalar = kLines<float>;
const LineLeaves<double> kLinesDoubleScalar = kLines<double>;

}  // namespace pyrobust::cpu

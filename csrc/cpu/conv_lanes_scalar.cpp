// The loops of conv_lanes in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/conv_lanes_leaves.h"
#include "cpu/lanes_scalar.h"

namespace pyrobust::cpu {
namespace {
constexpr int kSums = 4;
}  // namespace
}  // namespace pyrobust::cpu

#include "cpu/conv_lanes.inl"

namespace pyrobust::cpu {

const ConvLeaves<float> kConvFloatScalar = kLeaves<float>;
const ConvLeaves<double> kConvDoubleScalar = kLeaves<double>;

}  // namespace pyrobust::cpu

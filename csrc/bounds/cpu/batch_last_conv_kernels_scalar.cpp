// The loops of conv_lanes in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/batch_last_conv_kernels.h"
#include "simd/vec_scalar.h"

namespace pyrobust::cpu {
namespace {
constexpr int kSums = 4;
}  // namespace
}  // namespace pyrobust::cpu

#include "bounds/cpu/batch_last_conv_kernels.inl"

namespace pyrobust::cpu {

const ConvLeaves<float> kConvFloatScalar = kLeaves<float>;
const ConvLeaves<double> kConvDoubleScalar = kLeaves<double>;

}  // namespace pyrobust::cpu

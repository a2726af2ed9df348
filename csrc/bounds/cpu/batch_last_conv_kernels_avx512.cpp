// The loops of conv_lanes for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/batch_last_conv_kernels.h"
#include "simd/vec_avx512.h"

namespace pyrobust::cpu {
namespace {
constexpr int kSums = 24;
}  // namespace
}  // namespace pyrobust::cpu

#include "bounds/cpu/batch_last_conv_kernels.inl"

namespace pyrobust::cpu {

const ConvLeaves<float> kConvFloatAvx512 = kLeaves<float>;
const ConvLeaves<double> kConvDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

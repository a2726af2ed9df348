// What the scalar noise kernels use in place of vectors.
#pragma once

#include <cstdint>

#include "common/half.h"

namespace pyrobust::cpu::scalar {
namespace {

constexpr bool kFastFused = false;  // a fused multiply-add may be a call

inline void narrow(const float* y, Half* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_half(y[i]);
}

}  // namespace
}  // namespace pyrobust::cpu::scalar

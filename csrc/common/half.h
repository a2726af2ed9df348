// 16-bit floats as their bits, and the nearest one to a float32, ties to even.
#pragma once

#include <cstdint>

#include "common/bits.h"
#include "common/host_device.h"

namespace pyrobust {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// On a GPU one instruction rounds; NaN, for which it chooses other bits, is handled before.
PYROBUST_HD BFloat16 to_bfloat16(float value) {
#ifdef __CUDA_ARCH__
  uint16_t nearest;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(nearest) : "f"(value));
  return {value == value ? nearest : static_cast<uint16_t>(0x7fc0u)};
#else
  const uint32_t u = bits<uint32_t>(value);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
#endif
}

PYROBUST_HD Half to_half(float value) {
  const uint32_t u = bits<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
#ifdef __CUDA_ARCH__
  uint16_t nearest;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(nearest) : "f"(value));
  return {value == value ? nearest : static_cast<uint16_t>(sign | 0x7e00u)};
#else
  const uint32_t magnitude = u & 0x7fffffffu;
  uint32_t h;
  if (magnitude > 0x7f800000u) {
    h = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {
    h = 0x7c00u;  // 65520 and more round to infinity
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 halves are the multiples of 2^-24; adding 1/2 leaves that multiple, rounded, in the low bits.
    h = bits<uint32_t>(bits<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    h = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return {static_cast<uint16_t>(sign | h)};
#endif
}

PYROBUST_HD float to_float(BFloat16 value) { return bits<float>(static_cast<uint32_t>(value.bits) << 16); }

PYROBUST_HD float to_float(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Half subnormals are normal floats: scaling by 2^112 re-biases every exponent exactly.
  return bits<float>(sign | bits<uint32_t>(bits<float>(magnitude << 13) * 5.19229686e+33f));
}

PYROBUST_HD float to_float(float value) { return value; }
PYROBUST_HD double to_float(double value) { return value; }

}  // namespace pyrobust

// The noise contract: which random words an element of a noisy image gets, and how words become noise of unit standard
// deviation. Host, device and every SIMD kernel compute exactly these float32 operations (fused multiply-adds where
// written, no others, round to nearest), so that one seed gives one set of bits everywhere.
//
//   key     = the 64-bit seed, or the 64-bit hash of seed and image if a run has its own key
//   counter = (element / 4, sample index, image index, domain), 32 bits each
//   element = index in the image's contiguous order
//   domain  = stage << 8 | family
#pragma once

#include <cstdint>

#include "common/bits.h"
#include "common/host_device.h"
#include "smoothing/philox.h"

namespace pyrobust {

enum class Family : uint32_t { kGaussian = 0, kUniform = 1, kLaplace = 2 };
inline constexpr uint32_t kFamilies = 3;

PYROBUST_HD constexpr Family family_of(uint32_t domain) { return static_cast<Family>(domain & 0xffu); }

// Which image and samples a stretch of the packed batch holds.
struct NoiseRun {
  int64_t row;     // row of x
  uint64_t key;    // Philox key
  uint32_t image;  // image index of the noise contract
  uint32_t first;  // first sample index
  int64_t begin;   // first position in the batch; the run ends where the next begins
};

// What all elements of one run share.
struct NoiseKey {
  uint64_t philox;
  uint32_t domain;
};

// The layout of one batch: rows of `channels` planes of `plane` elements, stored plane by plane or channels innermost.
struct NoiseShape {
  int64_t samples;
  int64_t channels;
  int64_t plane;
  bool channels_last;
};

namespace noise {

// -2 ln(1+t)/t on [sqrt(1/2)-1, sqrt(2)-1]: minimax in relative error, 2.6e-8 before rounding.
inline constexpr float kLog0 = -2.0f, kLog1 = 0.999999762f, kLog2 = -0.666683733f, kLog3 = 0.500041485f,
                       kLog4 = -0.399136662f, kLog5 = 0.331247807f, kLog6 = -0.299045414f, kLog7 = 0.287337214f,
                       kLog8 = -0.174447373f;
// sin(pi x/4)/x and cos(pi x/4) in x^2 on [0, 1]: minimax, 2.4e-9 and 2.8e-8 before rounding.
inline constexpr float kSin0 = 0.785398185f, kSin1 = -0.0807454363f, kSin2 = 0.00249000709f, kSin3 = -3.59545083e-05f;
inline constexpr float kCos0 = 1.0f, kCos1 = -0.308424264f, kCos2 = 0.0158499144f, kCos3 = -0.000318880513f;
inline constexpr float kTwoLn2 = 1.38629436f;
inline constexpr uint32_t kSqrtHalfBits = 0x3f3504f3u;
inline constexpr float kTwoToMinus31 = 4.65661287e-10f;
inline constexpr float kUniformScale = 8.06548994e-10f;   // sqrt(3) 2^-31
inline constexpr float kUniformOffset = 4.03274497e-10f;  // sqrt(3) 2^-32
inline constexpr float kLaplaceScale = 0.353553385f;      // sqrt(1/8)

PYROBUST_HD float fma32(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

PYROBUST_HD float sqrt32(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

// -2 ln((w + 1/2) / 2^31) >= 0 for a word of 31 bits. Adding 1/2 keeps the result finite at w = 0; conversion to float
// keeps the tail's resolution.
PYROBUST_HD float minus_two_log(uint32_t w) {
  const float v = static_cast<float>(static_cast<int32_t>(w)) + 0.5f;
  const uint32_t shifted = bits<uint32_t>(v) - kSqrtHalfBits;
  const float m = bits<float>((shifted & 0x007fffffu) + kSqrtHalfBits);  // v = m 2^e, m in [sqrt(1/2), sqrt(2))
  const float c = static_cast<float>(31 - (static_cast<int32_t>(shifted) >> 23)) * kTwoLn2;
  const float t = m - 1.0f;
  float p = fma32(kLog8, t, kLog7);
  p = fma32(p, t, kLog6);
  p = fma32(p, t, kLog5);
  p = fma32(p, t, kLog4);
  p = fma32(p, t, kLog3);
  p = fma32(p, t, kLog2);
  p = fma32(p, t, kLog1);
  p = fma32(p, t, kLog0);
  return fma32(t, p, c);
}

// Box and Muller (1958): the radius from the upper 31 bits of one word, the direction from the other. Bit 31 turns by
// pi, bit 30 by pi/2, the low 30 bits within [-pi/4, pi/4).
PYROBUST_HD void gaussian_pair(uint32_t radius_word, uint32_t angle_word, float& z0, float& z1) {
  const float r = bits<float>(bits<uint32_t>(sqrt32(minus_two_log(radius_word >> 1))) | (angle_word & 0x80000000u));
  const float x = static_cast<float>(static_cast<int32_t>(angle_word << 2)) * kTwoToMinus31;
  const float q = x * x;
  const float s = fma32(fma32(fma32(kSin3, q, kSin2), q, kSin1), q, kSin0) * x;
  const float c = fma32(fma32(fma32(kCos3, q, kCos2), q, kCos1), q, kCos0);
  const bool turn = angle_word & 0x40000000u;
  z0 = r * (turn ? s : c);
  z1 = r * (turn ? c : s);
}

// Uniform on [-sqrt(3), sqrt(3)].
PYROBUST_HD float uniform(uint32_t w) {
  return fma32(static_cast<float>(static_cast<int32_t>(w)), kUniformScale, kUniformOffset);
}

// Laplace of scale sqrt(1/2): bit 31 is the sign, the others the magnitude.
PYROBUST_HD float laplace(uint32_t w) {
  const float magnitude = minus_two_log(w & 0x7fffffffu) * kLaplaceScale;
  return bits<float>(bits<uint32_t>(magnitude) | (w & 0x80000000u));
}

}  // namespace noise

// The unit noise of elements 4*block .. 4*block+3.
template <Family family>
PYROBUST_HD void unit_noise4(NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, float z[4]) {
  const Words4 words = philox4x32(key.philox, block, sample, image, key.domain);
  if constexpr (family == Family::kGaussian) {
    noise::gaussian_pair(words.w[0], words.w[1], z[0], z[1]);
    noise::gaussian_pair(words.w[2], words.w[3], z[2], z[3]);
  } else {
    for (int j = 0; j < 4; ++j)
      z[j] = family == Family::kUniform ? noise::uniform(words.w[j]) : noise::laplace(words.w[j]);
  }
}

}  // namespace pyrobust

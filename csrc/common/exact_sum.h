// Exact sum of float64 numbers, as a fixed-point number that spans every exponent: for comparisons that a rounded sum
// cannot decide. Slow, so callers first try a rounded sum with an error bound.
#pragma once

#include <cstdint>

#include "common/bits.h"
#include "common/host_device.h"

namespace pyrobust {

// Relative error bound of a float64 sum of up to n non-negative numbers, in any order.
PYROBUST_HD constexpr double sum_error(int64_t n) { return static_cast<double>(n + 8) * 0x1p-53; }

// The largest radius of a projection: sums of that many elements must not overflow.
inline constexpr double kLargestRadius = 0x1p960;

// Digits of 32 bits, the lowest of weight 2^-2148 (the square of the smallest subnormal), each kept in 64 bits, so that
// carries can wait. Products of two numbers fit as well as the numbers themselves.
class ExactSum {
 public:
  PYROBUST_HD ExactSum() {
    for (int i = 0; i < kDigits; ++i) digit_[i] = 0;
  }

  // Adds a finite number.
  PYROBUST_HD void add(double value) {
    const Parts p = parts(value);
    put(p.mantissa, p.exponent, p.negative);
  }

  // Adds a * b, not rounded; both finite.
  PYROBUST_HD void add_product(double a, double b) {
    const Parts p = parts(a), q = parts(b);
    const bool negative = p.negative != q.negative;
    const uint64_t low = 0xffffffffu;
    // 53 by 53 bits as four products of 32-bit halves.
    const uint64_t pl = p.mantissa & low, ph = p.mantissa >> 32, ql = q.mantissa & low, qh = q.mantissa >> 32;
    const int exponent = p.exponent + q.exponent;
    put(pl * ql, exponent, negative);
    put(pl * qh, exponent + 32, negative);
    put(ph * ql, exponent + 32, negative);
    put(ph * qh, exponent + 64, negative);
  }

  // -1, 0 or 1 for a sum below, at or above zero.
  PYROBUST_HD int sign() {
    carry();
    if (digit_[kDigits - 1] < 0) return -1;
    for (int i = kDigits - 1; i >= 0; --i)
      if (digit_[i] != 0) return 1;
    return 0;
  }

 private:
  // 4196 bits from squares of the largest numbers down to squares of the smallest, and 60 for the count of terms.
  static constexpr int kDigits = 136;
  static constexpr int kLowest = -2148;
  static constexpr uint32_t kBeforeCarry = 1u << 29;

  struct Parts {
    uint64_t mantissa;
    int exponent;
    bool negative;
  };

  PYROBUST_HD static Parts parts(double value) {
    const uint64_t u = bits<uint64_t>(value);
    const int field = static_cast<int>((u >> 52) & 0x7ffu);
    const uint64_t fraction = u & 0xfffffffffffffull;
    return {field == 0 ? fraction : fraction | 0x10000000000000ull, (field == 0 ? 1 : field) - 1075, (u >> 63) != 0};
  }

  // Adds mantissa * 2^exponent.
  PYROBUST_HD void put(uint64_t mantissa, int exponent, bool negative) {
    if (mantissa == 0) return;
    if (++pending_ == kBeforeCarry) carry();
    const int at = (exponent - kLowest) / 32, shift = (exponent - kLowest) % 32;
    const uint64_t low = 0xffffffffu;
    const uint64_t shifted_low = (mantissa & low) << shift, shifted_high = (mantissa >> 32) << shift;
    const int64_t d0 = static_cast<int64_t>(shifted_low & low);
    const int64_t d1 = static_cast<int64_t>((shifted_low >> 32) + (shifted_high & low));
    const int64_t d2 = static_cast<int64_t>(shifted_high >> 32);
    digit_[at] += negative ? -d0 : d0;
    digit_[at + 1] += negative ? -d1 : d1;
    digit_[at + 2] += negative ? -d2 : d2;
  }

  // Brings every digit but the last into [0, 2^32).
  PYROBUST_HD void carry() {
    for (int i = 0; i + 1 < kDigits; ++i) {
      const int64_t over = digit_[i] >> 32;
      digit_[i] -= over * (int64_t{1} << 32);
      digit_[i + 1] += over;
    }
    pending_ = 0;
  }

  int64_t digit_[kDigits];
  uint32_t pending_ = 0;
};

}  // namespace pyrobust

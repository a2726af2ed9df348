// Directed rounding, on host and device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/bits.h"
#include "common/half.h"
#include "common/host_device.h"

namespace pyrobust {
namespace round {

// Layout of a 16-bit or 32-bit float, for round_toward.
template <class T>
struct Format;
template <>
struct Format<float> {
  using Word = uint32_t;
  static constexpr Word kSign = 0x80000000u;
  PYROBUST_HD static Word nearest(double a) { return bits<uint32_t>(static_cast<float>(a)); }
  PYROBUST_HD static double value(Word w) { return bits<float>(w); }
  PYROBUST_HD static float make(Word w) { return bits<float>(w); }
};
template <>
struct Format<BFloat16> {
  using Word = uint16_t;
  static constexpr Word kSign = 0x8000u;
  PYROBUST_HD static Word nearest(double a) { return to_bfloat16(static_cast<float>(a)).bits; }
  PYROBUST_HD static double value(Word w) { return to_float(BFloat16{w}); }
  PYROBUST_HD static BFloat16 make(Word w) { return {w}; }
};
template <>
struct Format<Half> {
  using Word = uint16_t;
  static constexpr Word kSign = 0x8000u;
  PYROBUST_HD static Word nearest(double a) { return to_half(static_cast<float>(a)).bits; }
  PYROBUST_HD static double value(Word w) { return to_float(Half{w}); }
  PYROBUST_HD static Half make(Word w) { return {w}; }
};

}  // namespace round

// The element of T next to a on target's side: at most a if a > target, at least a if a < target. Steps are counted on
// the bits, where magnitudes are in order.
template <class T>
PYROBUST_HD T round_toward(double a, double target) {
  if constexpr (std::is_same_v<T, double>) {
    return a;
  } else {
    using F = round::Format<T>;
    using Word = typename F::Word;
    Word w = F::nearest(a);
    // Rounding twice, through float32, is off by at most one step.
    for (int i = 0; i < 2; ++i) {
      const double value = F::value(w);
      const bool high = a > target && value > a, low = a < target && value < a;
      if (!high && !low) break;
      const bool negative = (w & F::kSign) != 0;
      if ((w & static_cast<Word>(~F::kSign)) == 0)
        w = static_cast<Word>(high ? F::kSign | 1u : 1u);
      else
        w = static_cast<Word>(high != negative ? w - 1 : w + 1);
    }
    return F::make(w);
  }
}

// Rounds non-negative numbers to float16 so that their sum never grows. Below 2^-13, where float16 numbers are the
// multiples of 2^-24, rounding every number toward zero could halve the sum of a long row. There a number is rounded up
// if the amounts that earlier numbers lost cover the increase.
class HalfTruncation {
 public:
  // At most cap.
  PYROBUST_HD Half operator()(double a, double cap) {
    const Half low = round_toward<Half>(a, 0.0);
    if (!(a > 0 && a < 0x1p-13)) return low;
    const double taken = a - to_float(low), missing = 0x1p-24 - taken;
    const Half high{static_cast<uint16_t>(low.bits + 1)};
    if (taken >= missing && credit_ >= missing && to_float(high) <= cap) {
      credit_ -= missing;
      return high;
    }
    credit_ += taken;
    return low;
  }

 private:
  double credit_ = 0;
};

// The element of T nearest to a (16-bit floats through float32).
template <class T>
PYROBUST_HD T round_nearest(double a) {
  if constexpr (std::is_same_v<T, double>)
    return a;
  else
    return round::Format<T>::make(round::Format<T>::nearest(a));
}

}  // namespace pyrobust

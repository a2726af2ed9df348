// Pixel values as integer multiples of a grid's step p/q.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pyrobust {

// Floats of 24 bits hold all integers up to kExact, and below kDistinct are nearest to only one multiple of a step.
inline constexpr int64_t kExact = int64_t{1} << 24, kDistinct = int64_t{1} << 23;

// The multiples of a step p/q to which values of type X are the nearest numbers of type Nearest, float or double.
template <class Nearest, class X>
class GridLevels {
 public:
  // p, q: positive, below kExact.
  GridLevels(int64_t p, int64_t q)
      : limit_(static_cast<double>(std::min(kDistinct, (kExact + p - 1) / p))),
        p_(static_cast<double>(p)),
        q_(static_cast<double>(q)),
        divisor_(static_cast<Nearest>(q)) {}

  // Writes the multiple of each x. Returns the place of the first x that is not a multiple, from which on levels are
  // unspecified; n if all are. levels: [n], or null.
  int64_t convert(const X* x, int64_t n, int32_t* levels) const {
    constexpr int64_t kBlock = 1024;
    int32_t scratch[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = std::min(kBlock, n - begin);
      int32_t* k = levels ? levels + begin : scratch;
      bool misses = false;
      for (int64_t i = 0; i < size; ++i) misses |= !convert_one(x[begin + i], k[i]);
      for (int64_t i = 0; misses; ++i)
        if (!convert_one(x[begin + i], k[i])) return begin + i;
    }
    return n;
  }

 private:
  bool convert_one(X x, int32_t& k) const {
    // Adding and subtracting 1.5·2^52 rounds numbers below 2^51 to the nearest integer; others stay above the limit.
    constexpr double kRound = 6755399441055744.0;
    const double rounded = (static_cast<double>(x) * q_ / p_ + kRound) - kRound;
    // Below the limit k·p is below kExact, so that the division is the only rounding; NaN is not.
    const bool inside = std::fabs(rounded) < limit_;
    const double integer = inside ? rounded : 0.0;
    k = static_cast<int32_t>(integer);
    return inside & (static_cast<X>(static_cast<Nearest>(integer * p_) / divisor_) == x);
  }

  double limit_, p_, q_;
  Nearest divisor_;
};

}  // namespace pyrobust

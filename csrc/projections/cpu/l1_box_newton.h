// Newton's method for the threshold of the l1 ball within a box.
#pragma once

#include <cmath>

#include "projections/cpu/l1_box_kernels.h"

namespace pyrobust::cpu {

inline constexpr int kMaxRounds = 2500;        // halving through all exponents
inline constexpr double kTolerance = 0x1p-44;  // of the radius, in the search

struct Bracket {
  double low, high;  // f(low) <= radius < f(high)
};

inline double sum_at(const BoxValue& value, double w) { return value.fixed + static_cast<double>(value.free) * w; }

// Finds a w with f(w) close to radius, starting at w; the bracket shrinks around it.
template <class F>
double newton(const F& f, double radius, double tolerance, double w, Bracket& bracket) {
  for (int round = 0; round < kMaxRounds; ++round) {
    const BoxValue value = f(w);
    const double excess = sum_at(value, w) - radius;
    (excess > 0 ? bracket.high : bracket.low) = w;
    if (std::fabs(excess) <= tolerance * radius) return w;
    double next = (radius - value.fixed) / static_cast<double>(value.free);
    if (!(next > bracket.low && next < bracket.high)) next = bracket.low + (bracket.high - bracket.low) / 2;
    if (!(next > bracket.low && next < bracket.high)) return bracket.low;
    w = next;
  }
  return bracket.low;
}

}  // namespace pyrobust::cpu

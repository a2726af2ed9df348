// Elementwise attack steps, on host and device: rounded sums are never further from x than the exact sums.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/bits.h"
#include "common/directed_rounding.h"
#include "common/half.h"
#include "common/host_device.h"

namespace pyrobust {

// The type in which elements of T are computed, and integers of its size.
template <class T>
using Real = decltype(to_float(T{}));
template <class R>
using WordOf = std::conditional_t<sizeof(R) == 8, int64_t, int32_t>;

// x + z rounded to the side of x: the sum s and its error e, s + e = x + z exactly (Knuth's TwoSum), then one step of s
// towards x where s lies beyond the exact sum. Without branches, so that loops over it become vector code.
template <class R>
PYROBUST_HD R add_toward_first(R x, R z) {
  using Word = WordOf<R>;
  const R s = x + z;
  const R back = s - x;
  const R e = (x - (s - back)) + (z - back);
  const Word beyond = static_cast<Word>((z > 0) & (e < 0)) | static_cast<Word>((z < 0) & (e > 0));
  const Word outward = static_cast<Word>((s > 0) == (z > 0));  // where s is beyond, it is not zero: a zero sum is exact
  return bits<R>(static_cast<Word>(bits<Word>(s) + beyond * (1 - 2 * outward)));
}

// Rounds x to T, toward the box.
template <class T>
PYROBUST_HD T clipped(Real<T> a, Real<T> lower, Real<T> upper, Real<T> target) {
  const Real<T> above = a > lower ? a : lower;
  const Real<T> inside = above < upper ? above : upper;
  if constexpr (std::is_floating_point_v<T>)
    return inside;
  else
    return round_toward<T>(inside, target);
}

// x + z rounded toward x and clipped to the box, whose ends are numbers of T.
template <class T>
PYROBUST_HD T add_in_box(T x, T z, Real<T> lower, Real<T> upper) {
  const Real<T> from = to_float(x);
  return clipped<T>(add_toward_first(from, to_float(z)), lower, upper, from);
}

// x_adv + step sign(gradient), at most epsilon from x and in the box.
template <class T>
PYROBUST_HD T linf_moved(T x_adv, T gradient, T x, Real<T> step, Real<T> epsilon, Real<T> lower, Real<T> upper) {
  const Real<T> from = to_float(x), g = to_float(gradient);
  const Real<T> low = add_toward_first(from, -epsilon), high = add_toward_first(from, epsilon);
  const Real<T> move = g > 0 ? step : (g < 0 ? -step : Real<T>(0));
  const Real<T> moved = to_float(x_adv) + move;
  const Real<T> above = moved > low ? moved : low;
  const Real<T> near = above < high ? above : high;
  return clipped<T>(near, lower, upper, from);
}

// The same with momentum: x_adv + share (z - x_adv) + (1 - share) (x_adv - before), where z is the step above.
template <class T>
PYROBUST_HD T linf_carried(T x_adv, T z, T x, T before, Real<T> share, Real<T> epsilon, Real<T> lower, Real<T> upper) {
  const Real<T> from = to_float(x);
  const Real<T> low = add_toward_first(from, -epsilon), high = add_toward_first(from, epsilon);
  const Real<T> rest = 1 - share;
  const Real<T> moved = (share * to_float(z) + 2 * rest * to_float(x_adv)) - rest * to_float(before);
  const Real<T> above = moved > low ? moved : low;
  const Real<T> near = above < high ? above : high;
  return clipped<T>(near, lower, upper, from);
}

// The gradient, or zero where its step would leave the box.
template <class T>
PYROBUST_HD T movable(T x_adv, T gradient, Real<T> lower, Real<T> upper) {
  const Real<T> at = to_float(x_adv), g = to_float(gradient);
  const bool stuck = ((at >= upper) & (g > 0)) | ((at <= lower) & (g < 0));
  return stuck ? T{} : gradient;
}

// (x_adv - x) + step sign(gradient) where |gradient| reaches the threshold.
template <class T>
PYROBUST_HD T sparse_moved(T x_adv, T gradient, T x, Real<T> threshold, Real<T> step) {
  const Real<T> g = to_float(gradient), delta = to_float(x_adv) - to_float(x);
  const Real<T> size = g < 0 ? -g : g;
  const Real<T> move = g > 0 ? step : (g < 0 ? -step : Real<T>(0));
  return round_nearest<T>(size >= threshold ? delta + move : delta);
}

}  // namespace pyrobust

// The smallest step of one row onto a hyperplane within a box, by a group of threads.
#pragma once

#include "attacks/cuda/l1_step_row.h"
#include "projections/cuda/norm_balls_row.h"

namespace pyrobust::cuda {

enum StepNorm : int64_t { kLinfNorm, kL2Norm, kL1Norm };

// The hyperplane value + w (z - at) = 0 seen from x. An element moves by m >= 0 toward it, at most to the face of the
// box, and closes the gap by |w| m:
//   linf, l2: m = min(room, t rate), with rate 1 or |w|, and t the root of a concave, piecewise linear function, which
//             Newton's method reaches from below in as many steps as the function has pieces, at most
//   l1:       the whole room of the largest |w|, and one share of it for all elements of the last |w|
template <class T, int kPer, class Group>
class HyperplaneRow {
 public:
  PYROBUST_GROUP HyperplaneRow(Group& group, const T* x, const T* at, const T* w, T* step, int64_t n, double lower,
                               double upper)
      : group_(group), x_(group, x, n), w_(group, w, n), at_(at), step_(step), n_(n), lower_(lower), upper_(upper) {}

  PYROBUST_GROUP void project(double value, StepNorm norm) {
    scan(value);
    if (!(gap_ > 0)) return fill<T, kPer>(group_, step_, n_, T{});  // NaN, too
    if (norm == kL1Norm)
      by_weight();
    else
      by_rate(norm == kL2Norm);
  }

 private:
  using Word = decltype(magnitude_word(T{}));
  static constexpr int kBits = std::is_floating_point_v<T> ? static_cast<int>(sizeof(T)) * 8 : 16;

  // An element of w: zero where it is not finite.
  PYROBUST_GROUP T normal(int k, int64_t i) const {
    const T w = w_.at(k, i);
    return finite(to_float(w)) ? w : T{};
  }
  // |w| times a power of two, so that squares do not underflow.
  PYROBUST_GROUP double weight(int k, int64_t i) const { return std::fabs(to_float(normal(k, i)) * unit_); }
  PYROBUST_GROUP double direction(int k, int64_t i) const {
    const double w = to_float(normal(k, i));
    return w > 0 ? sign_ : w < 0 ? -sign_ : 0;
  }
  PYROBUST_GROUP double room(int k, int64_t i) const {
    const double x = to_float(x_.at(k, i)), toward = direction(k, i);
    const double free = toward > 0 ? upper_ - x : toward < 0 ? x - lower_ : 0;
    return free > 0 ? free : 0;
  }
  PYROBUST_GROUP void move(int k, int64_t i, double by) const { step_[i] = round_nearest<T>(direction(k, i) * by); }

  PYROBUST_GROUP void scan(double value) {
    double top = 0, part[1] = {0};
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const double w = to_float(normal(k, i)), a = std::fabs(w);
      top = a > top ? a : top;
      part[0] += w * (static_cast<double>(to_float(at_[i])) - to_float(x_.at(k, i)));
    });
    top = group_.max(top);
    group_.add(part);
    const double gap = part[0] - value;
    unit_ = top > 0 ? to_about_one(top) : 1;
    sign_ = gap < 0 ? -1 : 1;
    gap_ = std::fabs(gap) * unit_;
  }

  PYROBUST_GROUP void by_rate(bool l2) {
    double t = 0;
    for (int64_t round = 0; round <= n_ + 1; ++round) {
      double part[2] = {0, 0};  // the gain at t, and its slope
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const double a = weight(k, i), rate = l2 ? a : 1, most = room(k, i), m = t * rate;
        part[0] += a * (m < most ? m : most);
        part[1] += m < most ? a * rate : 0;
      });
      group_.add(part);
      const double missing = gap_ - part[0];
      const double next = part[1] > 0 ? t + missing / part[1] : kLargestDouble;
      if (!(missing > 0 && next > t)) break;
      t = next;
    }
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const double most = room(k, i), m = l2 ? t * weight(k, i) : t;
      move(k, i, m < most ? m : most);
    });
  }

  PYROBUST_GROUP void by_weight() {
    const Word last = last_weight();
    double part[2] = {0, 0};  // the gain of the larger weights, and that of the last weight
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const Word word = magnitude_word(normal(k, i));
      const double gain = weight(k, i) * room(k, i);
      part[0] += word > last ? gain : 0;
      part[1] += word == last ? gain : 0;
    });
    group_.add(part);
    const double rest = gap_ - part[0], share = rest < part[1] ? (rest > 0 ? rest / part[1] : 0) : 1;
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const Word word = magnitude_word(normal(k, i));
      move(k, i, word < last ? 0 : word > last ? room(k, i) : share * room(k, i));
    });
  }

  // Finds, two bits at a time, the largest |w| such that the elements with at least this |w| close the gap; zero if not
  // even all do.
  PYROBUST_GROUP Word last_weight() {
    Word prefix = 0;
    for (int shift = kBits - 2; shift >= 0; shift -= 2) {
      const Word unit = Word{1} << shift;
      double part[3] = {0, 0, 0};  // the gain of the words from prefix + 1, 2, 3 units on
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const Word word = magnitude_word(normal(k, i));
        const double gain = weight(k, i) * room(k, i);
#pragma unroll
        for (int c = 0; c < 3; ++c) part[c] += word >= prefix + static_cast<Word>(c + 1) * unit ? gain : 0;
      });
      group_.add(part);
      Word digit = 0;
#pragma unroll
      for (int c = 0; c < 3; ++c)
        if (part[c] >= gap_) ++digit;
      prefix += digit * unit;
    }
    return prefix;
  }

  Group& group_;
  const Slice<T, kPer> x_, w_;
  const T* at_;
  T* step_;
  const int64_t n_;
  const double lower_, upper_;
  double unit_ = 1, sign_ = 1, gap_ = 0;
};

}  // namespace pyrobust::cuda

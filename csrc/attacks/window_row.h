// A proposal of the Square attack in l2 or l1, for one image, by a group of threads.
#pragma once

#include "attacks/step_math.h"
#include "projections/cuda/row.h"

namespace pyrobust::cuda {

// Images [channels, height, width], whose channels are innermost in memory where channels_last, and the sides of windows.
struct Windows {
  int64_t channels, height, width, tall, wide;
  bool channels_last;

  PYROBUST_GROUP int64_t offset(int64_t channel, int64_t row, int64_t column) const {
    const int64_t pixel = row * width + column;
    return channels_last ? pixel * channels + channel : channel * height * width + pixel;
  }
};

template <class T, bool kL2, class Group>
class WindowRow {
 public:
  // best, x, out: an image; u: its 5 + channels random numbers; patterns: [2][tall * wide]; lower, upper: the box,
  // numbers of T
  PYROBUST_GROUP WindowRow(Group& group, const T* best, const T* x, const T* u, const double* patterns, T* out,
                           const Windows& windows, Real<T> lower, Real<T> upper)
      : group_(group), best_(best), x_(x), u_(u), out_(out), windows_(windows), lower_(lower), upper_(upper) {
    pattern_ = patterns + (to_float(u[4]) > 0 ? 0 : windows.tall * windows.wide);
    first_ = corner(u);
    second_ = corner(u + 2);
  }

  // Moves the second window's share of the budget, and what the image has not used of the budget, into the first
  // window.
  PYROBUST_GROUP void propose(double radius) {
    double used[1] = {0};
    for_slots<0>(group_, windows_.channels * windows_.height * windows_.width,
                 [&](int, int64_t i) { used[0] += size(changed(i)); });
    group_.add(used);
    const double unused = size(radius) - used[0];
    for (int64_t c = 0; c < windows_.channels; ++c) channel(c, unused > 0 ? unused : 0);
  }

 private:
  struct Corner {
    int64_t top, left;
  };
  static constexpr double kTiny = 1e-12;  // keeps a quotient finite

  // The budget that a change spends (its square or absolute value), and the length that corresponds to a budget.
  PYROBUST_GROUP static double size(double a) { return kL2 ? a * a : std::fabs(a); }
  PYROBUST_GROUP static double length(double budget) { return kL2 ? std::sqrt(budget) : budget; }

  PYROBUST_GROUP Corner corner(const T* u) const {
    return {place(u[0], windows_.height - windows_.tall), place(u[1], windows_.width - windows_.wide)};
  }
  // Uniform on 0 to room, from u on [-1, 1].
  PYROBUST_GROUP static int64_t place(T u, int64_t room) {
    const Real<T> half = static_cast<Real<T>>(0.5 * static_cast<double>(room + 1));
    const Real<T> at = (to_float(u) + 1) * half;  // perhaps NaN or infinite
    return at >= static_cast<Real<T>>(room) ? room : at > 0 ? static_cast<int64_t>(at) : 0;
  }
  PYROBUST_GROUP bool inside(const Corner& corner, int64_t row, int64_t column) const {
    return row >= corner.top && row < corner.top + windows_.tall && column >= corner.left &&
           column < corner.left + windows_.wide;
  }
  PYROBUST_GROUP double changed(int64_t i) const {
    return static_cast<double>(to_float(best_[i])) - static_cast<double>(to_float(x_[i]));
  }
  // f(i, row, column) for the calling thread's pixels of a window: i counts them, row and column are those of the
  // image.
  template <class F>
  PYROBUST_GROUP void each(const Corner& corner, const F& f) const {
    for_slots<0>(group_, windows_.tall * windows_.wide,
                 [&](int, int64_t i) { f(i, corner.top + i / windows_.wide, corner.left + i % windows_.wide); });
  }

  PYROBUST_GROUP void channel(int64_t c, double unused) {
    double had[2] = {0, 0};  // the first window, and the second one without its overlap with the first
    each(first_,
         [&](int64_t, int64_t row, int64_t column) { had[0] += size(changed(windows_.offset(c, row, column))); });
    each(second_, [&](int64_t, int64_t row, int64_t column) {
      if (!inside(first_, row, column)) had[1] += size(changed(windows_.offset(c, row, column)));
    });
    group_.add(had);
    const auto channels = static_cast<double>(windows_.channels);
    const double budget = kL2 ? had[0] + had[1] + unused / channels : (had[0] + had[1]) * channels + unused;
    const double sign = to_float(u_[5 + c]) > 0 ? 1 : -1, own = length(had[0]) + kTiny;
    const auto raw = [&](int64_t i, int64_t row, int64_t column) {
      return pattern_[i] * sign + changed(windows_.offset(c, row, column)) / own;
    };
    double sum[1] = {0};
    each(first_, [&](int64_t i, int64_t row, int64_t column) { sum[0] += size(raw(i, row, column)); });
    group_.add(sum);
    const double factor = length(budget) / (length(sum[0]) + kTiny);
    double rest = 1;  // the factor on what clipping does not change that spends the budget
    if constexpr (kL2) {
      double part[2] = {0, 0};  // what clipping does not change, and what it changes
      each(first_, [&](int64_t i, int64_t row, int64_t column) {
        const double a = raw(i, row, column) * factor, b = clip(a, windows_.offset(c, row, column));
        part[a == b ? 0 : 1] += b * b;
      });
      group_.add(part);
      const double left = budget - part[1];
      rest = std::sqrt((left > 0 ? left : 0) / (part[0] + kTiny));
    }
    for_slots<0>(group_, windows_.height * windows_.width, [&](int, int64_t pixel) {
      const int64_t row = pixel / windows_.width, column = pixel % windows_.width;
      const int64_t at = windows_.offset(c, row, column);
      const bool first = inside(first_, row, column), second = !first && inside(second_, row, column);
      double a = 0;
      if (first) a = raw((row - first_.top) * windows_.wide + column - first_.left, row, column) * factor;
      if constexpr (kL2) {
        const double b = first ? clip(a, at) : 0;
        const T by = round_nearest<T>(a == b ? b * rest : b);
        out_[at] = first ? add_in_box<T>(x_[at], by, lower_, upper_) : second ? x_[at] : best_[at];
      } else {
        out_[at] = round_nearest<T>(first ? a : second ? 0 : changed(at));
      }
    });
  }
  PYROBUST_GROUP double clip(double a, int64_t at) const {
    const double x = to_float(x_[at]), low = lower_ - x, high = upper_ - x;
    return a < low ? low : a > high ? high : a;
  }

  Group& group_;
  const T* best_;
  const T* x_;
  const T* u_;
  const double* pattern_;
  T* out_;
  const Windows& windows_;
  const Real<T> lower_, upper_;
  Corner first_, second_;
};

}  // namespace pyrobust::cuda

// One row of the projections onto the l2 and the l-infinity ball, by a group of threads.
#pragma once

#include "projections/cuda/exact_sign.h"

namespace pyrobust::cuda {

// The power of two that brings a positive number to about 1, so that squares neither overflow nor vanish.
PYROBUST_GROUP double to_about_one(double a) {
  const int field = static_cast<int>((bits<uint64_t>(a) >> 52) & 0x7ffu);
  const int power = 1023 - field;
  return bits<double>(static_cast<uint64_t>((power < -1000 ? -1000 : power > 1000 ? 1000 : power) + 1023) << 52);
}

template <class T, int kPer, class Group>
class NormRow {
 public:
  PYROBUST_GROUP NormRow(Group& group, const T* v, T* z, int64_t n, double radius)
      : group_(group), v_(group, v, n), z_(z), n_(n), radius_(radius) {}

  PYROBUST_GROUP void project(bool l2) {
    if (!scan())
      fill<T, kPer>(group_, z_, n_, not_a_number<T>());
    else if (l2)
      project_l2();
    else
      clip();
  }

 private:
  // False if an element is not finite, or the radius is invalid.
  PYROBUST_GROUP bool scan() {
    bool bad = !good_radius(radius_);
    double top = 0;
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const double a = std::fabs(to_float(v_.at(k, i)));
      bad = bad || !finite(a);
      top = a > top ? a : top;
    });
    if (group_.any(bad)) return false;
    top_ = group_.max(top);
    return true;
  }

  PYROBUST_GROUP void clip() {
    const T bound = truncated<T>(radius_);
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const T v = v_.at(k, i);
      z_[i] = std::fabs(to_float(v)) <= radius_ ? v : with_sign(bound, v);
    });
  }

  // Whether the sum of squares is at most radius^2, exactly: by a rounded sum if that decides it. sum: the sum of
  // squares of what each gives, times scale^2, scale = to_about_one(radius).
  template <class Each>
  PYROBUST_GROUP bool at_most(double sum, double scale, const Each& each) {
    const double bound = (radius_ * scale) * (radius_ * scale), error = sum_error(n_ + 8);
    // Underflow loses less than 2^-1022 for each square.
    if (sum * (1 + error) + static_cast<double>(n_) * 0x1p-1022 <= bound * (1 - error)) return true;
    if (sum * (1 - error) > bound * (1 + error)) return false;
    return squares_at_most(group_, top_, radius_, each);
  }

  PYROBUST_GROUP double squares(double scale) {
    double sum[1] = {0};
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const double a = to_float(v_.at(k, i)) * scale;
      sum[0] += a * a;
    });
    group_.add(sum);
    return sum[0];
  }

  PYROBUST_GROUP T shrunk(T v, double scale, double factor) const {
    const double a = std::fabs(to_float(v)), product = (a * scale) * factor;
    return with_sign(truncated<T>(product < a ? product : a), v);
  }

  PYROBUST_GROUP void project_l2() {
    if (radius_ == 0 && top_ > 0) return fill<T, kPer>(group_, z_, n_, T{});
    const double unit = to_about_one(radius_);
    if (top_ == 0 || (top_ <= radius_ && at_most(squares(unit), unit, [&](const auto& f) {
                        for_slots<kPer>(group_, n_, [&](int k, int64_t i) { f(to_float(v_.at(k, i))); });
                      })))
      return for_slots<kPer>(group_, n_, [&](int k, int64_t i) { z_[i] = v_.at(k, i); });
    const double scale = to_about_one(top_);
    double factor = radius_ / sqrt(squares(scale));
    // A little less than the radius: float64 products are rounded to nearest, and their sum of squares would never
    // decide.
    if (std::is_same_v<T, double>) factor *= 1 - sum_error(n_ + 16);
    double back = sum_error(n_);
    for (int attempt = 0; attempt < kMaxAttempts && factor > 0; ++attempt) {
      double sum[1] = {0};
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const T z = shrunk(v_.at(k, i), scale, factor);
        z_[i] = z;
        const double a = to_float(z) * unit;
        sum[0] += a * a;
      });
      group_.add(sum);
      if (at_most(sum[0], unit, [&](const auto& f) {
            for_slots<kPer>(group_, n_, [&](int k, int64_t i) { f(to_float(shrunk(v_.at(k, i), scale, factor))); });
          }))
        return;
      factor *= back < 1 ? 1 - back : 0;
      back *= 4;
    }
    fill<T, kPer>(group_, z_, n_, T{});
  }

  Group& group_;
  const Slice<T, kPer> v_;
  T* z_;
  const int64_t n_;
  const double radius_;
  double top_ = 0;
};

}  // namespace pyrobust::cuda

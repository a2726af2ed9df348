// One row of the projections onto the simplex and the l1 ball, by a group of threads. As on the CPU: with top the
// largest a and t = top - a, the projection is reach - t where positive, and reach is the root of the convex
// piecewise-linear
//   sum over t < reach of (reach - t) = radius
// by Newton's method (Michelot 1986; Condat 2016). Nothing is packed: a thread keeps its elements and skips the dropped
// ones.
#pragma once

#include "projections/cuda/exact_sign.h"

namespace pyrobust::cuda {

// A step divides excess * slope by at least four, so float64 needs fewer steps; float32 only looks for a start.
constexpr int kMaxRounds = 200;
constexpr int kMaxCoarseRounds = 24;
constexpr int kSample = 8;  // elements of a thread

// The projection of one element, rounded toward zero.
template <class T>
class Shrink {
 public:
  PYROBUST_GROUP Shrink(double top, double reach, bool absolute) : top_(top), reach_(reach), absolute_(absolute) {}

  PYROBUST_GROUP T operator()(T v) {
    const double value = to_float(v), a = absolute_ ? std::fabs(value) : value;
    double exact = reach_ - (top_ - a);
    exact = exact > 0 ? exact : 0;
    // The threshold of |v| is not negative, but for rounding.
    if (absolute_ && exact > a) exact = a;
    const T z = truncation_(exact, absolute_ ? a : kLargestDouble);
    return absolute_ ? with_sign(z, v) : z;
  }

 private:
  const double top_, reach_;
  const bool absolute_;
  Truncation<T> truncation_;
};

template <class T, int kPer, class Group>
class L1Row {
 public:
  PYROBUST_GROUP L1Row(Group& group, const T* v, T* z, int64_t n, double radius, bool absolute)
      : group_(group), v_(group, v, n), z_(z), n_(n), radius_(radius), absolute_(absolute) {}

  PYROBUST_GROUP void project() {
    if (!scan()) {
      fill<T, kPer>(group_, z_, n_, not_a_number<T>());
    } else if (absolute_ && inside()) {
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) { z_[i] = v_.at(k, i); });
    } else if (radius_ == 0 || !finish(search())) {
      fill<T, kPer>(group_, z_, n_, T{});
    }
  }

 private:
  PYROBUST_GROUP auto magnitude(T v) const {
    const auto a = to_float(v);
    return absolute_ ? std::fabs(a) : a;
  }

  // False if an element is not finite, or the radius is invalid.
  PYROBUST_GROUP bool scan() {
    bool bad = !good_radius(radius_);
    double top = -kLargestDouble, total[1] = {0};
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const double a = magnitude(v_.at(k, i));
      bad = bad || !finite(a);
      top = a > top ? a : top;
      total[0] += a;
    });
    if (group_.any(bad)) return false;
    top_ = group_.max(top);
    group_.add(total);
    total_ = total[0];
    return true;
  }

  PYROBUST_GROUP bool inside() {
    // A float64 sum that overflows is far above the largest radius.
    if (total_ * (1 - sum_error(n_)) > radius_) return false;
    if (total_ * (1 + sum_error(n_)) <= radius_) return true;
    return sum_at_most(group_, top_, radius_, [&](const auto& f) {
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) { f(magnitude(v_.at(k, i))); });
    });
  }

  // The reach for a budget, from any start > 0: from the left of the root, the first step leads to its right; from
  // there on, every step drops elements. each(f): f(t) for the calling thread's elements. count_ becomes the number of
  // elements left.
  template <class Real, class Each>
  PYROBUST_GROUP double newton(double start, double budget, int rounds, const Each& each) {
    const Real limit = static_cast<Real>(radius_);
    Real reach = static_cast<Real>(start), before = 0;
    for (int round = 0; round < rounds; ++round) {
      Real part[2] = {0, 0};
      each([&](Real t) {
        if (t < reach) {
          part[0] += 1;
          part[1] += t;
        }
      });
      group_.add(part);
      const Real count = part[0], solved = (static_cast<Real>(budget) + part[1]) / count;
      const bool same = round > 0 && count == before;
      before = count;
      // Only rounding can leave the set empty: the radius itself is then an upper bound of the reach.
      const Real next = count > 0 && solved < limit ? solved : limit;
      const bool stays = round > 0 && !(next < reach);
      reach = next;
      if (same || stays) break;
    }
    count_ = before;
    return reach;
  }

  // A start near the root: in float32, and for rows in memory from a sample of them.
  PYROBUST_GROUP double coarse(double start) {
    const float top = static_cast<float>(top_);
    double near = start;
    if constexpr (kPer == 0) {
      const int64_t taken = static_cast<int64_t>(kSample) * group_.size();
      float t[kSample];
      for (int j = 0; j < kSample; ++j) {
        const int64_t i = (group_.rank() + static_cast<int64_t>(j) * group_.size()) * n_ / taken;
        t[j] = top - static_cast<float>(magnitude(v_.at(0, i)));
      }
      const double share = radius_ * static_cast<double>(taken) / static_cast<double>(n_);
      near = newton<float>(start, share, kMaxCoarseRounds, [&](const auto& f) {
        for (int j = 0; j < kSample; ++j) f(t[j]);
      });
    } else if constexpr (kPer * Group::size() > 64 && !std::is_same_v<T, double>) {
      near = newton<float>(start, radius_, kMaxCoarseRounds, [&](const auto& f) {
        for_slots<kPer>(group_, n_, [&](int k, int64_t i) { f(top - magnitude(v_.at(k, i))); });
      });
    }
    return near > 0 && near <= radius_ ? near : start;
  }

  PYROBUST_GROUP double search() {
    // The start: the solution for all elements or, if smaller, the radius, which is the solution for the largest alone.
    double start = top_ - (total_ - radius_) / static_cast<double>(n_);
    if (!(start > 0 && start < radius_)) start = radius_;
    return newton<double>(coarse(start), radius_, kMaxRounds, [&](const auto& f) {
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) { f(top_ - magnitude(v_.at(k, i))); });
    });
  }

  // Writes z until its sum, as stored, is proven to be at most the radius.
  PYROBUST_GROUP bool finish(double reach) {
    const double unit = radius_ * sum_error(n_) / (count_ > 1 ? count_ : 1);
    // A little less than the radius: float64 sums of long rows would otherwise never decide.
    if (std::is_same_v<T, double> && n_ > 64) reach -= 2 * unit;
    double back = 2 * unit > 0x1p-1074 ? 2 * unit : 0x1p-1074;
    for (int attempt = 0; attempt < kMaxAttempts && reach > 0; ++attempt) {
      double sum[1] = {0};
      Shrink<T> shrink(top_, reach, absolute_);
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const T z = shrink(v_.at(k, i));
        z_[i] = z;
        sum[0] += std::fabs(to_float(z));
      });
      group_.add(sum);
      if (sum[0] * (1 + sum_error(n_)) <= radius_) return true;
      if (sum[0] * (1 - sum_error(n_)) <= radius_ && stored_at_most(reach)) return true;
      reach = reach - back < next_down(reach) ? reach - back : next_down(reach);
      back *= 4;
    }
    return false;
  }

  // Whether the sum of what finish writes for a reach is at most the radius, exactly.
  PYROBUST_GROUP bool stored_at_most(double reach) {
    return sum_at_most(group_, 2 * radius_, radius_, [&](const auto& f) {
      Shrink<T> shrink(top_, reach, absolute_);
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) { f(std::fabs(to_float(shrink(v_.at(k, i))))); });
    });
  }

  Group& group_;
  const Slice<T, kPer> v_;
  T* z_;
  const int64_t n_;
  const double radius_;
  const bool absolute_;
  double top_ = 0, total_ = 0, count_ = 0;
};

}  // namespace pyrobust::cuda

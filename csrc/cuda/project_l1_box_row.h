// One row of the projection onto the l1 ball within a box, by a group of threads. As on the CPU: an element y at x has
// a = |y| and room u up to the box on y's side, and the threshold theta = base - w is the root of the monotone
//   f(w) = sum of clip(a - theta, 0, u) = radius
// by Newton's method inside a bracket, halved where a step leaves it.
#pragma once

#include "cuda/exact_sign.h"

namespace pyrobust::cuda {

constexpr int kMaxBoxRounds = 300;
constexpr int kMaxCoarseBoxRounds = 40;
constexpr int kBoxSample = 8;                // elements of a thread
constexpr double kTolerance = 0x1p-44;       // of the radius, in the search
constexpr float kCoarseTolerance = 0x1p-18f;
// Beyond this many radii, base becomes an element near the threshold: what is left of w has the precision.
constexpr double kHuge = 1024;

struct Box {
  double lower, upper;
};

template <class Real>
struct Bracket {
  Real low, high;  // f(low) <= radius < f(high)
};

// What an element may grow to on y's side, rounded down where `down`: the difference s and its error e, s + e exact (Knuth's
// TwoSum), and s > 0 where e < 0.
template <bool down>
PYROBUST_GROUP double room(double y, double x, const Box& box) {
  const double p = y > 0 ? box.upper : x, q = y > 0 ? x : box.lower, s = p - q;
  if constexpr (down) {
    const double back = s - p, e = (p - (s - back)) - (q + back);
    if (e < 0) return next_down(s);
  }
  return s;
}

template <class Real>
PYROBUST_GROUP Real clipped(Real c, Real u) {
  return c > 0 ? (c < u ? c : u) : 0;
}

template <class T, int kPer, class Group>
class L1BoxRow {
 public:
  PYROBUST_GROUP L1BoxRow(Group& group, const T* y, const T* x, T* z, int64_t n, double radius, Box box)
      : group_(group), y_(group, y, n), x_(group, x, n), z_(z), n_(n), radius_(radius), box_(box) {}

  PYROBUST_GROUP void project() {
    if (!scan()) return fill<T, kPer>(group_, z_, n_, not_a_number<T>());
    if (radius_ > 0) {
      // No threshold: what the box leaves may already be inside.
      if (total_ * (1 - sum_error(n_)) <= radius_ && written(0, 0)) return;
      double base = top_, w = search();
      if (top_ > kHuge * radius_) {
        base = nearest(top_ - w);
        w = whole(base, w + (base - top_), {base - top_, base});
      }
      if (finish(base, w)) return;
    }
    fill<T, kPer>(group_, z_, n_, T{});
  }

 private:
  // False where an element of y is not finite, one of x is outside the box, or the radius is none.
  PYROBUST_GROUP bool scan() {
    bool bad = !good_radius(radius_);
    double top = 0, part[2] = {0, 0};
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const double y = to_float(y_.at(k, i)), x = to_float(x_.at(k, i));
      const double a = std::fabs(y), u = room<false>(y, x, box_);
      bad = bad || !finite(a) || !(x >= box_.lower && x <= box_.upper);
      top = a > top ? a : top;
      part[0] += a < u ? a : u;
      part[1] += a > 0 && a < u ? 1 : 0;
    });
    if (group_.any(bad)) return false;
    top_ = group_.max(top);
    group_.add(part);
    total_ = part[0];
    free_ = part[1];
    return true;
  }

  // A w with f(w) close to radius, starting at w; each(f): f(a - base, u, a) for the calling thread's elements.
  template <class Real, class Each>
  PYROBUST_GROUP Real newton(Real radius, Real tolerance, int rounds, Real w, Bracket<Real> bracket, const Each& each) {
    for (int round = 0; round < rounds; ++round) {
      Real part[2] = {0, 0};  // the sum, and its slope in w
      each([&](Real below, Real u, Real a) {
        Real c = below + w;
        c = c < a ? c : a;
        part[0] += clipped(c, u);
        part[1] += c > 0 && c < u ? 1 : 0;
      });
      group_.add(part);
      const Real excess = part[0] - radius;
      (excess > 0 ? bracket.high : bracket.low) = w;
      if (std::fabs(excess) <= tolerance * radius) return w;
      Real next = w - excess / part[1];
      if (!(next > bracket.low && next < bracket.high)) next = bracket.low + (bracket.high - bracket.low) / 2;
      if (!(next > bracket.low && next < bracket.high)) return bracket.low;
      w = next;
    }
    return bracket.low;
  }

  PYROBUST_GROUP double whole(double base, double w, Bracket<double> bracket) {
    return newton<double>(radius_, kTolerance, kMaxBoxRounds, w, bracket, [&](const auto& f) {
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const double y = to_float(y_.at(k, i)), x = to_float(x_.at(k, i)), a = std::fabs(y);
        f(a - base, room<false>(y, x, box_), a);
      });
    });
  }

  // f(a - top, u, a) in float32: for a start only.
  template <class F>
  PYROBUST_GROUP void coarse_element(T y, T x, float top, const F& f) const {
    const float yf = static_cast<float>(to_float(y)), xf = static_cast<float>(to_float(x)), a = std::fabs(yf);
    const float lower = static_cast<float>(box_.lower), upper = static_cast<float>(box_.upper);
    f(a - top, yf > 0 ? upper - xf : xf - lower, a);
  }

  // A start near the root: in float32, and for rows in memory from a sample of them.
  PYROBUST_GROUP double coarse(double start) {
    const float top = static_cast<float>(top_), first = static_cast<float>(start);
    const Bracket<float> bracket{0, top};
    if constexpr (kPer == 0) {
      const int64_t taken = static_cast<int64_t>(kBoxSample) * group_.size();
      T y[kBoxSample], x[kBoxSample];
      for (int j = 0; j < kBoxSample; ++j) {
        const int64_t i = (group_.rank() + static_cast<int64_t>(j) * group_.size()) * n_ / taken;
        y[j] = y_.at(0, i);
        x[j] = x_.at(0, i);
      }
      const double share = radius_ * static_cast<double>(taken) / static_cast<double>(n_);
      return newton<float>(static_cast<float>(share), kCoarseTolerance, kMaxCoarseBoxRounds, first, bracket,
                           [&](const auto& f) {
                             for (int j = 0; j < kBoxSample; ++j) coarse_element(y[j], x[j], top, f);
                           });
    } else if constexpr (kPer * Group::size() > 64 && !std::is_same_v<T, double>) {
      return newton<float>(static_cast<float>(radius_), kCoarseTolerance, kMaxCoarseBoxRounds, first, bracket,
                           [&](const auto& f) {
                             for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
                               coarse_element(y_.at(k, i), x_.at(k, i), top, f);
                             });
                           });
    } else {
      return start;
    }
  }

  // The root with base = top.
  PYROBUST_GROUP double search() {
    double w = top_ - (total_ - radius_) / (free_ > 1 ? free_ : 1);
    if (!(w > 0 && w < top_)) w = top_ / 2;
    const double near = coarse(w);
    return whole(top_, near > 0 && near < top_ ? near : w, {0, top_});
  }

  // The a that is closest to theta, the larger of two.
  PYROBUST_GROUP double nearest(double theta) {
    double least = kLargestDouble, best = 0;
    const auto each = [&](const auto& f) {
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const double a = std::fabs(to_float(y_.at(k, i)));
        f(a, std::fabs(a - theta));
      });
    };
    each([&](double, double distance) { least = distance < least ? distance : least; });
    least = -group_.max(-least);
    each([&](double a, double distance) { best = distance <= least && a > best ? a : best; });
    return group_.max(best);
  }

  PYROBUST_GROUP T result(T y, T x, double base, double w) const {
    const double value = to_float(y), a = std::fabs(value);
    double c = (a - base) + w;
    c = c < a ? c : a;
    return with_sign(truncated<T>(clipped(c, room<true>(value, to_float(x), box_))), y);
  }

  // Writes z; true if its sum, as stored, is proven to be at most the radius.
  PYROBUST_GROUP bool written(double base, double w) {
    double sum[1] = {0};
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const T z = result(y_.at(k, i), x_.at(k, i), base, w);
      z_[i] = z;
      sum[0] += std::fabs(to_float(z));
    });
    group_.add(sum);
    if (sum[0] * (1 + sum_error(n_)) <= radius_) return true;
    if (!(sum[0] * (1 - sum_error(n_)) <= radius_)) return false;
    return sum_at_most(group_, top_, radius_, [&](const auto& f) {
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        f(std::fabs(to_float(result(y_.at(k, i), x_.at(k, i), base, w))));
      });
    });
  }

  PYROBUST_GROUP bool finish(double base, double w) {
    double back = radius_ * (sum_error(n_) + 2 * kTolerance) / static_cast<double>(n_);
    back = back > 0x1p-1074 ? back : 0x1p-1074;
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      if (written(base, w)) return true;
      // At least one step of w.
      const double next = w - back, below = w > 0 ? next_down(w) : -next_up(-w);
      w = next < below ? next : below;
      back *= 4;
    }
    return false;
  }

  Group& group_;
  const Slice<T, kPer> y_, x_;
  T* z_;
  const int64_t n_;
  const double radius_;
  const Box box_;
  double top_ = 0, total_ = 0, free_ = 0;
};

}  // namespace pyrobust::cuda

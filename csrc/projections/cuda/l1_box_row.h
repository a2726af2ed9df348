// One row of the projection onto the l1 ball within a box, by a group of threads. As on the CPU: an element y at x has
// a = |y| and room u up to the box on y's side, and the threshold theta = base - w is the root of the monotone
//   f(w) = sum of clip(a - theta, 0, u) = radius
// by Newton's method inside a bracket, halved where a step leaves it.
#pragma once

#include "projections/cuda/exact_sign.h"

namespace pyrobust::cuda {

constexpr int kMaxBoxRounds = 2500;  // halving through all exponents
constexpr int kMaxCoarseBoxRounds = 40;
constexpr int kBoxSample = 8;           // elements of a thread
constexpr double kTolerance = 0x1p-44;  // of the radius, in the search
constexpr float kCoarseTolerance = 0x1p-18f;
constexpr double kLess = 0x1p-42;  // of the radius
constexpr double kMostLess = 16;   // at most the whole radius is left out in the end
// A longer w may lose too many digits in sums of a - base over the free elements: base becomes an element near the
// threshold. Rows of n elements lose at most n^2 2^-53 w.
PYROBUST_GROUP double longest(int64_t n, double radius) {
  const double exact = 0x1p25 / (static_cast<double>(n) * static_cast<double>(n)) * radius;
  return exact < 1024 * radius ? exact : 1024 * radius;
}

struct Box {
  double lower, upper;
};

template <class Real>
struct Bracket {
  Real low, high;  // f(low) <= radius < f(high)
};

// What an element may grow to on y's side, rounded down where `down`: the difference s and its error e, s + e exact
// (Knuth's TwoSum), and s > 0 where e < 0.
template <bool down>
PYROBUST_GROUP double room(double y, double x, const Box& box) {
  const double p = y > 0 ? box.upper : x, q = y > 0 ? x : box.lower, s = p - q;
  if constexpr (down) {
    const double back = s - p, e = (p - (s - back)) - (q + back);
    if (e < 0) return next_down(s);
  }
  return s;
}

template <class T, int kPer, class Group>
class L1BoxRow {
 public:
  PYROBUST_GROUP L1BoxRow(Group& group, const T* y, const T* x, T* z, int64_t n, double radius, Box box)
      : group_(group), y_(group, y, n), x_(group, x, n), z_(z), n_(n), radius_(radius), box_(box) {}

  PYROBUST_GROUP void project() {
    if (!scan()) return fill<T, kPer>(group_, z_, n_, not_a_number<T>());
    if (radius_ > 0) {
      // No threshold needed: clipped to the box, the row may already be inside the ball.
      if (total_ * (1 - sum_error(n_)) <= radius_ && written(0, 0)) return;
      // Stored z may exceed the radius by the tolerance of the search or by rounding: repeat with a slightly smaller
      // radius.
      double less = std::is_same_v<T, double> ? kLess : 0.0;
      while (less <= kMostLess) {
        const double target = less < 1 ? radius_ * (1 - less) : 0;
        double base = top_, w = search(target);
        if (w > longest(n_, radius_)) {
          base = nearest(top_ - w);
          w = whole(target, base, w + (base - top_), {base - top_, base});
          if (std::fabs(w) > longest(n_, radius_)) {
            // With base at the smallest element not below theta, no term of the sum is negative, and w is at most the
            // radius.
            base = element_above(target);
            const double most = base < target ? base : target;
            w = whole(target, base, most, {0, most});
          }
        }
        if (written(base, w)) return;
        less = less > 0 ? 16 * less : kLess;
      }
    }
    fill<T, kPer>(group_, z_, n_, T{});
  }

 private:
  // False if an element of y is not finite, an element of x is outside the box, or the radius is invalid.
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

  // A w with f(w) close to target, starting at w; each(f): f(a - base, u) for the calling thread's elements.
  template <class Real, class Each>
  PYROBUST_GROUP Real newton(Real target, Real tolerance, int rounds, Real w, Bracket<Real> bracket, const Each& each) {
    for (int round = 0; round < rounds; ++round) {
      // f(v) = fixed + free v near w: u of the elements at their room, a - base of those strictly between.
      Real part[2] = {0, 0};
      each([&](Real below, Real u) {
        const Real c = below + w;
        part[0] += c < u ? (c > 0 ? below : 0) : u;
        part[1] += c > 0 && c < u ? 1 : 0;
      });
      group_.add(part);
      const Real excess = part[0] + part[1] * w - target;
      (excess > 0 ? bracket.high : bracket.low) = w;
      if (std::fabs(excess) <= tolerance * static_cast<Real>(radius_)) return w;
      Real next = (target - part[0]) / part[1];
      if (!(next > bracket.low && next < bracket.high)) next = bracket.low + (bracket.high - bracket.low) / 2;
      if (!(next > bracket.low && next < bracket.high)) return bracket.low;
      w = next;
    }
    return bracket.low;
  }

  PYROBUST_GROUP double whole(double target, double base, double w, Bracket<double> bracket) {
    return newton<double>(target, kTolerance, kMaxBoxRounds, w, bracket, [&](const auto& f) {
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const double y = to_float(y_.at(k, i));
        f(std::fabs(y) - base, room<false>(y, to_float(x_.at(k, i)), box_));
      });
    });
  }

  // f(a - top, u) in float32, only for a start.
  template <class F>
  PYROBUST_GROUP void coarse_element(T y, T x, float top, const F& f) const {
    const float yf = static_cast<float>(to_float(y)), xf = static_cast<float>(to_float(x));
    const float lower = static_cast<float>(box_.lower), upper = static_cast<float>(box_.upper);
    f(std::fabs(yf) - top, yf > 0 ? upper - xf : xf - lower);
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
      return newton<float>(
          static_cast<float>(radius_), kCoarseTolerance, kMaxCoarseBoxRounds, first, bracket, [&](const auto& f) {
            for_slots<kPer>(group_, n_, [&](int k, int64_t i) { coarse_element(y_.at(k, i), x_.at(k, i), top, f); });
          });
    } else {
      return start;
    }
  }

  // The root with base = top.
  PYROBUST_GROUP double search(double target) {
    if (!(start_ > 0 && start_ < top_)) {
      double w = top_ - (total_ - target) / (free_ > 1 ? free_ : 1);
      if (!(w > 0 && w < top_)) w = top_ / 2;
      const double near = coarse(w);
      start_ = near > 0 && near < top_ ? near : w;
    }
    return start_ = whole(target, top_, start_, {0, top_});
  }

  // The a that is closest to theta; of two, the larger one.
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

  // The smallest a that is not below theta. Sums at a theta of the row's own dtype have no cancellation: bisection on
  // its bits leads to two neighbours around the root.
  PYROBUST_GROUP double element_above(double target) {
    using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
    using Bits = std::conditional_t<std::is_same_v<T, double>, uint64_t, uint32_t>;
    Bits low = 0, high = bits<Bits>(static_cast<Real>(top_));
    while (high - low > 1) {
      const Bits middle = low + (high - low) / 2;
      const double theta = bits<Real>(middle);
      double sum[1] = {0};
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const double y = to_float(y_.at(k, i)), c = std::fabs(y) - theta;
        const double u = room<false>(y, to_float(x_.at(k, i)), box_);
        sum[0] += c > 0 ? (c < u ? c : u) : 0;
      });
      group_.add(sum);
      (sum[0] > target ? low : high) = middle;
    }
    const double theta = bits<Real>(high);
    double above = top_;
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const double a = std::fabs(to_float(y_.at(k, i)));
      above = a >= theta && a < above ? a : above;
    });
    return -group_.max(-above);
  }

  PYROBUST_GROUP T result(T y, T x, double base, double w, Truncation<T>& truncation) const {
    const double value = to_float(y), a = std::fabs(value), u = room<true>(value, to_float(x), box_);
    const double c = (a - base) + w, cap = a < u ? a : u;
    return with_sign(truncation(c > 0 ? (c < cap ? c : cap) : 0, cap), y);
  }

  // Writes z and returns whether its sum, as stored, is proved to be at most the radius.
  PYROBUST_GROUP bool written(double base, double w) {
    double sum[1] = {0};
    Truncation<T> truncation;
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const T z = result(y_.at(k, i), x_.at(k, i), base, w, truncation);
      z_[i] = z;
      sum[0] += std::fabs(to_float(z));
    });
    group_.add(sum);
    if (sum[0] * (1 + sum_error(n_)) <= radius_) return true;
    if (!(sum[0] * (1 - sum_error(n_)) <= radius_)) return false;
    return sum_at_most(group_, top_, radius_, [&](const auto& f) {
      Truncation<T> again;
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        f(std::fabs(to_float(result(y_.at(k, i), x_.at(k, i), base, w, again))));
      });
    });
  }

  Group& group_;
  const Slice<T, kPer> y_, x_;
  T* z_;
  const int64_t n_;
  const double radius_;
  const Box box_;
  double top_ = 0, total_ = 0, free_ = 0;
  double start_ = 0;  // of the next search
};

}  // namespace pyrobust::cuda

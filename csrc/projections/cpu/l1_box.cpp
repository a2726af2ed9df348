// The threshold theta = base - w is the root of the piecewise-linear, monotone
//   f(w) = sum of clip(a - theta, 0, u) = radius
// by Newton's method inside a bracket, halved where a step leaves it (f is neither convex nor concave). A strided
// sample of the row gives a narrow first bracket; one pass then collects the few elements that change their state
// (zero, free or at their room) within the bracket, and the search continues among these.
#include "projections/cpu/l1_box.h"

#include <type_traits>
#include <vector>

#include "common/bits.h"
#include "common/row_loop.h"
#include "projections/cpu/l1_box_float32.h"
#include "projections/cpu/l1_box_kernels.h"
#include "projections/cpu/l1_box_newton.h"

namespace pyrobust::cpu {
namespace {

constexpr double kLess = 0x1p-42;  // of the radius
constexpr int64_t kSample = 256;
constexpr double kSampleTolerance = 0.15;
constexpr double kUncertain = 0.5;  // relative to the radius: the usual error of a sample is smaller
constexpr int64_t kRoom = 2048;     // undecided elements on the stack, 32 KiB
constexpr int64_t kFew = kRoom / 4;
// Largest rounding error of the search's sums, relative to the radius; if it is exceeded, base moves to the element
// above theta.
constexpr double kLost = 0x1p-28;
constexpr double kHuge = 1024;  // w, in units of the radius, above which even the number of free elements is uncertain

template <class T>
class Row {
 public:
  Row(const T* y, const T* x, T* z, int64_t n, double radius, Box box)
      : kernels_(l1_box_kernels<T>()),
        y_(y),
        x_(x),
        z_(z),
        n_(n),
        radius_(radius),
        box_(box),
        chunks_((n + kChunk - 1) / kChunk) {
    if (chunks_ > 1) partial_.resize(static_cast<size_t>(chunks_));
  }

  template <class Each>
  void project(const Each& each, int64_t i, FirstRow& bad_y, FirstRow& bad_x) {
    scan(each);
    if (scan_.bad_y != 0) return bad_y.note(i);
    if (scan_.bad_x != 0) return bad_x.note(i);
    if (radius_ == 0) {
      std::fill(z_, z_ + n_, T{});
      return;
    }
    // No threshold needed: clipped to the box, the row may already be inside the ball.
    if (scan_.total * (1 - sum_error(n_)) <= radius_ && written(each, 0, 0)) return;
    // Stored z may exceed the radius by the tolerance of the search or by rounding: repeat with a slightly smaller
    // radius.
    for (double less = std::is_same_v<T, double> ? kLess : 0.0;; less = std::max(kLess, 16 * less)) {
      const Threshold t = solve(each, radius_ * std::max(0.0, 1 - less));
      if (written(each, t.base, t.w)) return;
    }
  }

 private:
  struct Partial {
    BoxScan scan;
    BoxValue value;
    double sum;
  };

  Partial& partial(int64_t chunk) { return chunks_ > 1 ? partial_[static_cast<size_t>(chunk)] : single_; }
  int64_t size(int64_t chunk) const { return std::min(kChunk, n_ - chunk * kChunk); }

  template <class Each>
  void scan(const Each& each) {
    each(chunks_, [&](int64_t c) { partial(c).scan = kernels_.scan(y_ + c * kChunk, x_ + c * kChunk, size(c), box_); });
    scan_ = partial(0).scan;
    for (int64_t c = 1; c < chunks_; ++c) {
      const BoxScan& s = partial(c).scan;
      scan_ = {std::max(scan_.top, s.top), scan_.total + s.total, scan_.free + s.free, scan_.bad_x + s.bad_x,
               scan_.bad_y + s.bad_y};
    }
  }

  template <class Each>
  BoxValue evaluate(const Each& each, double base, double w) {
    each(chunks_, [&](int64_t c) {
      partial(c).value = kernels_.evaluate(y_ + c * kChunk, x_ + c * kChunk, size(c), box_, base, w);
    });
    BoxValue value{0, 0};
    for (int64_t c = 0; c < chunks_; ++c) {
      value.fixed += partial(c).value.fixed;
      value.free += partial(c).value.free;
    }
    return value;
  }

  struct Threshold {
    double base, w;
  };

  template <class Each>
  Threshold solve(const Each& each, double target) {
    const double top = scan_.top, w = search(each, top, target);
    // Sums of a - top = a - theta - w over the free elements lose digits where w is large compared to a - theta.
    const auto lost = [&](int64_t free) {
      const auto terms = static_cast<double>(std::min(n_, kChunk) / 8 + chunks_ + 16);
      return w * static_cast<double>(free) * terms * 0x1p-53 > kLost * radius_;
    };
    if (w <= kHuge * radius_ && (!lost(n_) || !lost(evaluate(each, top, w).free))) return {top, w};
    // With base at the smallest element not below theta, no term of the sum is negative, and w is at most the radius.
    const double base = element_above(each, target), most = std::min(base, target);
    Bracket bracket{0, most};
    return {base, newton([&](double at) { return evaluate(each, base, at); }, target, kTolerance, most, bracket)};
  }

  // The smallest element that is not below theta. Sums at a theta of the row's own dtype have no cancellation:
  // bisection on its bits leads to two neighbours around the root.
  template <class Each>
  double element_above(const Each& each, double target) {
    using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
    using Bits = std::conditional_t<std::is_same_v<T, double>, uint64_t, uint32_t>;
    Bits low = 0, high = bits<Bits>(static_cast<Real>(scan_.top));
    while (high - low > 1) {
      const Bits middle = low + (high - low) / 2;
      (evaluate(each, bits<Real>(middle), 0).fixed > target ? low : high) = middle;
    }
    const double theta = bits<Real>(high);
    double above = scan_.top;
    for (int64_t i = 0; i < n_; ++i) {
      const double a = std::fabs(static_cast<double>(to_float(y_[i])));
      if (a >= theta) above = std::min(above, a);
    }
    return above;
  }

  template <class Each>
  double search(const Each& each, double base, double target) {
    const auto whole = [&](double at) { return evaluate(each, base, at); };
    // Newton's step from theta = 0.
    double w = base - (scan_.total - target) / static_cast<double>(std::max<int64_t>(1, scan_.free));
    if (!(w > 0 && w < base)) w = base / 2;
    Bracket bracket{0, base};
    if (chunks_ == 1 && n_ >= 2 * kSample) {
      // A row with few nonzero elements is searched as a whole, any other row only near the threshold of a sample.
      Bracket guess = bracket;
      if (scan_.free <= kFew || (guess = sampled(base, target, w)).low < guess.high)
        if (within(guess, base, target, w)) return w;
    }
    return newton(whole, target, kTolerance, w, bracket);
  }

  // Estimates a bracket of the root from a strided sample, with its middle in w; empty if the sample is too small.
  Bracket sampled(double base, double target, double& w) const {
    T y[kSample], x[kSample];
    for (int64_t i = 0; i < kSample; ++i) {
      y[i] = y_[i * n_ / kSample];
      x[i] = x_[i * n_ / kSample];
    }
    const double share = target * static_cast<double>(kSample) / static_cast<double>(n_);
    const auto sample = [&](double at) { return kernels_.evaluate(y, x, kSample, box_, base, at); };
    if (sum_at(sample(base), base) < 2 * share) return {0, 0};
    Bracket around{0, base};
    w = newton(sample, share, kSampleTolerance, w, around);
    // Extends to both sides by the uncertainty of the sum, divided by its slope.
    const double slope = static_cast<double>(std::max<int64_t>(1, sample(w).free));
    return {std::max(0.0, w - kUncertain * share / slope), std::min(base, w + kUncertain * share / slope)};
  }

  // Searches for the root, from w on, among the elements that change their state within the guess; false if the root is
  // elsewhere, or if there are too many of them.
  bool within(Bracket guess, double base, double target, double& w) const {
    double a[kRoom], u[kRoom];
    const BoxUndecided open = kernels_.open(y_, x_, n_, box_, base, guess.low, guess.high, a, u, kRoom);
    if (open.count < 0) return false;
    const auto f = [&](double at) {
      const BoxValue value = kernels_.evaluate_open(a, u, open.count, at);
      return BoxValue{value.fixed + open.throughout.fixed, value.free + open.throughout.free};
    };
    if (sum_at(f(guess.low), guess.low) > target || sum_at(f(guess.high), guess.high) <= target) return false;
    w = newton(f, target, kTolerance, w, guess);
    return true;
  }

  // Writes z and returns whether its sum, as stored, is proved to be at most the radius.
  template <class Each>
  bool written(const Each& each, double base, double w) {
    each(chunks_, [&](int64_t c) {
      const int64_t at = c * kChunk;
      partial(c).sum = kernels_.finish(y_ + at, x_ + at, z_ + at, size(c), box_, base, w);
    });
    double sum = 0;
    for (int64_t c = 0; c < chunks_; ++c) sum += partial(c).sum;
    return sum * (1 + sum_error(n_)) <= radius_ || compare_sum(z_, n_, radius_) <= 0;
  }

  const L1BoxKernels<T>& kernels_;
  const T* y_;
  const T* x_;
  T* z_;
  const int64_t n_;
  const double radius_;
  const Box box_;
  const int64_t chunks_;
  std::vector<Partial> partial_;
  Partial single_{};
  BoxScan scan_{};
};

}  // namespace

template <class T>
BadRow project_l1_box(const T* y, const T* x, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                      int64_t n, double lower, double upper, int threads, const ParallelFor& parallel_for) {
  FirstRow bad_y(rows), bad_x(rows);
  const auto row = [&](int64_t i, const auto& each) {
    Row<T>(y + i * n, x + i * n, z + i * n, n, radius[i * radius_stride], {lower, upper})
        .project(each, i, bad_y, bad_x);
  };
  const FloatBox box{static_cast<float>(lower), static_cast<float>(upper)};
  const bool fast = static_cast<double>(box.lower) == lower && static_cast<double>(box.upper) == upper;
  if constexpr (std::is_same_v<T, float>) {
    if (fast && n <= kShortRow) {
      const auto open = [&](int64_t first, int count) {
        const int64_t at = first * n;
        return l1_box_float32_kernels().short_rows(y + at, x + at, z + at, radius + first * radius_stride,
                                                   radius_stride, n, count, box);
      };
      for_short_rows(rows, n, parallel_for, open, [&](int64_t i) { row(i, each_in_turn); });
      return {bad_y.row(), bad_x.row()};
    }
  }
  for_rows(rows, n, threads, parallel_for, [&](int64_t i, const auto& each) {
    if constexpr (std::is_same_v<T, float>)
      if (fast && Float32BoxRow(y + i * n, x + i * n, z + i * n, n, radius[i * radius_stride], box).project(each))
        return;
    row(i, each);
  });
  return {bad_y.row(), bad_x.row()};
}

#define PYROBUST_PROJECT_L1_BOX(T)                                                                                    \
  template BadRow project_l1_box<T>(const T*, const T*, T*, const double*, int64_t, int64_t, int64_t, double, double, \
                                    int, const ParallelFor&);
PYROBUST_PROJECT_L1_BOX(float)
PYROBUST_PROJECT_L1_BOX(double)
PYROBUST_PROJECT_L1_BOX(Half)
PYROBUST_PROJECT_L1_BOX(BFloat16)
#undef PYROBUST_PROJECT_L1_BOX

}  // namespace pyrobust::cpu

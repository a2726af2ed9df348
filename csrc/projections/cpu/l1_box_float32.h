// Projection of float32 rows onto the l1 ball within a box, in float32 arithmetic. Rounding errors only move the
// bracket of the search, or are covered by a smaller sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/directed_rounding.h"
#include "common/row_loop.h"
#include "projections/cpu/l1_box_kernels.h"
#include "projections/cpu/l1_box_newton.h"

namespace pyrobust::cpu {

class Float32BoxRow {
 public:
  Float32BoxRow(const float* y, const float* x, float* z, int64_t n, double radius, FloatBox box)
      : y_(y), x_(x), z_(z), n_(n), radius_(radius), box_(box), chunks_((n + kChunk - 1) / kChunk) {
    if (chunks_ > 1) partial_.resize(static_cast<size_t>(chunks_));
  }

  // Returns false, with z unspecified, for a bad row, for a threshold that is huge compared to the radius or takes too
  // many steps, and if the measured sum is too large.
  template <class Each>
  bool project(const Each& each) {
    if (!(radius_ >= kSmallestRadius && radius_ <= kLargestFloat32Radius)) return false;
    if (size(chunks_ - 1) < kLeast) return false;  // no room for its undecided elements
    Guess guess = sampled();
    double further = kFurther;
    for (int attempt = 0; attempt < kAttempts; ++attempt, further *= kFurther) {
      if (!open(each, guess.low, guess.high)) return false;
      const double least = sum_, most = share(each, guess.low, kernels_.evaluate).sum;
      const auto slope = static_cast<double>(std::max<int64_t>(1, linear_ + count_));
      if (least > target_) {
        guess = {guess.high, up(guess.high + further * (least - target_) / slope), guess.high};
      } else if (most < target_ * (1 + kUnsure)) {
        // Nearly all of these are inside without a threshold, as their sum shows.
        if (guess.low == 0) return written(each, 0);
        const double lower = guess.low - further * (target_ * (1 + kUnsure) - most) / slope;
        guess = {lower > 0 ? static_cast<float>(lower) : 0.0f, guess.low, guess.low};
      } else {
        return written(each, solve(each, guess));
      }
    }
    return false;
  }

 private:
  static constexpr double kSmallestRadius = 0x1p-100, kLargestFloat32Radius = 0x1p100;
  static constexpr double kMargin = 0x1p-22;
  // Exceeds the error of float32 sums: the row is certainly outside; other rows are left to the exact search.
  static constexpr double kUnsure = 0x1p-19;
  static constexpr double kNear = 0x1p-10;  // of the radius, in the search in float32
  static constexpr int kAttempts = 8;
  static constexpr double kFurther = 3;  // how much further each Newton step out of a bracket without the root goes
  // A sample of a part of the row, in runs of four neighbours.
  static constexpr int64_t kPart = 8, kRun = 4, kLeast = 64, kMost = 4096, kBlock = 16, kFew = 16;
  static constexpr double kSampleTolerance = 0.1;
  // The relative error of a sample's sum of k free elements is about sqrt(2 / k); the bracket extends this many times
  // that to both sides.
  static constexpr double kSpread = 2.5 * 1.4142135623730951;

  struct Guess {
    float low, high;  // of theta
    double theta;     // starting point
  };
  struct Partial {
    Float32BoxUndecided open;
    BoxShare share;
    double sum;
  };

  Partial& partial(int64_t chunk) { return chunks_ > 1 ? partial_[static_cast<size_t>(chunk)] : single_; }
  int64_t size(int64_t chunk) const { return std::min(kChunk, n_ - chunk * kChunk); }
  // The output's own memory holds a and then u of the undecided elements.
  float* open_a(int64_t chunk) const { return z_ + chunk * kChunk; }
  float* open_u(int64_t chunk) const { return open_a(chunk) + size(chunk) / 2; }

  static float up(double a) { return round_toward<float>(a, INFINITY); }

  // Estimates the root from a sample.
  Guess sampled() const {
    const int64_t length = std::clamp(n_ / kPart, kLeast, kMost) / kBlock * kBlock;
    const int64_t runs = length / kRun, apart = n_ / runs;
    float a[kMost], u[kMost];
    for (int64_t i = 0; i < runs; ++i) {
      const int64_t at = i * apart;
      std::copy(y_ + at, y_ + at + kRun, a + i * kRun);
      std::copy(x_ + at, x_ + at + kRun, u + i * kRun);
    }
    const double top = kernels_.rooms(a, u, length, box_);
    const double target = target_ * static_cast<double>(length) / static_cast<double>(n_);
    const auto f = [&](double theta) { return kernels_.estimate(a, u, length, static_cast<float>(theta)); };
    const BoxShare whole = f(0);
    // A row with few nonzero elements is searched as a whole.
    if (whole.free < kFew && whole.sum < 2 * target) return {0, std::numeric_limits<float>::max(), 0};
    Bracket bracket{0, top};
    double theta = 0;
    if (whole.sum > target) {
      const auto from_top = [&](double w) { return value(f(top - w), w); };
      const double step = (whole.sum - target) / static_cast<double>(whole.free);
      theta = top - newton(from_top, target, kSampleTolerance, std::max(0.0, top - step), bracket);
    }
    const auto free = std::max<int64_t>(1, f(theta).free);
    const double off = kSpread * target / (static_cast<double>(free) * std::sqrt(static_cast<double>(free)));
    return {theta > off ? static_cast<float>(theta - off) : 0.0f, up(theta + off), theta};
  }

  static BoxValue value(const BoxShare& share, double w) {
    return {share.sum - static_cast<double>(share.free) * w, share.free};
  }

  // Collects the elements that change their state within the bracket; false if the row is bad or there are too many of
  // them.
  template <class Each>
  bool open(const Each& each, float low, float high) {
    each(chunks_, [&](int64_t c) {
      partial(c).open =
          kernels_.open(y_ + c * kChunk, x_ + c * kChunk, size(c), box_, low, high, open_a(c), open_u(c), size(c) / 2);
    });
    high_ = high, sum_ = 0, linear_ = 0, count_ = 0;
    for (int64_t c = 0; c < chunks_; ++c) {
      const Float32BoxUndecided& part = partial(c).open;
      if (!part.good || part.count < 0) return false;
      sum_ += part.at_high, linear_ += part.linear, count_ += part.count;
    }
    throughout_ = 0;
    throughout_ = sum_ - share(each, high, kernels_.evaluate).sum;
    return true;
  }

  // The sum at a theta in the bracket, by kernels_.evaluate or kernels_.estimate.
  template <class Each, class Theta, class Sum>
  BoxShare share(const Each& each, Theta theta, const Sum& sum) {
    each(chunks_, [&](int64_t c) { partial(c).share = sum(open_a(c), open_u(c), partial(c).open.count, theta); });
    BoxShare found{throughout_ + static_cast<double>(linear_) * (high_ - static_cast<double>(theta)), linear_};
    for (int64_t c = 0; c < chunks_; ++c) {
      found.sum += partial(c).share.sum;
      found.free += partial(c).share.free;
    }
    return found;
  }

  template <class Each>
  double solve(const Each& each, const Guess& guess) {
    const double base = guess.low;
    Bracket bracket{base - guess.high, 0};
    const auto near = [&](double w) { return value(share(each, static_cast<float>(base - w), kernels_.estimate), w); };
    const auto exact = [&](double w) { return value(share(each, base - w, kernels_.evaluate), w); };
    Bracket around = bracket;
    const double w = newton(near, target_, kNear, base - guess.theta, around);
    return base - newton(exact, target_, kTolerance, w, bracket);
  }

  template <class Each>
  bool written(const Each& each, double theta) {
    if (static_cast<double>(n_) * theta * 0x1p-47 > 0x1p-24 * radius_) return false;
    const auto high = static_cast<float>(theta);
    const auto low = round_toward<float>(theta - static_cast<double>(high), INFINITY);
    each(chunks_, [&](int64_t c) {
      const int64_t at = c * kChunk;
      partial(c).sum = kernels_.finish(y_ + at, x_ + at, z_ + at, size(c), box_, high, low);
    });
    double sum = 0;
    for (int64_t c = 0; c < chunks_; ++c) sum += partial(c).sum;
    return sum * (1 + sum_error(n_)) <= radius_;
  }

  const L1BoxFloat32Kernels& kernels_ = l1_box_float32_kernels();
  const float* y_;
  const float* x_;
  float* z_;
  const int64_t n_;
  const double radius_;
  const FloatBox box_;
  const int64_t chunks_;
  const double target_ = radius_ * (1 - kMargin);
  std::vector<Partial> partial_;
  Partial single_{};
  double high_ = 0, sum_ = 0, throughout_ = 0;
  int64_t linear_ = 0, count_ = 0;
};

}  // namespace pyrobust::cpu

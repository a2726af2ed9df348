// Projection onto the l1 ball of float32 rows whose elements are not huge compared to the radius: most of the search
// and the last pass run in float32, and a smaller sum covers their rounding errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/directed_rounding.h"
#include "common/row_loop.h"
#include "projections/cpu/simplex_l1_kernels.h"

namespace pyrobust::cpu {

class Float32Row {
 public:
  Float32Row(const float* v, float* z, int64_t n, double radius)
      : v_(v), z_(z), n_(n), radius_(radius), chunks_((n + kChunk - 1) / kChunk) {
    if (chunks_ > 1) kept_.resize(static_cast<size_t>(chunks_));
  }

  // Returns false, with z unspecified, for a row that is inside or nearly inside the ball, not finite or huge, and if
  // the measured sum is too large.
  template <class Each>
  bool project(const Each& each) {
    if (!(radius_ >= kSmallestRadius)) return false;
    each(chunks_, [&](int64_t c) { kept(c).scan = kernels_.scan(v_ + c * kChunk, size(c)); });
    double total = 0;
    for (int64_t c = 0; c < chunks_; ++c) {
      top_ = std::max(top_, static_cast<double>(kept(c).scan.top));
      total += kept(c).scan.total;
    }
    const auto n = static_cast<double>(n_);
    if (!(total * (1 - error_) > radius_ && n * top_ * 0x1p-47 <= 0x1p-24 * radius_)) return false;
    // A threshold that is certainly not above the exact one.
    const double theta = prune(each, total);
    if (theta < 0) return false;
    double reach = top_ - theta;
    Below set = below(each, reach);
    for (int64_t before = -1; set.count != before && set.count > 0;) {
      before = set.count;
      reach = std::min(reach, (radius_ + set.total) / static_cast<double>(set.count));
      set = below(each, reach);
    }
    const auto count = static_cast<double>(set.count);
    if (!(count * reach * (count / 16 + 16) * 0x1p-53 <= 0x1p-27 * radius_)) return false;
    // z = (a - high) - low is within two roundings of a - threshold: 2^-23 of the sum. The margin covers twice that,
    // the second half for the errors bounded above.
    const double threshold = top_ - (reach - kMargin * radius_ / count);
    const auto high = static_cast<float>(threshold);
    const auto low = round_toward<float>(threshold - static_cast<double>(high), INFINITY);
    each(chunks_,
         [&](int64_t c) { kept(c).sum = kernels_.finish(v_ + c * kChunk, z_ + c * kChunk, size(c), high, low); });
    double sum = 0;
    for (int64_t c = 0; c < chunks_; ++c) sum += kept(c).sum;
    return sum * (1 + sum_error(n_)) <= radius_;
  }

 private:
  static constexpr double kSmallestRadius = 0x1p-100, kMargin = 0x1p-22;
  static constexpr int kRounds = 40;

  struct Kept {
    Float32Scan scan;
    Float32Kept fast;
    Below below;
    double sum;
  };

  Kept& kept(int64_t chunk) { return chunks_ > 1 ? kept_[static_cast<size_t>(chunk)] : single_; }
  int64_t size(int64_t chunk) const { return std::min(kChunk, n_ - chunk * kChunk); }

  // Newton's steps in float32, each a little short, as long as they drop many elements; the threshold, or -1.
  template <class Each>
  double prune(const Each& each, double total) {
    int64_t count = n_;
    double theta = 0;
    for (int round = 0; round < kRounds; ++round) {
      const float next = round_toward<float>((total * (1 - error_) - radius_) / static_cast<double>(count), 0.0);
      if (!(next > theta)) break;
      theta = next;
      const int64_t before = count;
      each(chunks_, [&](int64_t c) {
        float* to = z_ + c * kChunk;
        kept(c).fast =
            kernels_.keep(round == 0 ? v_ + c * kChunk : to, to, round == 0 ? size(c) : kept(c).fast.count, next);
      });
      total = 0, count = 0;
      for (int64_t c = 0; c < chunks_; ++c) {
        total += kept(c).fast.total;
        count += kept(c).fast.count;
      }
      if (count == 0) return -1;
      if ((before - count) * 4 < before) break;
    }
    if (theta == 0) return -1;
    for (int64_t c = 0; c < chunks_; ++c) kept(c).below.count = kept(c).fast.count;
    return theta;
  }

  template <class Each>
  Below below(const Each& each, double reach) {
    each(chunks_, [&](int64_t c) {
      float* packed = z_ + c * kChunk;
      kept(c).below = ball_.keep(packed, packed, kept(c).below.count, top_, reach);
    });
    Below sum{0, 0};
    for (int64_t c = 0; c < chunks_; ++c) {
      sum.count += kept(c).below.count;
      sum.total += kept(c).below.total;
    }
    return sum;
  }

  const SimplexL1Float32Kernels& kernels_ = simplex_l1_float32_kernels();
  const SimplexL1Kernels<float>& ball_ = simplex_l1_kernels<float>().ball;
  const float* v_;
  float* z_;
  const int64_t n_;
  const double radius_;
  const int64_t chunks_;
  const double error_ = float32_error(std::min(n_, kChunk));
  std::vector<Kept> kept_;
  Kept single_{};
  double top_ = 0;
};

}  // namespace pyrobust::cpu

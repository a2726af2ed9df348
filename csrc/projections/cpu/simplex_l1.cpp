// The threshold of a row is the root of a convex piecewise-linear function of reach = top - theta,
//   sum over t < reach of (reach - t) = radius,   t = top - a >= 0,
// found by Newton's method from the right: every step solves the equation for the remaining elements and drops those
// beyond the new reach (Michelot 1986; Condat 2016). The survivors are packed into the output's own memory.
#include "projections/cpu/simplex_l1.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/row_loop.h"
#include "projections/cpu/norm_balls.h"
#include "projections/cpu/simplex_l1_float32.h"
#include "projections/cpu/simplex_l1_kernels.h"

namespace pyrobust::cpu {
namespace {

constexpr int kMaxRounds = 1000;

template <class T>
class Row {
 public:
  Row(const SimplexL1Kernels<T>& kernels, const T* v, T* z, int64_t n, double radius, bool absolute)
      : kernels_(kernels),
        v_(v),
        z_(z),
        n_(n),
        radius_(radius),
        absolute_(absolute),
        chunks_((n + kChunk - 1) / kChunk) {
    if (chunks_ > 1) partial_.resize(static_cast<size_t>(chunks_));
  }

  // False where an element is not finite. each(chunks, f): f(chunk) for all, in any order.
  template <class Each>
  bool project(const Each& each) {
    if (!scan(each)) return false;
    if (absolute_ && inside()) {
      std::copy(v_, v_ + n_, z_);
      return true;
    }
    if (radius_ == 0) {
      std::fill(z_, z_ + n_, T{});
      return true;
    }
    const Below support = search(each);
    finish(each, support);
    return true;
  }

 private:
  struct Partial {
    Scan scan;
    Below below;
    double sum;
  };

  Partial& partial(int64_t chunk) { return chunks_ > 1 ? partial_[static_cast<size_t>(chunk)] : single_; }
  int64_t size(int64_t chunk) const { return std::min(kChunk, n_ - chunk * kChunk); }

  template <class Each>
  bool scan(const Each& each) {
    each(chunks_, [&](int64_t c) { partial(c).scan = kernels_.scan(v_ + c * kChunk, size(c)); });
    top_ = partial(0).scan.top;
    total_ = 0;
    for (int64_t c = 0; c < chunks_; ++c) {
      top_ = std::max(top_, partial(c).scan.top);
      total_ += partial(c).scan.total;
    }
    if (std::isfinite(total_)) return true;
    // Only float64 elements can be finite and yet have a sum that is not.
    return std::all_of(v_, v_ + n_, [](T value) { return std::isfinite(to_float(value)); });
  }

  bool inside() const {
    if (!(total_ < INFINITY)) return compare_sum(v_, n_, radius_) <= 0;
    if (total_ * (1 - sum_error(n_)) > radius_) return false;
    return total_ * (1 + sum_error(n_)) <= radius_ || compare_sum(v_, n_, radius_) <= 0;
  }

  // The elements with t < reach, packed: from the whole row, or from the elements packed before.
  template <class Each>
  Below below(const Each& each, double reach, bool whole) {
    each(chunks_, [&](int64_t c) {
      T* kept = z_ + c * kChunk;
      const int64_t n = whole ? size(c) : partial(c).below.count;
      partial(c).below = kernels_.keep(whole ? v_ + c * kChunk : kept, kept, n, top_, reach);
    });
    Below sum{0, 0};
    for (int64_t c = 0; c < chunks_; ++c) {
      sum.count += partial(c).below.count;
      sum.total += partial(c).below.total;
    }
    return sum;
  }

  double reach_for(const Below& set) const {
    return std::min(radius_, (radius_ + set.total) / static_cast<double>(set.count));
  }

  template <class Each>
  Below search(const Each& each) {
    // The start: the solution for all elements or, if smaller, the radius, which is the solution for the largest alone.
    reach_ = std::min(radius_, top_ - (total_ - radius_) / static_cast<double>(n_));
    if (!(reach_ > 0)) reach_ = radius_;
    Below set = below(each, reach_, true);
    // Rounding may have put the start below the root, or far from it in rows of huge elements: then everything below the
    // radius is taken.
    const double excess = static_cast<double>(set.count) * reach_ - set.total - radius_;
    if (!(excess >= -1e-9 * radius_) && reach_ < radius_) {
      reach_ = radius_;
      set = below(each, reach_, true);
    }
    for (int round = 0; round < kMaxRounds; ++round) {
      const double next = reach_for(set);
      if (!(next < reach_)) break;
      reach_ = next;
      const int64_t before = set.count;
      set = below(each, reach_, false);
      if (set.count == before) break;
    }
    reach_ = reach_for(set);
    return set;
  }

  // Writes z until its sum, as stored, is proven to be at most the radius.
  template <class Each>
  void finish(const Each& each, const Below& support) {
    const double unit = radius_ * sum_error(n_) / static_cast<double>(std::max<int64_t>(1, support.count));
    // A little less than the radius: float64 sums of long rows would otherwise never decide.
    if (std::is_same_v<T, double> && n_ > kShortRow) reach_ -= 2 * unit;
    for (double back = std::max(2 * unit, 0x1p-1074);; back *= 4) {
      each(chunks_, [&](int64_t c) {
        partial(c).sum = kernels_.finish(v_ + c * kChunk, z_ + c * kChunk, size(c), top_, reach_);
      });
      double sum = 0;
      for (int64_t c = 0; c < chunks_; ++c) sum += partial(c).sum;
      if (sum * (1 + sum_error(n_)) <= radius_ || compare_sum(z_, n_, radius_) <= 0) return;
      reach_ = std::max(0.0, std::min(reach_ - back, std::nextafter(reach_, 0.0)));
    }
  }

  const SimplexL1Kernels<T>& kernels_;
  const T* v_;
  T* z_;
  const int64_t n_;
  const double radius_;
  const bool absolute_;
  const int64_t chunks_;
  std::vector<Partial> partial_;
  Partial single_{};
  double top_ = 0, total_ = 0, reach_ = 0;
};

}  // namespace

template <class T>
int64_t project_l1(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows, int64_t n,
                   bool absolute, int threads, const ParallelFor& parallel_for) {
  if (absolute && n == 1)  // the ball is an interval
    return project_norm_ball(NormBall::kLinf, v, z, radius, radius_stride, rows, n, threads, parallel_for);
  const SimplexL1Kernels<T>& kernels = absolute ? simplex_l1_kernels<T>().ball : simplex_l1_kernels<T>().simplex;
  FirstRow bad(rows);
  const auto row = [&](int64_t i, const auto& each) {
    if constexpr (std::is_same_v<T, float>)
      if (absolute && n > kShortRow && Float32Row(v + i * n, z + i * n, n, radius[i * radius_stride]).project(each))
        return;
    if (!Row<T>(kernels, v + i * n, z + i * n, n, radius[i * radius_stride], absolute).project(each)) bad.note(i);
  };
  if (n <= kShortRow) {
    const auto open = [&](int64_t first, int count) {
      return kernels.short_rows(v + first * n, z + first * n, radius + first * radius_stride, radius_stride, n, count);
    };
    for_short_rows(rows, n, parallel_for, open, [&](int64_t i) { row(i, each_in_turn); });
  } else {
    for_rows(rows, n, threads, parallel_for, row);
  }
  return bad.row();
}

#define PYROBUST_PROJECT_L1(T) \
  template int64_t project_l1<T>(const T*, T*, const double*, int64_t, int64_t, int64_t, bool, int, const ParallelFor&);
PYROBUST_PROJECT_L1(float)
PYROBUST_PROJECT_L1(double)
PYROBUST_PROJECT_L1(Half)
PYROBUST_PROJECT_L1(BFloat16)
#undef PYROBUST_PROJECT_L1

}  // namespace pyrobust::cpu

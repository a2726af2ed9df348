#include "projections/cpu/norm_balls.h"

#include <vector>

#include "common/row_loop.h"
#include "projections/cpu/norm_balls_kernels.h"

namespace pyrobust::cpu {
namespace {

// The power of two that brings a positive number to about 1, so that squares neither overflow nor vanish.
double to_about_one(double a) { return std::ldexp(1.0, std::clamp(-std::ilogb(a), -1000, 1000)); }

template <class T>
class Row {
 public:
  Row(const T* v, T* z, int64_t n, double radius)
      : kernels_(norm_ball_kernels<T>()),
        v_(v),
        z_(z),
        n_(n),
        radius_(radius),
        chunks_((n + kChunk - 1) / kChunk),
        partial_(static_cast<size_t>(chunks_)) {}

  // False where an element is not finite.
  template <class Each>
  bool project(NormBall ball, const Each& each) {
    each(chunks_, [&](int64_t c) { partial(c).largest = kernels_.largest(v_ + c * kChunk, size(c)); });
    double top = 0;
    for (int64_t c = 0; c < chunks_; ++c) {
      if (!partial(c).largest.finite) return false;
      top = std::max(top, partial(c).largest.top);
    }
    if (ball == NormBall::kLinf) {
      each(chunks_, [&](int64_t c) { kernels_.clip(v_ + c * kChunk, z_ + c * kChunk, size(c), radius_); });
    } else if (top == 0) {
      std::copy(v_, v_ + n_, z_);
    } else if (radius_ == 0) {
      std::fill(z_, z_ + n_, T{});
    } else {
      project_l2(each, top);
    }
    return true;
  }

 private:
  struct Partial {
    Largest largest;
    double sum;
  };

  Partial& partial(int64_t chunk) { return partial_[static_cast<size_t>(chunk)]; }
  int64_t size(int64_t chunk) const { return std::min(kChunk, n_ - chunk * kChunk); }

  template <class Each>
  double squares(const Each& each, const T* row, double scale) {
    each(chunks_, [&](int64_t c) { partial(c).sum = kernels_.squares(row + c * kChunk, size(c), scale); });
    double sum = 0;
    for (int64_t c = 0; c < chunks_; ++c) sum += partial(c).sum;
    return sum;
  }

  // Whether the sum of squares is at most radius^2, exactly: by a rounded sum where that decides.
  template <class Each>
  bool inside(const Each& each, const T* row) {
    const double scale = to_about_one(radius_);
    const double sum = squares(each, row, scale), bound = (radius_ * scale) * (radius_ * scale);
    const double error = sum_error(n_ + 8);
    // Underflow loses less than 2^-1022 per square.
    if (sum * (1 + error) + static_cast<double>(n_) * 0x1p-1022 <= bound * (1 - error)) return true;
    if (sum * (1 - error) > bound * (1 + error)) return false;
    ExactSum exact;
    for (int64_t i = 0; i < n_; ++i) {
      const double value = to_float(row[i]);
      exact.add_product(value, value);
    }
    exact.add_product(-radius_, radius_);
    return exact.sign() <= 0;
  }

  template <class Each>
  void project_l2(const Each& each, double top) {
    if (top <= radius_ && inside(each, v_)) {
      std::copy(v_, v_ + n_, z_);
      return;
    }
    const double scale = to_about_one(top);
    double factor = radius_ / std::sqrt(squares(each, v_, scale));
    // A little less than the radius: float64 products are rounded to nearest, and their sum of squares would never
    // decide.
    if (std::is_same_v<T, double>) factor *= 1 - sum_error(n_ + 16);
    for (double back = sum_error(n_);; back *= 4) {
      each(chunks_, [&](int64_t c) { kernels_.shrink(v_ + c * kChunk, z_ + c * kChunk, size(c), scale, factor); });
      if (inside(each, z_)) return;
      factor *= std::max(0.0, 1 - back);
    }
  }

  const NormBallKernels<T>& kernels_;
  const T* v_;
  T* z_;
  const int64_t n_;
  const double radius_;
  const int64_t chunks_;
  std::vector<Partial> partial_;
};

}  // namespace

template <class T>
int64_t project_norm_ball(NormBall ball, const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                          int64_t n, int threads, const ParallelFor& parallel_for) {
  FirstRow bad(rows);
  for_rows(rows, n, threads, parallel_for, [&](int64_t i, const auto& each) {
    if (!Row<T>(v + i * n, z + i * n, n, radius[i * radius_stride]).project(ball, each)) bad.note(i);
  });
  return bad.row();
}

#define PYROBUST_PROJECT_NORM_BALL(T)                                                                          \
  template int64_t project_norm_ball<T>(NormBall, const T*, T*, const double*, int64_t, int64_t, int64_t, int, \
                                        const ParallelFor&);
PYROBUST_PROJECT_NORM_BALL(float)
PYROBUST_PROJECT_NORM_BALL(double)
PYROBUST_PROJECT_NORM_BALL(Half)
PYROBUST_PROJECT_NORM_BALL(BFloat16)
#undef PYROBUST_PROJECT_NORM_BALL

}  // namespace pyrobust::cpu

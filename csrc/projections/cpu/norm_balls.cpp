#include "projections/cpu/norm_balls.h"

#include <vector>

#include "common/directed_rounding.h"
#include "common/row_loop.h"
#include "projections/cpu/norm_balls_kernels.h"

namespace pyrobust::cpu {
namespace {

// The power of two that brings a positive number to about 1, so that squares neither overflow nor vanish.
double to_about_one(double a) { return std::ldexp(1.0, std::clamp(-std::ilogb(a), -1000, 1000)); }

// A row in the l2 ball by exact comparisons, whatever the range of its elements.
template <class T>
class ExactL2Row {
 public:
  ExactL2Row(const T* v, T* z, int64_t n, double radius)
      : kernels_(norm_ball_kernels<T>()),
        v_(v),
        z_(z),
        n_(n),
        radius_(radius),
        chunks_((n + kChunk - 1) / kChunk),
        partial_(static_cast<size_t>(chunks_)) {}

  // False where an element is not finite.
  template <class Each>
  bool project(const Each& each) {
    each(chunks_, [&](int64_t c) { partial(c).largest = kernels_.largest(v_ + c * kChunk, size(c)); });
    double top = 0;
    for (int64_t c = 0; c < chunks_; ++c) {
      if (!partial(c).largest.finite) return false;
      top = std::max(top, partial(c).largest.top);
    }
    if (top == 0) {
      std::copy(v_, v_ + n_, z_);
    } else if (radius_ == 0) {
      std::fill(z_, z_ + n_, T{});
    } else {
      shrink(each, top);
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

  // Whether the sum of squares is at most radius^2, exactly: by a rounded sum if that decides it.
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
  void shrink(const Each& each, double top) {
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

template <class T>
bool all_finite(const T* v, int64_t n) {
  return std::all_of(v, v + n, [](T value) { return std::isfinite(to_float(value)); });
}

template <class T>
void project_l2(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows, int64_t n, int threads,
                const ParallelFor& parallel_for, FirstRow& bad) {
  const auto exactly = [&](int64_t i, const auto& each) {
    if (!ExactL2Row<T>(v + i * n, z + i * n, n, radius[i * radius_stride]).project(each)) bad.note(i);
  };
  if constexpr (std::is_same_v<T, float>) {
    if (n < kLanes) {
      const ShortL2 kernel = short_l2_kernel();
      const auto open = [&](int64_t first, int count) {
        const int64_t at = first * n;
        return kernel(v + at, z + at, radius + first * radius_stride, radius_stride, n, count);
      };
      return for_short_rows(rows, n, parallel_for, open, [&](int64_t i) { exactly(i, each_in_turn); });
    }
  }
  const NormBallKernels<T>& kernels = norm_ball_kernels<T>();
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  for_rows(rows, n, threads, parallel_for, [&](int64_t i, const auto& each) {
    const T* from = v + i * n;
    T* to = z + i * n;
    const auto size = [&](int64_t c) { return std::min(kChunk, n - c * kChunk); };
    double sum = 0;
    if (chunks == 1) {
      sum = kernels.plain_squares(from, n);
    } else {
      std::vector<double> part(static_cast<size_t>(chunks));
      each(chunks,
           [&](int64_t c) { part[static_cast<size_t>(c)] = kernels.plain_squares(from + c * kChunk, size(c)); });
      for (double square : part) sum += square;
    }
    const Factor<T> factor = l2_factor<T>(sum, radius[i * radius_stride], n);
    if (factor < 0) return exactly(i, each);
    each(chunks, [&](int64_t c) { kernels.multiply(from + c * kChunk, to + c * kChunk, size(c), factor); });
  });
}

template <class T>
void project_linf(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows, int64_t n,
                  const ParallelFor& parallel_for, FirstRow& bad) {
  const NormBallKernels<T>& kernels = norm_ball_kernels<T>();
  const auto bound = [&](int64_t i) { return round_toward<T>(radius[i * radius_stride], 0.0); };
  const auto note = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      if (!all_finite(v + i * n, n)) return bad.note(i);
  };
  if (radius_stride == 0) {
    // With one bound for all, the division into rows does not matter.
    const T one = bound(0);
    return parallel_for(0, rows * n, kChunk, [&](int64_t begin, int64_t end) {
      if (!kernels.clip(v + begin, z + begin, end - begin, one)) note(begin / n, (end + n - 1) / n);
    });
  }
  if (n > kShortRow) {
    return parallel_for(0, rows, std::max<int64_t>(1, kChunk / n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        if (!kernels.clip(v + i * n, z + i * n, n, bound(i))) bad.note(i);
    });
  }
  constexpr int64_t kBlock = 1024;  // bounds at a time, one for each element
  const int64_t block = kBlock / n;
  parallel_for(0, (rows + block - 1) / block, std::max<int64_t>(1, kChunk / kBlock), [&](int64_t begin, int64_t end) {
    T bounds[kBlock], each[kBlock];
    for (int64_t first = begin * block; first < std::min(rows, end * block); first += block) {
      const int64_t last = std::min(rows, first + block);
      kernels.truncate(radius + first, n == 1 ? bounds : each, last - first);
      if (n > 1) {
        T* next = bounds;
        for (int64_t i = 0; i < last - first; ++i)
          for (int64_t d = 0; d < n; ++d) *next++ = each[i];
      }
      if (!kernels.clip_each(v + first * n, z + first * n, (last - first) * n, bounds)) note(first, last);
    }
  });
}

}  // namespace

template <class T>
int64_t project_norm_ball(NormBall ball, const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                          int64_t n, int threads, const ParallelFor& parallel_for) {
  FirstRow bad(rows);
  if (ball == NormBall::kLinf || n == 1)  // in one dimension, both balls are the same interval
    project_linf(v, z, radius, radius_stride, rows, n, parallel_for, bad);
  else
    project_l2(v, z, radius, radius_stride, rows, n, threads, parallel_for, bad);
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

#include "attacks/cpu/l1_step_in_ball.h"

#include <vector>

#include "attacks/cpu/steps.h"
#include "common/row_loop.h"

namespace pyrobust::cpu {
namespace {

const ParallelFor kHere = [](int64_t begin, int64_t end, int64_t, const auto& f) { f(begin, end); };

}  // namespace

template <class T>
BadRow l1_step_in_ball(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride,
                       const int64_t* keep, int64_t keep_stride, const double* epsilon, int64_t epsilon_stride, T* out,
                       int64_t rows, int64_t n, double lower, double upper, int threads,
                       const ParallelFor& parallel_for) {
  FirstRow bad_y(rows), bad_x(rows);
  const auto some = [&](int64_t row, int64_t count, T* z, int team, const ParallelFor& spread) {
    const int64_t at = row * n;
    l1_step(x_adv + at, grad + at, x + at, step + row * step_stride, step_stride, keep + row * keep_stride, keep_stride,
            out + at, count, n, lower, upper, spread);
    const BadRow bad = project_l1_box(out + at, x + at, z, epsilon + row * epsilon_stride, epsilon_stride, count, n,
                                      lower, upper, team, spread);
    if (bad.y >= 0) bad_y.note(row + bad.y);
    if (bad.x >= 0) bad_x.note(row + bad.x);
    add_perturbation(x + at, z, out + at, count, n, lower, upper, spread);
  };
  // Takes as many rows at a time as stay in a core's cache from one step to the next; threads share a row only where
  // there are fewer rows than threads.
  const int64_t block = std::max<int64_t>(1, 2 * kChunk / n);
  if (rows < 2 * threads) {
    std::vector<T> z(static_cast<size_t>(rows * n));
    some(0, rows, z.data(), threads, parallel_for);
  } else {
    parallel_for(0, rows, block, [&](int64_t begin, int64_t end) {
      std::vector<T> z(static_cast<size_t>(std::min(block, end - begin) * n));
      for (int64_t row = begin; row < end; row += block) some(row, std::min(block, end - row), z.data(), 1, kHere);
    });
  }
  return {bad_y.row(), bad_x.row()};
}

#define PYROBUST_L1_STEP_IN_BALL(T)                                                                                 \
  template BadRow l1_step_in_ball<T>(const T*, const T*, const T*, const double*, int64_t, const int64_t*, int64_t, \
                                     const double*, int64_t, T*, int64_t, int64_t, double, double, int,             \
                                     const ParallelFor&);
PYROBUST_L1_STEP_IN_BALL(float)
PYROBUST_L1_STEP_IN_BALL(double)
PYROBUST_L1_STEP_IN_BALL(Half)
PYROBUST_L1_STEP_IN_BALL(BFloat16)
#undef PYROBUST_L1_STEP_IN_BALL

}  // namespace pyrobust::cpu

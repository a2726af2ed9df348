#include "attacks/cpu/square_window.h"

#include <algorithm>

#include "attacks/one_thread.h"
#include "common/row_loop.h"

namespace pyrobust::cpu {
namespace {

template <class T, bool kL2>
void propose(const T* best, const T* x, const T* u, const double* patterns, const double* radius, T* out, int64_t rows,
             const Windows& windows, double lower, double upper, const ParallelFor& parallel_for) {
  const int64_t n = windows.channels * windows.height * windows.width, numbers = 5 + windows.channels;
  const Real<T> low = to_float(round_toward<T>(lower, upper)), high = to_float(round_toward<T>(upper, lower));
  parallel_for(0, rows, std::max<int64_t>(1, kChunk / n), [&](int64_t begin, int64_t end) {
    cuda::OneThread group;
    for (int64_t i = begin; i < end; ++i)
      cuda::WindowRow<T, kL2, cuda::OneThread>(group, best + i * n, x + i * n, u + i * numbers, patterns, out + i * n,
                                               windows, low, high)
          .propose(radius[i]);
  });
}

}  // namespace

template <class T>
void square_window(const T* best, const T* x, const T* u, const double* patterns, const double* radius, bool l2, T* out,
                   int64_t rows, const Windows& windows, double lower, double upper, const ParallelFor& parallel_for) {
  (l2 ? propose<T, true> : propose<T, false>)(best, x, u, patterns, radius, out, rows, windows, lower, upper,
                                              parallel_for);
}

#define PYROBUST_SQUARE_WINDOW(T)                                                                               \
  template void square_window<T>(const T*, const T*, const T*, const double*, const double*, bool, T*, int64_t, \
                                 const Windows&, double, double, const ParallelFor&);
PYROBUST_SQUARE_WINDOW(float)
PYROBUST_SQUARE_WINDOW(double)
PYROBUST_SQUARE_WINDOW(Half)
PYROBUST_SQUARE_WINDOW(BFloat16)
#undef PYROBUST_SQUARE_WINDOW

}  // namespace pyrobust::cpu

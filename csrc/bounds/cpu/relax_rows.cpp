#include "bounds/cpu/relax_rows.h"

#include <algorithm>

#include "common/row_loop.h"

namespace pyrobust::cpu {
namespace {

// Number of independent partial sums, so that additions overlap.
constexpr int64_t kChains = 8;

// Returns the sum of step(k) over n elements.
template <class Step>
double total(int64_t n, const Step& step) {
  double sum[kChains] = {};
  int64_t k = 0;
  for (; k + kChains <= n; k += kChains)
    for (int64_t j = 0; j < kChains; ++j) sum[j] += step(k + j);
  for (; k < n; ++k) sum[0] += step(k);
  for (int64_t half = kChains / 2; half > 0; half /= 2)
    for (int64_t j = 0; j < half; ++j) sum[j] += sum[j + half];
  return sum[0];
}

template <class Row>
void for_rows(int64_t rows, int64_t n, const ParallelFor& parallel_for, const Row& row) {
  parallel_for(0, rows, std::max<int64_t>(1, kChunk / std::max<int64_t>(1, n)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(r);
  });
}

}  // namespace

template <class T>
void concretize_rows(const T* a, const int64_t* image, const T* low, const T* high, T* constant, int64_t rows,
                     int64_t n, const ParallelFor& parallel_for) {
  for_rows(rows, n, parallel_for, [&](int64_t r) {
    const T *row = a + r * n, *l = low + image[r] * n, *h = high + image[r] * n;
    constant[r] = static_cast<T>(total(n, [&](int64_t k) {
      const T c = row[k];
      return static_cast<double>(c) * static_cast<double>(c < 0 ? h[k] : l[k]);
    }));
  });
}

template <class T>
void relax_rows(T* a, const int64_t* image, const T* lower_slope, const T* upper_slope, const T* low, const T* high,
                T* constant, int64_t rows, int64_t n, const ParallelFor& parallel_for) {
  for_rows(rows, n, parallel_for, [&](int64_t r) {
    T* const row = a + r * n;
    const T *l = low + image[r] * n, *h = high + image[r] * n;
    const T *s = lower_slope + image[r] * n, *t = upper_slope + image[r] * n;
    constant[r] = static_cast<T>(total(n, [&](int64_t k) {
      const T c = row[k];
      const bool above = c < 0;
      row[k] = c * (above ? t[k] : s[k]);
      return static_cast<double>(c) * static_cast<double>(above ? h[k] : l[k]);
    }));
  });
}

#define PYROBUST_RELAX_ROWS(T)                                                                                  \
  template void concretize_rows<T>(const T*, const int64_t*, const T*, const T*, T*, int64_t, int64_t,          \
                                   const ParallelFor&);                                                         \
  template void relax_rows<T>(T*, const int64_t*, const T*, const T*, const T*, const T*, T*, int64_t, int64_t, \
                              const ParallelFor&);
PYROBUST_RELAX_ROWS(float)
PYROBUST_RELAX_ROWS(double)
#undef PYROBUST_RELAX_ROWS

}  // namespace pyrobust::cpu

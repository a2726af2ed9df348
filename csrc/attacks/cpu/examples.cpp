#include "attacks/cpu/examples.h"

#include <algorithm>
#include <cstring>

#include "common/row_loop.h"

namespace pyrobust::cpu {

void put_rows(const bool* chosen, const char* source, char* target, int64_t rows, int64_t bytes,
              const ParallelFor& parallel_for) {
  parallel_for(0, rows, std::max<int64_t>(1, 4 * kChunk / bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (chosen[i]) std::memcpy(target + i * bytes, source + i * bytes, static_cast<size_t>(bytes));
  });
}

template <class T>
void count_changed(const T* x_adv, const T* x, int64_t* count, int64_t rows, int64_t n,
                   const ParallelFor& parallel_for) {
  // The inner loop counts in 8 bits: a vector register then holds the most counters.
  constexpr int64_t kBlock = int64_t{1} << 20;
  parallel_for(0, rows, std::max<int64_t>(1, kChunk / n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* a = x_adv + i * n;
      const T* b = x + i * n;
      int64_t total = 0;
      for (int64_t first = 0; first < n; first += kBlock) {
        const int64_t last = std::min(n, first + kBlock);
        int32_t changed = 0;
        for (int64_t j = first; j < last; ++j) changed += to_float(a[j]) != to_float(b[j]);
        total += changed;
      }
      count[i] = total;
    }
  });
}

#define PYROBUST_COUNT_CHANGED(T) \
  template void count_changed<T>(const T*, const T*, int64_t*, int64_t, int64_t, const ParallelFor&);
PYROBUST_COUNT_CHANGED(float)
PYROBUST_COUNT_CHANGED(double)
PYROBUST_COUNT_CHANGED(Half)
PYROBUST_COUNT_CHANGED(BFloat16)
#undef PYROBUST_COUNT_CHANGED

}  // namespace pyrobust::cpu

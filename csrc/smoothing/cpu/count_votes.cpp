#include "smoothing/cpu/count_votes.h"

#include <limits>
#include <vector>

namespace pyrobust::cpu {

template <class T>
void count_votes(const T* logits, int64_t classes, const int64_t* image, int64_t* counts, int64_t begin, int64_t end) {
  using Real = decltype(to_float(T{}));
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  const int64_t columns = classes + 1;
  // Consecutive rows mostly belong to one image: its votes are collected here and added to the shared histogram once.
  std::vector<int64_t> local(static_cast<size_t>(columns), 0);
  const auto flush = [&](int64_t b) {
    for (int64_t c = 0; c < columns; ++c)
      if (local[static_cast<size_t>(c)] != 0) {
        __atomic_fetch_add(counts + b * columns + c, local[static_cast<size_t>(c)], __ATOMIC_RELAXED);
        local[static_cast<size_t>(c)] = 0;
      }
  };
  for (int64_t n = begin; n < end; ++n) {
    const T* row = logits + n * classes;
    Vote<Real> vote{-kInfinity, -1, false};
    for (int64_t k = 0; k < classes; ++k) consider(vote, to_float(row[k]), k, kInfinity);
    ++local[static_cast<size_t>(column(vote, classes))];
    if (n + 1 == end || image[n + 1] != image[n]) flush(image[n]);
  }
}

#define PYROBUST_COUNT_VOTES(T) \
  template void count_votes<T>(const T*, int64_t, const int64_t*, int64_t*, int64_t, int64_t);
PYROBUST_COUNT_VOTES(float)
PYROBUST_COUNT_VOTES(double)
PYROBUST_COUNT_VOTES(Half)
PYROBUST_COUNT_VOTES(BFloat16)
#undef PYROBUST_COUNT_VOTES

}  // namespace pyrobust::cpu

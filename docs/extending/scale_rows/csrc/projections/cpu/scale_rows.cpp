#include "projections/cpu/scale_rows.h"

#include <algorithm>

#include "common/row_loop.h"

namespace pyrobust::cpu {

template <class T>
void scale_rows(const T* x, const T* scale, T* y, int64_t rows, int64_t n, const ParallelFor& parallel_for) {
  parallel_for(0, rows, std::max<int64_t>(1, kChunk / n), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const T factor = scale[b];
      for (int64_t d = 0; d < n; ++d) y[b * n + d] = factor * x[b * n + d];
    }
  });
}

template void scale_rows<float>(const float*, const float*, float*, int64_t, int64_t, const ParallelFor&);
template void scale_rows<double>(const double*, const double*, double*, int64_t, int64_t, const ParallelFor&);

}  // namespace pyrobust::cpu

#include "attacks/cpu/hyperplane_step.h"

#include <algorithm>

#include "attacks/hyperplane_row.h"
#include "attacks/one_thread.h"
#include "common/row_loop.h"

namespace pyrobust::cpu {

template <class T>
void hyperplane_step(const T* x, const T* at, const T* w, const double* value, int64_t norm, T* step, int64_t rows,
                     int64_t planes, int64_t n, double lower, double upper, const ParallelFor& parallel_for) {
  parallel_for(0, rows, std::max<int64_t>(1, kChunk / n), [&](int64_t begin, int64_t end) {
    cuda::OneThread group;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t plane = i % planes;
      cuda::HyperplaneRow<T, 0, cuda::OneThread>(group, x + i * n, at + plane * n, w + plane * n, step + i * n, n,
                                                 lower, upper)
          .project(value[plane], static_cast<cuda::StepNorm>(norm));
    }
  });
}

#define PYROBUST_HYPERPLANE_STEP(T)                                                                            \
  template void hyperplane_step<T>(const T*, const T*, const T*, const double*, int64_t, T*, int64_t, int64_t, \
                                   int64_t, double, double, const ParallelFor&);
PYROBUST_HYPERPLANE_STEP(float)
PYROBUST_HYPERPLANE_STEP(double)
PYROBUST_HYPERPLANE_STEP(Half)
PYROBUST_HYPERPLANE_STEP(BFloat16)
#undef PYROBUST_HYPERPLANE_STEP

}  // namespace pyrobust::cpu

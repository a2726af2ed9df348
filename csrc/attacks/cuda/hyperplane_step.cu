#include "attacks/cuda/hyperplane_step.h"

#include "attacks/hyperplane_row.h"
#include "projections/cuda/groups.cuh"

namespace pyrobust::cuda {
namespace {

template <class T>
struct Work {
  const T* x;
  const T* at;
  const T* w;
  const double* value;
  StepNorm norm;
  T* step;
  int64_t planes, n;
  double lower, upper;

  template <int kPer, class Group>
  __device__ void row(Group& group, int64_t i) const {
    const int64_t plane = i % planes;
    HyperplaneRow<T, kPer, Group>(group, x + i * n, at + plane * n, w + plane * n, step + i * n, n, lower, upper)
        .project(value[plane], norm);
  }
};

}  // namespace

template <class T>
cudaError_t hyperplane_step(const T* x, const T* at, const T* w, const double* value, int64_t norm, T* step,
                            int64_t rows, int64_t planes, int64_t n, double lower, double upper, cudaStream_t stream) {
  const Work<T> work{x, at, w, value, static_cast<StepNorm>(norm), step, planes, n, lower, upper};
  return for_rows(work, rows, n, stream);
}

#define PYROBUST_HYPERPLANE_STEP(T)                                                                                   \
  template cudaError_t hyperplane_step<T>(const T*, const T*, const T*, const double*, int64_t, T*, int64_t, int64_t, \
                                          int64_t, double, double, cudaStream_t);
PYROBUST_HYPERPLANE_STEP(float)
PYROBUST_HYPERPLANE_STEP(double)
PYROBUST_HYPERPLANE_STEP(Half)
PYROBUST_HYPERPLANE_STEP(BFloat16)
#undef PYROBUST_HYPERPLANE_STEP

}  // namespace pyrobust::cuda

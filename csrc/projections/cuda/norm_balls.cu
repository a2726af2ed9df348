#include "projections/cuda/norm_balls.h"

#include "projections/cuda/groups.cuh"
#include "projections/cuda/norm_balls_row.h"

namespace pyrobust::cuda {
namespace {

template <class T>
struct Work {
  bool l2;
  const T* v;
  T* z;
  const double* radius;
  int64_t radius_stride, n;

  template <int kPer, class Group>
  __device__ void row(Group& group, int64_t i) const {
    NormRow<T, kPer, Group>(group, v + i * n, z + i * n, n, radius[i * radius_stride]).project(l2);
  }
};

}  // namespace

template <class T>
cudaError_t project_norm_ball(bool l2, const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                              int64_t n, cudaStream_t stream) {
  return for_rows(Work<T>{l2, v, z, radius, radius_stride, n}, rows, n, stream);
}

#define PYROBUST_PROJECT_NORM_BALL(T) \
  template cudaError_t project_norm_ball<T>(bool, const T*, T*, const double*, int64_t, int64_t, int64_t, cudaStream_t);
PYROBUST_PROJECT_NORM_BALL(float)
PYROBUST_PROJECT_NORM_BALL(double)
PYROBUST_PROJECT_NORM_BALL(Half)
PYROBUST_PROJECT_NORM_BALL(BFloat16)
#undef PYROBUST_PROJECT_NORM_BALL

}  // namespace pyrobust::cuda

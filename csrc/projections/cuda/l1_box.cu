#include "projections/cuda/l1_box.h"

#include "projections/cuda/groups.cuh"
#include "projections/cuda/l1_box_row.h"

namespace pyrobust::cuda {
namespace {

template <class T>
struct Work {
  const T* y;
  const T* x;
  T* z;
  const double* radius;
  int64_t radius_stride, n;
  Box box;

  template <int kPer, class Group>
  __device__ void row(Group& group, int64_t i) const {
    L1BoxRow<T, kPer, Group>(group, y + i * n, x + i * n, z + i * n, n, radius[i * radius_stride], box).project();
  }
};

}  // namespace

template <class T>
cudaError_t project_l1_box(const T* y, const T* x, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                           int64_t n, double lower, double upper, cudaStream_t stream) {
  return for_rows(Work<T>{y, x, z, radius, radius_stride, n, {lower, upper}}, rows, n, stream);
}

#define PYROBUST_PROJECT_L1_BOX(T)                                                                                 \
  template cudaError_t project_l1_box<T>(const T*, const T*, T*, const double*, int64_t, int64_t, int64_t, double, \
                                         double, cudaStream_t);
PYROBUST_PROJECT_L1_BOX(float)
PYROBUST_PROJECT_L1_BOX(double)
PYROBUST_PROJECT_L1_BOX(Half)
PYROBUST_PROJECT_L1_BOX(BFloat16)
#undef PYROBUST_PROJECT_L1_BOX

}  // namespace pyrobust::cuda

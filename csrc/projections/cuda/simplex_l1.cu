#include "projections/cuda/simplex_l1.h"

#include "projections/cuda/groups.cuh"
#include "projections/cuda/simplex_l1_row.h"

namespace pyrobust::cuda {
namespace {

template <class T>
struct Work {
  const T* v;
  T* z;
  const double* radius;
  int64_t radius_stride, n;
  bool absolute;

  template <int kPer, class Group>
  __device__ void row(Group& group, int64_t i) const {
    L1Row<T, kPer, Group>(group, v + i * n, z + i * n, n, radius[i * radius_stride], absolute).project();
  }
};

}  // namespace

template <class T>
cudaError_t project_l1(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows, int64_t n,
                       bool absolute, cudaStream_t stream) {
  return for_rows(Work<T>{v, z, radius, radius_stride, n, absolute}, rows, n, stream);
}

#define PYROBUST_PROJECT_L1(T) \
  template cudaError_t project_l1<T>(const T*, T*, const double*, int64_t, int64_t, int64_t, bool, cudaStream_t);
PYROBUST_PROJECT_L1(float)
PYROBUST_PROJECT_L1(double)
PYROBUST_PROJECT_L1(Half)
PYROBUST_PROJECT_L1(BFloat16)
#undef PYROBUST_PROJECT_L1

}  // namespace pyrobust::cuda

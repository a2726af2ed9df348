// One thread for each row: a row is a few hundred bytes, negligible beside the forward pass that produced it.
#include "attacks/cuda/logits.h"

#include <algorithm>

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ bool is_class(int64_t c, int64_t classes) { return c >= 0 && c < classes; }

template <class T>
__global__ void __launch_bounds__(kThreads)
    loss_kernel(LogitLoss loss, const T* logits, const int64_t* y, const int64_t* target, double* value, T* slope,
                double* size, int64_t rows, int64_t classes) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows; i += step) {
    RowLoss row{logits::kNaN, logits::kNaN};
    if (is_class(y[i], classes) && is_class(target[i], classes))
      row = pyrobust::logit_loss(loss, logits + i * classes, classes, y[i], target[i], slope + i * classes);
    else
      logits::fill(slope + i * classes, classes, logits::kNaN);
    value[i] = row.value;
    size[i] = row.size;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    verdict_kernel(const T* logits, const int64_t* y, bool targeted, double tolerance, bool both, uint8_t* verdict,
                   int64_t rows, int64_t classes) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows; i += step)
    verdict[i] = is_class(y[i], classes)
                     ? pyrobust::logit_verdict(logits + i * classes, classes, y[i], targeted, tolerance, both)
                     : kClose;
}

unsigned blocks(int64_t rows) {
  return static_cast<unsigned>(std::clamp<int64_t>((rows + kThreads - 1) / kThreads, 1, 8192));
}

}  // namespace

template <class T>
cudaError_t logit_loss(LogitLoss loss, const T* logits, const int64_t* y, const int64_t* target, double* value,
                       T* slope, double* size, int64_t rows, int64_t classes, cudaStream_t stream) {
  loss_kernel<<<blocks(rows), kThreads, 0, stream>>>(loss, logits, y, target, value, slope, size, rows, classes);
  return cudaGetLastError();
}

template <class T>
cudaError_t logit_verdict(const T* logits, const int64_t* y, bool targeted, double tolerance, bool both,
                          uint8_t* verdict, int64_t rows, int64_t classes, cudaStream_t stream) {
  verdict_kernel<<<blocks(rows), kThreads, 0, stream>>>(logits, y, targeted, tolerance, both, verdict, rows, classes);
  return cudaGetLastError();
}

#define PYROBUST_LOGITS(T)                                                                                        \
  template cudaError_t logit_loss<T>(LogitLoss, const T*, const int64_t*, const int64_t*, double*, T*, double*,   \
                                     int64_t, int64_t, cudaStream_t);                                             \
  template cudaError_t logit_verdict<T>(const T*, const int64_t*, bool, double, bool, uint8_t*, int64_t, int64_t, \
                                        cudaStream_t);
PYROBUST_LOGITS(float)
PYROBUST_LOGITS(double)
#undef PYROBUST_LOGITS

}  // namespace pyrobust::cuda

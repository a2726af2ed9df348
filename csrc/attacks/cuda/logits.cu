// One thread for each row: a row is a few hundred bytes, negligible beside the forward pass that produced it. The
// verdict of longer rows takes a warp for each row; a loss is a sum, whose bits would depend on how threads share it.
#include "attacks/cuda/logits.h"

#include <algorithm>

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostOfAThread = 64;  // classes

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

// A warp for each row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    long_verdict_kernel(const T* logits, const int64_t* y, bool targeted, double tolerance, bool both, uint8_t* verdict,
                        int64_t rows, int64_t classes) {
  constexpr int kWarps = kThreads / 32;
  const int lane = threadIdx.x % 32;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t rounds = (rows + warps - 1) / warps;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t i = round * warps + static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
    const int64_t label = i < rows ? y[i] : -1;
    const bool valid = is_class(label, classes);
    const T* z = logits + i * classes;
    VerdictTerms terms;
    if (valid)
      for (int64_t k = lane; k < classes; k += 32) terms.see(z[k], k == label);
    for (int offset = 16; offset > 0; offset /= 2) {
      terms.other = pyrobust::logits::larger(terms.other, __shfl_xor_sync(0xffffffffu, terms.other, offset));
      terms.size = pyrobust::logits::larger(terms.size, __shfl_xor_sync(0xffffffffu, terms.size, offset));
    }
    if (lane == 0 && i < rows) verdict[i] = valid ? terms.verdict(z[label], targeted, tolerance, both) : kClose;
  }
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
  if (classes <= kMostOfAThread)
    verdict_kernel<<<blocks(rows), kThreads, 0, stream>>>(logits, y, targeted, tolerance, both, verdict, rows, classes);
  else
    long_verdict_kernel<<<blocks(32 * rows), kThreads, 0, stream>>>(logits, y, targeted, tolerance, both, verdict, rows,
                                                                    classes);
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

// One thread for an element, in a loop over the grid. Bound by memory.
#include "projections/cuda/scale_rows.h"

#include <algorithm>

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_rows_kernel(const T* x, const T* scale, T* y, int64_t size, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size; i += step)
    y[i] = scale[i / n] * x[i];
}

}  // namespace

template <class T>
cudaError_t scale_rows(const T* x, const T* scale, T* y, int64_t rows, int64_t n, cudaStream_t stream) {
  const int64_t size = rows * n;
  const auto blocks = static_cast<unsigned>(std::min((size + kThreads - 1) / kThreads, kMaxBlocks));
  scale_rows_kernel<<<blocks, kThreads, 0, stream>>>(x, scale, y, size, n);
  return cudaGetLastError();
}

template cudaError_t scale_rows<float>(const float*, const float*, float*, int64_t, int64_t, cudaStream_t);
template cudaError_t scale_rows<double>(const double*, const double*, double*, int64_t, int64_t, cudaStream_t);

}  // namespace pyrobust::cuda

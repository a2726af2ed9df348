// One block of threads for each row; bound by memory.
#include "attacks/cuda/examples.h"

#include <algorithm>

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 256;

// A thread copies one `Word` at a time; rows are whole words, and the pointers are aligned to them.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    put_kernel(const bool* chosen, const Word* source, Word* target, int64_t rows, int64_t words) {
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    if (!chosen[i]) continue;
    for (int64_t j = threadIdx.x; j < words; j += kThreads) target[i * words + j] = source[i * words + j];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const T* x_adv, const T* x, int64_t* count, int64_t rows, int64_t n) {
  __shared__ unsigned long long total;
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    unsigned long long changed = 0;
    for (int64_t j = threadIdx.x; j < n; j += kThreads) changed += to_float(x_adv[i * n + j]) != to_float(x[i * n + j]);
    for (int offset = 16; offset > 0; offset /= 2) changed += __shfl_xor_sync(0xffffffffu, changed, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(&total, changed);
    __syncthreads();
    if (threadIdx.x == 0) count[i] = static_cast<int64_t>(total);
    __syncthreads();
  }
}

unsigned blocks(int64_t rows) { return static_cast<unsigned>(std::clamp<int64_t>(rows, 1, 65536)); }

}  // namespace

cudaError_t put_rows(const bool* chosen, const char* source, char* target, int64_t rows, int64_t bytes,
                     cudaStream_t stream) {
  const auto whole =
      reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target) | static_cast<uintptr_t>(bytes);
  if (whole % sizeof(int4) == 0)
    put_kernel<<<blocks(rows), kThreads, 0, stream>>>(chosen, reinterpret_cast<const int4*>(source),
                                                      reinterpret_cast<int4*>(target), rows, bytes / sizeof(int4));
  else
    put_kernel<<<blocks(rows), kThreads, 0, stream>>>(chosen, source, target, rows, bytes);
  return cudaGetLastError();
}

template <class T>
cudaError_t count_changed(const T* x_adv, const T* x, int64_t* count, int64_t rows, int64_t n, cudaStream_t stream) {
  count_kernel<<<blocks(rows), kThreads, 0, stream>>>(x_adv, x, count, rows, n);
  return cudaGetLastError();
}

#define PYROBUST_COUNT_CHANGED(T) \
  template cudaError_t count_changed<T>(const T*, const T*, int64_t*, int64_t, int64_t, cudaStream_t);
PYROBUST_COUNT_CHANGED(float)
PYROBUST_COUNT_CHANGED(double)
PYROBUST_COUNT_CHANGED(Half)
PYROBUST_COUNT_CHANGED(BFloat16)
#undef PYROBUST_COUNT_CHANGED

}  // namespace pyrobust::cuda

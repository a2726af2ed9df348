// Blocks along a row (x) and along the rows (y), so that few long rows occupy the whole GPU; bound by memory.
#include "attacks/cuda/examples.h"

#include <algorithm>

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPerThread = 8;  // words of a row, or elements, if the row is no longer than the blocks along it

// A thread copies one `Word` at a time; rows are whole words, and the pointers are aligned to them.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    put_kernel(const bool* chosen, const Word* source, Word* target, int64_t rows, int64_t words) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = blockIdx.y; i < rows; i += gridDim.y) {
    if (!chosen[i]) continue;
    for (int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; j < words; j += step)
      target[i * words + j] = source[i * words + j];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const T* x_adv, const T* x, unsigned long long* count, int64_t rows, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = blockIdx.y; i < rows; i += gridDim.y) {
    unsigned changed = 0;
    for (int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; j < n; j += step)
      changed += to_float(x_adv[i * n + j]) != to_float(x[i * n + j]) ? 1 : 0;
    for (int offset = 16; offset > 0; offset /= 2) changed += __shfl_xor_sync(0xffffffffu, changed, offset);
    if (threadIdx.x % 32 == 0 && changed > 0) atomicAdd(count + i, static_cast<unsigned long long>(changed));
  }
}

// The grid for rows of `words`: enough blocks along a row, up to a limit.
dim3 blocks(int64_t rows, int64_t words) {
  const int64_t along = (words + kThreads * kPerThread - 1) / (kThreads * kPerThread);
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(along, 1, 256)),
              static_cast<unsigned>(std::clamp<int64_t>(rows, 1, 65535)));
}

template <class Word>
cudaError_t put(const bool* chosen, const char* source, char* target, int64_t rows, int64_t bytes,
                cudaStream_t stream) {
  const auto words = bytes / static_cast<int64_t>(sizeof(Word));
  const dim3 grid = blocks(rows, words);
  put_kernel<Word><<<grid, kThreads, 0, stream>>>(chosen, reinterpret_cast<const Word*>(source),
                                                  reinterpret_cast<Word*>(target), rows, words);
  return cudaGetLastError();
}

}  // namespace

cudaError_t put_rows(const bool* chosen, const char* source, char* target, int64_t rows, int64_t bytes,
                     cudaStream_t stream) {
  const auto whole =
      reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target) | static_cast<uintptr_t>(bytes);
  if (whole % 16 == 0) return put<int4>(chosen, source, target, rows, bytes, stream);
  if (whole % 8 == 0) return put<int2>(chosen, source, target, rows, bytes, stream);
  if (whole % 4 == 0) return put<int>(chosen, source, target, rows, bytes, stream);
  return put<char>(chosen, source, target, rows, bytes, stream);
}

template <class T>
cudaError_t count_changed(const T* x_adv, const T* x, int64_t* count, int64_t rows, int64_t n, cudaStream_t stream) {
  const dim3 grid = blocks(rows, n);
  count_kernel<<<grid, kThreads, 0, stream>>>(x_adv, x, reinterpret_cast<unsigned long long*>(count), rows, n);
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

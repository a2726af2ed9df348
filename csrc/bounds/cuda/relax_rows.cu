// One pass over the coefficients: kLanes CUDA threads for each row, a warp for short rows and a block for long ones.
// The linear relaxation of an image is read once for each of its rows; rows of one image are neighbours, so that most
// reads hit the cache.
#include "bounds/cuda/relax_rows.h"

#include <algorithm>

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;
constexpr int64_t kShort = 1024;

// Writes a only with kRelax.
template <class T, int kLanes, bool kRelax>
__global__ void __launch_bounds__(kThreads)
    relax_rows_kernel(const T* a, T* relaxed, const int64_t* image, const T* lower_slope, const T* upper_slope,
                      const T* low, const T* high, T* constant, int64_t rows, int64_t n, int64_t images) {
  constexpr int kRows = kThreads / kLanes;
  __shared__ double partial[kThreads];
  const int lane = threadIdx.x % kLanes;
  // All threads of a block take part in every round: the reductions need them.
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < rows;
       first += static_cast<int64_t>(gridDim.x) * kRows) {
    const int64_t row = first + threadIdx.x / kLanes;
    const int64_t of = row < rows ? image[row] : -1;
    const bool known = of >= 0 && of < images;
    double sum = known ? 0 : __longlong_as_double(0x7ff8000000000000ll);
    for (int64_t k = lane; known && k < n; k += kLanes) {
      const T c = a[row * n + k];
      const bool above = c < 0;
      sum += static_cast<double>(c) * static_cast<double>(above ? high[of * n + k] : low[of * n + k]);
      if constexpr (kRelax) relaxed[row * n + k] = c * (above ? upper_slope[of * n + k] : lower_slope[of * n + k]);
    }
    partial[threadIdx.x] = sum;
    for (int half = kLanes / 2; half > 0; half /= 2) {
      __syncthreads();
      if (lane < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (lane == 0 && row < rows) constant[row] = static_cast<T>(partial[threadIdx.x]);
    __syncthreads();
  }
}

template <class T, bool kRelax>
cudaError_t launch(const T* a, T* relaxed, const int64_t* image, const T* lower_slope, const T* upper_slope,
                   const T* low, const T* high, T* constant, int64_t rows, int64_t n, int64_t images,
                   cudaStream_t stream) {
  const int64_t together = n <= kShort ? kThreads / 32 : 1;
  const auto blocks = static_cast<unsigned>(std::min((rows + together - 1) / together, kMaxBlocks));
  const auto run = [&](auto kernel) {
    kernel<<<blocks, kThreads, 0, stream>>>(a, relaxed, image, lower_slope, upper_slope, low, high, constant, rows, n,
                                            images);
  };
  if (together > 1)
    run(relax_rows_kernel<T, 32, kRelax>);
  else
    run(relax_rows_kernel<T, kThreads, kRelax>);
  return cudaGetLastError();
}

}  // namespace

template <class T>
cudaError_t concretize_rows(const T* a, const int64_t* image, const T* low, const T* high, T* constant, int64_t rows,
                            int64_t n, int64_t images, cudaStream_t stream) {
  return launch<T, false>(a, nullptr, image, nullptr, nullptr, low, high, constant, rows, n, images, stream);
}

template <class T>
cudaError_t relax_rows(T* a, const int64_t* image, const T* lower_slope, const T* upper_slope, const T* low,
                       const T* high, T* constant, int64_t rows, int64_t n, int64_t images, cudaStream_t stream) {
  return launch<T, true>(a, a, image, lower_slope, upper_slope, low, high, constant, rows, n, images, stream);
}

#define PYROBUST_RELAX_ROWS(T)                                                                                         \
  template cudaError_t concretize_rows<T>(const T*, const int64_t*, const T*, const T*, T*, int64_t, int64_t, int64_t, \
                                          cudaStream_t);                                                               \
  template cudaError_t relax_rows<T>(T*, const int64_t*, const T*, const T*, const T*, const T*, T*, int64_t, int64_t, \
                                     int64_t, cudaStream_t);
PYROBUST_RELAX_ROWS(float)
PYROBUST_RELAX_ROWS(double)
#undef PYROBUST_RELAX_ROWS

}  // namespace pyrobust::cuda

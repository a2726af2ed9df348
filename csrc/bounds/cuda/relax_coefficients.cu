// relax_coefficients. Forward: one block of threads for each row, which sums the bias. Backward: one thread for each
// neuron, in a loop over the rows, so that neighbouring threads read neighbouring elements. Relaxations are recomputed,
// which is cheaper than storing them.
#include "bounds/cuda/relax_coefficients.h"

#include <algorithm>

#include "bounds/relu_relaxation.h"

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;

template <class T>
__global__ void __launch_bounds__(kThreads) relax_kernel(const T* a, const T* lower, const T* upper, T slope, T* out,
                                                         T* bias, int64_t count, int64_t rows, int64_t n) {
  __shared__ double partial[kThreads];
  for (int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const int64_t range = row / rows * n;
    double sum = 0;
    for (int64_t k = threadIdx.x; k < n; k += kThreads) {
      const ReluRelaxation<T> relaxation = relu_relaxation(lower[range + k], upper[range + k], slope);
      const T c = a[row * n + k];
      out[row * n + k] = c * (c < 0 ? relaxation.upper_slope : relaxation.lower_slope);
      sum += static_cast<double>(c * (c < 0 ? relaxation.intercept : T(0)));
    }
    partial[threadIdx.x] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) bias[row] = static_cast<T>(partial[0]);
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* grad, const T* grad_bias, const T* a, const T* lower, const T* upper, T slope, T* grad_a,
                    T* grad_lower, T* grad_upper, int64_t neurons, int64_t rows, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < neurons; i += step) {
    const int64_t b = i / n, k = i % n;
    const ReluRelaxation<T> relaxation = relu_relaxation(lower[i], upper[i], slope);
    T of_slope = 0, of_intercept = 0;
    for (int64_t s = 0; s < rows; ++s) {
      const int64_t row = b * rows + s, at = row * n + k;
      const T c = a[at], g = grad[at], of_bias = grad_bias[row];
      const bool above = c < 0;
      grad_a[at] = g * (above ? relaxation.upper_slope : relaxation.lower_slope) +
                   of_bias * (above ? relaxation.intercept : T(0));
      of_slope += above ? c * g : T(0);
      of_intercept += above ? c * of_bias : T(0);
    }
    relu_relaxation_backward(lower[i], upper[i], slope, of_slope, of_intercept, grad_lower[i], grad_upper[i]);
  }
}

}  // namespace

template <class T>
cudaError_t relax_coefficients(const T* a, const T* lower, const T* upper, T slope, T* out, T* bias, int64_t batch,
                               int64_t rows, int64_t n, cudaStream_t stream) {
  const int64_t count = batch * rows;
  const auto blocks = static_cast<unsigned>(std::min(count, kMaxBlocks));
  relax_kernel<<<blocks, kThreads, 0, stream>>>(a, lower, upper, slope, out, bias, count, rows, n);
  return cudaGetLastError();
}

template <class T>
cudaError_t relax_coefficients_backward(const T* grad, const T* grad_bias, const T* a, const T* lower, const T* upper,
                                        T slope, T* grad_a, T* grad_lower, T* grad_upper, int64_t batch, int64_t rows,
                                        int64_t n, cudaStream_t stream) {
  const int64_t neurons = batch * n;
  const auto blocks = static_cast<unsigned>(std::min((neurons + kThreads - 1) / kThreads, kMaxBlocks));
  backward_kernel<<<blocks, kThreads, 0, stream>>>(grad, grad_bias, a, lower, upper, slope, grad_a, grad_lower,
                                                   grad_upper, neurons, rows, n);
  return cudaGetLastError();
}

#define PYROBUST_RELAX_COEFFICIENTS(T)                                                                                 \
  template cudaError_t relax_coefficients<T>(const T*, const T*, const T*, T, T*, T*, int64_t, int64_t, int64_t,       \
                                             cudaStream_t);                                                            \
  template cudaError_t relax_coefficients_backward<T>(const T*, const T*, const T*, const T*, const T*, T, T*, T*, T*, \
                                                      int64_t, int64_t, int64_t, cudaStream_t);
PYROBUST_RELAX_COEFFICIENTS(float)
PYROBUST_RELAX_COEFFICIENTS(double)
#undef PYROBUST_RELAX_COEFFICIENTS

}  // namespace pyrobust::cuda

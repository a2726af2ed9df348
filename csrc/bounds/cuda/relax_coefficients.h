// The ReLU relaxation of a backward pass over coefficients, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyrobust::cuda {

// As cpu::relax_coefficients.
template <class T>
cudaError_t relax_coefficients(const T* a, const T* lower, const T* upper, T slope, T* out, T* bias, int64_t batch,
                               int64_t rows, int64_t n, cudaStream_t stream);

// As cpu::relax_coefficients_backward.
template <class T>
cudaError_t relax_coefficients_backward(const T* grad, const T* grad_bias, const T* a, const T* lower, const T* upper,
                                        T slope, T* grad_a, T* grad_lower, T* grad_upper, int64_t batch, int64_t rows,
                                        int64_t n, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

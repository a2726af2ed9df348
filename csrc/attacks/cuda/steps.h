// Attack steps that satisfy their constraints exactly, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/half.h"

namespace pyrobust::cuda {

// As in attacks/cpu/steps.h; elements whose x lies outside the box, or whose z is NaN, come back NaN.
template <class T>
cudaError_t add_perturbation(const T* x, const T* z, T* out, int64_t count, double lower, double upper,
                             cudaStream_t stream);

template <class T>
cudaError_t linf_step(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride,
                      const double* epsilon, int64_t epsilon_stride, T* out, int64_t rows, int64_t n, double lower,
                      double upper, cudaStream_t stream);

template <class T>
cudaError_t linf_momentum_step(const T* x_adv, const T* grad, const T* x, const T* before, const double* step,
                               int64_t step_stride, const double* epsilon, int64_t epsilon_stride, double share, T* out,
                               int64_t rows, int64_t n, double lower, double upper, cudaStream_t stream);

template <class T>
cudaError_t l1_step(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride,
                    const int64_t* keep, int64_t keep_stride, T* out, int64_t rows, int64_t n, double lower,
                    double upper, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

// Linear relaxation and concretization of packed rows of coefficients, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyrobust::cuda {

// As cpu::concretize_rows and cpu::relax_rows; images: of low and high. A row whose image is out of range gets NaN.
template <class T>
cudaError_t concretize_rows(const T* a, const int64_t* image, const T* low, const T* high, T* constant, int64_t rows,
                            int64_t n, int64_t images, cudaStream_t stream);
template <class T>
cudaError_t relax_rows(T* a, const int64_t* image, const T* lower_slope, const T* upper_slope, const T* low,
                       const T* high, T* constant, int64_t rows, int64_t n, int64_t images, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

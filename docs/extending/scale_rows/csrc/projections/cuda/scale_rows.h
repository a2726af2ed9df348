// Rows times a factor each, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyrobust::cuda {

// As cpu::scale_rows.
template <class T>
cudaError_t scale_rows(const T* x, const T* scale, T* y, int64_t rows, int64_t n, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

// Proposals of the Square attack in l2 and l1, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

#include "attacks/window_row.h"

namespace pyrobust::cuda {

// As cpu::square_window.
template <class T>
cudaError_t square_window(const T* best, const T* x, const T* u, const double* patterns, const double* radius, bool l2,
                          T* out, int64_t rows, const Windows& windows, double lower, double upper,
                          cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

// Projection of rows onto the l1 ball within a box, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/half.h"

namespace pyrobust::cuda {

// As cpu::project_l1_box; a row with a non-finite y, or an x outside the box, becomes NaN.
template <class T>
cudaError_t project_l1_box(const T* y, const T* x, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                           int64_t n, double lower, double upper, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

// Projection of rows onto l2 and l-infinity balls, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/half.h"

namespace pyrobust::cuda {

// As cpu::project_norm_ball; a row with a non-finite element becomes NaN.
template <class T>
cudaError_t project_norm_ball(bool l2, const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                              int64_t n, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

// Projection of rows onto the simplex and onto the l1 ball, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/half.h"

namespace pyrobust::cuda {

// As cpu::project_l1; a row with a non-finite element becomes NaN, because raising would make the host wait.
template <class T>
cudaError_t project_l1(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows, int64_t n,
                       bool absolute, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

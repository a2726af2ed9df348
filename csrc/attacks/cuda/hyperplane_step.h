// The smallest steps onto hyperplanes within a box, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

namespace pyrobust::cuda {

// As cpu::hyperplane_step.
template <class T>
cudaError_t hyperplane_step(const T* x, const T* at, const T* w, const double* value, int64_t norm, T* step,
                            int64_t rows, int64_t planes, int64_t n, double lower, double upper, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

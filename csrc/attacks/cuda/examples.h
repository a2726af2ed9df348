// Row copies and change counts of attack states, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/half.h"

namespace pyrobust::cuda {

// As in attacks/cpu/examples.h.
cudaError_t put_rows(const bool* chosen, const char* source, char* target, int64_t rows, int64_t bytes,
                     cudaStream_t stream);

// count: zero before the call.
template <class T>
cudaError_t count_changed(const T* x_adv, const T* x, int64_t* count, int64_t rows, int64_t n, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

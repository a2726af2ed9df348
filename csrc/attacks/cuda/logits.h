// Losses and verdicts of rows of logits, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include "attacks/logit_math.h"

namespace pyrobust::cuda {

// As in attacks/cpu/logits.h; a row whose y or target is out of range gets NaN everywhere, and the verdict kClose.
template <class T>
cudaError_t logit_loss(LogitLoss loss, const T* logits, const int64_t* y, const int64_t* target, double* value,
                       T* slope, double* size, int64_t rows, int64_t classes, cudaStream_t stream);

template <class T>
cudaError_t logit_verdict(const T* logits, const int64_t* y, bool targeted, double tolerance, bool both,
                          uint8_t* verdict, int64_t rows, int64_t classes, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

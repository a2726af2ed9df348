// Vote histograms on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include "smoothing/vote.h"

namespace pyrobust::cuda {

// Adds the votes of logits [rows, classes] to counts [images, classes + 1]. A row whose image is out of range is not
// counted: raising would need the host to wait, so the caller compares totals when it reads the counts.
template <class T>
cudaError_t count_votes(const T* logits, int64_t rows, int64_t classes, const int64_t* image, int64_t images,
                        int64_t* counts, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

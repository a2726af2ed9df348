// Noisy batches on a grid, on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include "common/half.h"
#include "smoothing/grid_noise.h"

namespace pyrobust::cuda {

// As sample_noise, for images k of integers, with a table that is on the device too; the grid's step is p / q. tail:
// [samples], zero before the call; set where a sample holds a tail.
template <class Out, class Real>
cudaError_t sample_grid_noise(const GridTable& table, uint32_t domain, const NoiseRun* runs, int64_t run_count,
                              const NoiseShape& shape, const int32_t* k, Real p, Real q, const Real* mean,
                              const Real* std, Out* out, uint8_t* tail, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

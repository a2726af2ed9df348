// Noisy batches on the GPU: raw pointers and a stream, no torch.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include "common/half.h"
#include "smoothing/noise.h"

namespace pyrobust::cuda {

// x: [M, channels, plane] contiguous, on the device like mean, std: [channels] or null, and out: [samples, channels,
// plane], or [samples, plane, channels] for channels_last. runs: on the host, ordered by `begin`, the first at 0;
// copied at the call.
template <class Out, class Real>
cudaError_t sample_noise(uint32_t domain, const NoiseRun* runs, int64_t run_count, const NoiseShape& shape,
                         const Real* x, Real sigma, const Real* mean, const Real* std, Out* out, cudaStream_t stream);

}  // namespace pyrobust::cuda
#endif

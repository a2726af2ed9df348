// Noisy batches on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/parallel.h"
#include "smoothing/noise.h"

namespace pyrobust::cpu {

// Draws the unit noise of blocks [block, block + blocks) of one sample. z has room for a multiple of kKernelBlocks
// blocks.
using UnitNoiseKernel = void (*)(NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks,
                                 float* z);

// Writes one stretch of one channel: out[i * stride] = ((x[i] + sigma z[i]) - mean) / std, the latter two where std is
// not null.
template <class Out, class Real>
using FinishKernel = void (*)(const float* z, const Real* x, Real sigma, const Real* mean, const Real* std, Out* out,
                              int64_t n, int64_t stride);

// x: [M, channels, plane] contiguous; runs ordered by `begin`, the first at 0; mean, std: [channels] or null; out:
// [samples, channels, plane], or [samples, plane, channels] for channels_last.
template <class Out, class Real>
void sample_noise(uint32_t domain, const NoiseRun* runs, int64_t run_count, const NoiseShape& shape, const Real* x,
                  Real sigma, const Real* mean, const Real* std, Out* out, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

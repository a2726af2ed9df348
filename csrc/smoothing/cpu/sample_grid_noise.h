// Noisy batches on a grid, on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/parallel.h"
#include "smoothing/grid_noise.h"

namespace pyrobust::cpu {

// Draws the integers of blocks [block, block + blocks) of one sample and returns whether any is a tail. j has room for a
// multiple of kKernelBlocks blocks, all of which may be written and are counted as drawn.
using GridNoiseKernel = bool (*)(const GridTable& table, NoiseKey key, uint32_t image, uint32_t sample, uint32_t block,
                                 int64_t blocks, int32_t* j);

// Writes one stretch of one channel: out[i * stride] = ((k[i] + j[i]) p / q - mean) / std, the latter two where std is
// not null.
template <class Out, class Real>
using GridFinishKernel = void (*)(const int32_t* j, const int32_t* k, Real p, Real q, const Real* mean, const Real* std,
                                  Out* out, int64_t n, int64_t stride);

// As sample_noise, for images k of integers; the grid's step is p / q. tail: [samples], zero before the call; set where
// a sample holds a tail.
template <class Out, class Real>
void sample_grid_noise(const GridTable& table, uint32_t domain, const NoiseRun* runs, int64_t run_count,
                       const NoiseShape& shape, const int32_t* k, Real p, Real q, const Real* mean, const Real* std,
                       Out* out, uint8_t* tail, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

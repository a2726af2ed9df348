// The SIMD leaves of sample_grid_noise: one table for each level.
#pragma once

#include "simd/dispatch.h"
#include "smoothing/cpu/noise_tiles.h"
#include "smoothing/cpu/sample_grid_noise.h"

namespace pyrobust::cpu {

struct GridNoiseKernels {
  GridNoiseLeaf draw;
  GridFinishLeaf<float, float> finish_float;
  GridFinishLeaf<double, double> finish_double;
  GridFinishLeaf<Half, float> finish_half;
  GridFinishLeaf<BFloat16, float> finish_bfloat16;
};

// The set of the level in use.
const GridNoiseKernels& grid_noise_kernels();

}  // namespace pyrobust::cpu

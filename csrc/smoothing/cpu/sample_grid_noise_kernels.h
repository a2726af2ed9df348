// The inner loops of sample_grid_noise, one set for each instruction set, all with bitwise equal results.
#pragma once

#include "simd/dispatch.h"
#include "smoothing/cpu/noise_tiles.h"
#include "smoothing/cpu/sample_grid_noise.h"

namespace pyrobust::cpu {

struct GridNoiseKernels {
  GridNoiseKernel draw;
  GridFinishKernel<float, float> finish_float;
  GridFinishKernel<double, double> finish_double;
  GridFinishKernel<Half, float> finish_half;
  GridFinishKernel<BFloat16, float> finish_bfloat16;
};

// Returns the kernels of the level in use.
const GridNoiseKernels& grid_noise_kernels();

}  // namespace pyrobust::cpu

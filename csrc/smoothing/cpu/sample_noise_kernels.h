// The SIMD leaves of sample_noise: one table for each level.
#pragma once

#include "simd/dispatch.h"
#include "smoothing/cpu/noise_tiles.h"
#include "smoothing/cpu/sample_noise.h"

namespace pyrobust::cpu {

struct NoiseKernels {
  UnitNoiseLeaf unit[kFamilies];  // by Family
  FinishLeaf<float, float> finish_float;
  FinishLeaf<double, double> finish_double;
  FinishLeaf<Half, float> finish_half;
  FinishLeaf<BFloat16, float> finish_bfloat16;
};

// The set of the level in use.
const NoiseKernels& noise_kernels();

}  // namespace pyrobust::cpu

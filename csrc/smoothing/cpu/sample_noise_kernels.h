// The inner loops of sample_noise, one set for each instruction set, all with bitwise equal results.
#pragma once

#include "simd/dispatch.h"
#include "smoothing/cpu/noise_tiles.h"
#include "smoothing/cpu/sample_noise.h"

namespace pyrobust::cpu {

struct NoiseKernels {
  UnitNoiseKernel unit[kFamilies];  // by Family
  FinishKernel<float, float> finish_float;
  FinishKernel<double, double> finish_double;
  FinishKernel<Half, float> finish_half;
  FinishKernel<BFloat16, float> finish_bfloat16;
};

// Returns the kernels of the level in use.
const NoiseKernels& noise_kernels();

}  // namespace pyrobust::cpu

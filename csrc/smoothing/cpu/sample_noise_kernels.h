// The SIMD leaves of sample_noise: one table for each level.
#pragma once

#include "simd/dispatch.h"
#include "smoothing/cpu/noise_tiles.h"
#include "smoothing/cpu/sample_noise.h"

namespace pyrobust::cpu {

struct NoiseLeaves {
  UnitNoiseLeaf unit[kFamilies];  // by Family
  FinishLeaf<float, float> finish_float;
  FinishLeaf<double, double> finish_double;
  FinishLeaf<Half, float> finish_half;
  FinishLeaf<BFloat16, float> finish_bfloat16;
};

extern const NoiseLeaves kNoiseScalar;
#ifdef __x86_64__
extern const NoiseLeaves kNoiseAvx2;
extern const NoiseLeaves kNoiseAvx512;
#endif

}  // namespace pyrobust::cpu

// The SIMD leaves of sample_grid_noise: one table for each level.
#pragma once

#include "simd/dispatch.h"
#include "smoothing/cpu/noise_tiles.h"
#include "smoothing/cpu/sample_grid_noise.h"

namespace pyrobust::cpu {

struct GridLeaves {
  GridNoiseLeaf draw;
  GridFinishLeaf<float, float> finish_float;
  GridFinishLeaf<double, double> finish_double;
  GridFinishLeaf<Half, float> finish_half;
  GridFinishLeaf<BFloat16, float> finish_bfloat16;
};

extern const GridLeaves kGridScalar;
#ifdef __x86_64__
extern const GridLeaves kGridAvx2;
extern const GridLeaves kGridAvx512;
#endif

}  // namespace pyrobust::cpu

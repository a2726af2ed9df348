// sample_grid_noise for AVX2 and FMA, eight lanes.
#ifdef __x86_64__
#include <algorithm>

#include "cpu/noise_lanes_avx2.h"
#include "cpu/sample_grid_noise_leaves.h"

namespace pyrobust::cpu {
namespace {

#include "cpu/noise_finish.inl"
#include "cpu/philox_lanes.inl"
#include "cpu/sample_grid_noise_finish.inl"
#include "cpu/sample_grid_noise_simd.inl"

}  // namespace

const GridLeaves kGridAvx2 = {draw, finish<float, float>, finish<double, double>, finish<Half, float>,
                              finish<BFloat16, float>};

}  // namespace pyrobust::cpu
#endif  // __x86_64__

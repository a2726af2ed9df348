// sample_grid_noise for AVX2 and FMA, eight lanes.
#ifdef __x86_64__
#include <algorithm>

#include "smoothing/cpu/random_vec_avx2.h"
#include "smoothing/cpu/sample_grid_noise_kernels.h"

namespace pyrobust::cpu {
namespace {

#include "smoothing/cpu/philox.inl"
#include "smoothing/cpu/sample_grid_noise_finish.inl"
#include "smoothing/cpu/sample_grid_noise_kernels.inl"
#include "smoothing/cpu/write_batch.inl"

}  // namespace

const GridLeaves kGridAvx2 = {draw, finish<float, float>, finish<double, double>, finish<Half, float>,
                              finish<BFloat16, float>};

}  // namespace pyrobust::cpu
#endif  // __x86_64__

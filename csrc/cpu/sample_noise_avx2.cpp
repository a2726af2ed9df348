// sample_noise for AVX2 and FMA, eight lanes.
#ifdef __x86_64__
#include "cpu/noise_lanes_avx2.h"
#include "cpu/sample_noise_leaves.h"

namespace pyrobust::cpu {
namespace {

#include "cpu/noise_finish.inl"
#include "cpu/philox_lanes.inl"
#include "cpu/sample_noise_finish.inl"
#include "cpu/sample_noise_simd.inl"

}  // namespace

const NoiseLeaves kNoiseAvx2 = {
    {unit_noise<Family::kGaussian>, unit_noise<Family::kUniform>, unit_noise<Family::kLaplace>},
    finish<float, float>,
    finish<double, double>,
    finish<Half, float>,
    finish<BFloat16, float>};

}  // namespace pyrobust::cpu
#endif  // __x86_64__

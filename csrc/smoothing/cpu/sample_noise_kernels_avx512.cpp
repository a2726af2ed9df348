// sample_noise for AVX-512, sixteen lanes.
#ifdef __x86_64__
#include "smoothing/cpu/random_vec_avx512.h"
#include "smoothing/cpu/sample_noise_kernels.h"

namespace pyrobust::cpu {
namespace {

#include "smoothing/cpu/philox.inl"
#include "smoothing/cpu/sample_noise_finish.inl"
#include "smoothing/cpu/sample_noise_kernels.inl"
#include "smoothing/cpu/write_batch.inl"

}  // namespace

const NoiseLeaves kNoiseAvx512 = {
    {unit_noise<Family::kGaussian>, unit_noise<Family::kUniform>, unit_noise<Family::kLaplace>},
    finish<float, float>,
    finish<double, double>,
    finish<Half, float>,
    finish<BFloat16, float>};

}  // namespace pyrobust::cpu
#endif  // __x86_64__

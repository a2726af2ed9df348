// sample_noise for any CPU: the scalar mathematics of core/, one block at a time.
#include "smoothing/cpu/random_vec_scalar.h"
#include "smoothing/cpu/sample_noise_kernels.h"

namespace pyrobust::cpu {
namespace {

#include "smoothing/cpu/sample_noise_finish.inl"
#include "smoothing/cpu/write_batch.inl"

template <Family family>
void unit_noise(NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks, float* z) {
  for (int64_t b = 0; b < blocks; ++b)
    unit_noise4<family>(key, image, sample, block + static_cast<uint32_t>(b), z + 4 * b);
}

}  // namespace

const NoiseLeaves kNoiseScalar = {
    {unit_noise<Family::kGaussian>, unit_noise<Family::kUniform>, unit_noise<Family::kLaplace>},
    finish<float, float>,
    finish<double, double>,
    finish<Half, float>,
    finish<BFloat16, float>};

}  // namespace pyrobust::cpu

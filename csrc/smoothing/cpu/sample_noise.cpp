#include "smoothing/cpu/sample_noise.h"

#include <type_traits>

#include "smoothing/cpu/noise_tiles.h"
#include "smoothing/cpu/sample_noise_kernels.h"

namespace pyrobust::cpu {
namespace {

template <class Out, class Real>
FinishKernel<Out, Real> finish_kernel(const NoiseKernels& l) {
  if constexpr (std::is_same_v<Out, float>)
    return l.finish_float;
  else if constexpr (std::is_same_v<Out, double>)
    return l.finish_double;
  else if constexpr (std::is_same_v<Out, Half>)
    return l.finish_half;
  else
    return l.finish_bfloat16;
}

}  // namespace

template <class Out, class Real>
void sample_noise(uint32_t domain, const NoiseRun* runs, int64_t run_count, const NoiseShape& shape, const Real* x,
                  Real sigma, const Real* mean, const Real* std, Out* out, const ParallelFor& parallel_for) {
  const NoiseKernels& level = noise_kernels();
  const UnitNoiseKernel unit = level.unit[static_cast<uint32_t>(family_of(domain))];
  const auto finish = finish_kernel<Out, Real>(level);
  const int64_t row = shape.channels * shape.plane;
  for_tiles<float>(
      runs, run_count, shape, std != nullptr, parallel_for,
      [&](const NoiseStretch& s, float* z) { unit(NoiseKey{s.key, domain}, s.image, s.sample, s.block, s.blocks, z); },
      [&](const NoisePiece& p, const float* z) {
        finish(z, x + p.row * row + p.element, sigma, std == nullptr ? nullptr : mean + p.channel,
               std == nullptr ? nullptr : std + p.channel, out + p.target, p.count, p.stride);
      });
}

#define PYROBUST_SAMPLE_NOISE(Out, Real)                                                                          \
  template void sample_noise<Out, Real>(uint32_t, const NoiseRun*, int64_t, const NoiseShape&, const Real*, Real, \
                                        const Real*, const Real*, Out*, const ParallelFor&);
PYROBUST_SAMPLE_NOISE(float, float)
PYROBUST_SAMPLE_NOISE(double, double)
PYROBUST_SAMPLE_NOISE(Half, float)
PYROBUST_SAMPLE_NOISE(BFloat16, float)
#undef PYROBUST_SAMPLE_NOISE

}  // namespace pyrobust::cpu

#include "cpu/sample_noise.h"

#include <algorithm>
#include <type_traits>

#include "cpu/sample_noise_leaves.h"

namespace pyrobust::cpu {
namespace {

// Elements of unit noise a thread holds at once: well inside the first-level cache together with x and the output.
inline constexpr int64_t kTile = 2048;

const NoiseLeaves& leaves() {
#ifdef __x86_64__
  switch (simd_level()) {
    case Simd::kAvx512:
      return kNoiseAvx512;
    case Simd::kAvx2:
      return kNoiseAvx2;
    default:
      break;
  }
#endif
  return kNoiseScalar;
}

template <class Out, class Real>
FinishLeaf<Out, Real> finish_leaf(const NoiseLeaves& l) {
  if constexpr (std::is_same_v<Out, float>)
    return l.finish_float;
  else if constexpr (std::is_same_v<Out, double>)
    return l.finish_double;
  else if constexpr (std::is_same_v<Out, Half>)
    return l.finish_half;
  else
    return l.finish_bfloat16;
}

// The run that holds batch position n.
const NoiseRun& run_of(const NoiseRun* runs, int64_t run_count, int64_t n) {
  const NoiseRun* after = std::upper_bound(runs, runs + run_count, n,
                                           [](int64_t position, const NoiseRun& r) { return position < r.begin; });
  return *(after - 1);
}

}  // namespace

template <class Out, class Real>
void sample_noise(NoiseKey key, const NoiseRun* runs, int64_t run_count, const NoiseShape& shape, const Real* x,
                  Real sigma, const Real* mean, const Real* std, Out* out, const ParallelFor& parallel_for) {
  const NoiseLeaves& level = leaves();
  const UnitNoiseLeaf unit = level.unit[static_cast<uint32_t>(family_of(key.domain))];
  const auto finish = finish_leaf<Out, Real>(level);
  const int64_t plane = shape.plane, channels = shape.channels, row = channels * plane;

  // A tile is a stretch of one image in the order that keeps its output together: elements where planes follow each
  // other, pixels (with all their channels) where channels are innermost.
  const int64_t extent = shape.channels_last ? plane : row;
  const int64_t step = shape.channels_last ? std::max<int64_t>(16, kTile / channels / 16 * 16) : kTile;
  const int64_t tiles = (extent + step - 1) / step;
  const int64_t tile_work = shape.channels_last ? step * channels : step;

  parallel_for(0, shape.samples * tiles, std::max<int64_t>(1, 16384 / std::min(tile_work, row)),
               [&](int64_t begin, int64_t end) {
                 alignas(64) float z[kTile + 4 * kLeafBlocks];
                 for (int64_t u = begin; u < end; ++u) {
                   const int64_t n = u / tiles, t0 = (u % tiles) * step, t1 = std::min(extent, t0 + step);
                   const NoiseRun& run = run_of(runs, run_count, n);
                   const uint32_t sample = run.first + static_cast<uint32_t>(n - run.begin);
                   const Real* image = x + run.row * row;
                   Out* target = out + n * row;

                   // Elements [e0, e1), which are contiguous in the noise contract's order, to target[at + i * stride].
                   const auto stretch = [&](int64_t e0, int64_t e1, int64_t channel, int64_t at, int64_t stride) {
                     const int64_t block = e0 / 4;
                     unit(key, run.image, sample, static_cast<uint32_t>(block), (e1 + 3) / 4 - block, z);
                     const float* from = z + (e0 - 4 * block);
                     // A stretch that spans planes is cut where the channel's mean and std change.
                     for (int64_t a = e0; a < e1;) {
                       const int64_t b = std == nullptr ? e1 : std::min(e1, (channel + 1) * plane);
                       finish(from + (a - e0), image + a, sigma, std == nullptr ? nullptr : mean + channel,
                              std == nullptr ? nullptr : std + channel, target + at + (a - e0) * stride, b - a, stride);
                       a = b;
                       ++channel;
                     }
                   };

                   if (shape.channels_last)
                     for (int64_t c = 0; c < channels; ++c)
                       stretch(c * plane + t0, c * plane + t1, c, t0 * channels + c, channels);
                   else
                     stretch(t0, t1, t0 / plane, t0, 1);
                 }
               });
}

#define PYROBUST_SAMPLE_NOISE(Out, Real)                                                                          \
  template void sample_noise<Out, Real>(NoiseKey, const NoiseRun*, int64_t, const NoiseShape&, const Real*, Real, \
                                        const Real*, const Real*, Out*, const ParallelFor&);
PYROBUST_SAMPLE_NOISE(float, float)
PYROBUST_SAMPLE_NOISE(double, double)
PYROBUST_SAMPLE_NOISE(Half, float)
PYROBUST_SAMPLE_NOISE(BFloat16, float)
#undef PYROBUST_SAMPLE_NOISE

}  // namespace pyrobust::cpu

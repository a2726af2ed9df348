#include "smoothing/cpu/sample_grid_noise.h"

#include <atomic>
#include <type_traits>

#include "smoothing/cpu/sample_grid_noise_kernels.h"

namespace pyrobust::cpu {
namespace {

template <class Out, class Real>
GridFinishKernel<Out, Real> finish_kernel(const GridNoiseKernels& l) {
  if constexpr (std::is_same_v<Out, float>)
    return l.finish_float;
  else if constexpr (std::is_same_v<Out, double>)
    return l.finish_double;
  else if constexpr (std::is_same_v<Out, Half>)
    return l.finish_half;
  else
    return l.finish_bfloat16;
}

bool has_tail(const int32_t* j, int64_t n, int32_t tail) {
  for (int64_t i = 0; i < n; ++i)
    if (j[i] >= tail || j[i] <= -tail) return true;
  return false;
}

}  // namespace

template <class Out, class Real>
void sample_grid_noise(const GridTable& table, uint32_t domain, const NoiseRun* runs, int64_t run_count,
                       const NoiseShape& shape, const int32_t* k, Real p, Real q, const Real* mean, const Real* std,
                       Out* out, uint8_t* tail, const ParallelFor& parallel_for) {
  const GridNoiseKernels& level = grid_noise_kernels();
  const auto finish = finish_kernel<Out, Real>(level);
  const int64_t row = shape.channels * shape.plane;
  for_tiles<int32_t>(
      runs, run_count, shape, std != nullptr, parallel_for,
      [&](const NoiseStretch& s, int32_t* j) {
        // A tail may have been drawn outside the stretch: only the stretch's own elements count.
        if (level.draw(table, NoiseKey{s.key, domain}, s.image, s.sample, s.block, s.blocks, j) &&
            has_tail(j + s.skip, s.count, table.count))
          std::atomic_ref<uint8_t>(tail[s.n]).store(1, std::memory_order_relaxed);
      },
      [&](const NoisePiece& piece, const int32_t* j) {
        finish(j, k + piece.row * row + piece.element, p, q, std == nullptr ? nullptr : mean + piece.channel,
               std == nullptr ? nullptr : std + piece.channel, out + piece.target, piece.count, piece.stride);
      });
}

#define PYROBUST_SAMPLE_GRID_NOISE(Out, Real)                                                                         \
  template void sample_grid_noise<Out, Real>(const GridTable&, uint32_t, const NoiseRun*, int64_t, const NoiseShape&, \
                                             const int32_t*, Real, Real, const Real*, const Real*, Out*, uint8_t*,    \
                                             const ParallelFor&);
PYROBUST_SAMPLE_GRID_NOISE(float, float)
PYROBUST_SAMPLE_GRID_NOISE(double, double)
PYROBUST_SAMPLE_GRID_NOISE(Half, float)
PYROBUST_SAMPLE_GRID_NOISE(BFloat16, float)
#undef PYROBUST_SAMPLE_GRID_NOISE

}  // namespace pyrobust::cpu

// One thread for four elements of the image, in a loop over the samples: k, mean and std are read once per run. The
// guide stays in the first-level cache: half of all draws need one octave of it, three quarters two.
#include "smoothing/cuda/sample_grid_noise.h"

#include "smoothing/cuda/noise_launch.cuh"

namespace pyrobust::cuda {
namespace {

template <class Out, class Real>
struct Args {
  GridTable table;
  uint32_t domain;
  NoiseShape shape;
  const int32_t* k;
  Real p, q;
  const Real* mean;
  const Real* std;
  Out* out;
  uint8_t* tail;
};

// Any shape and layout. `wide`: rows of whole quads, contiguous and aligned for stores of four.
template <class Out, class Real>
__global__ void __launch_bounds__(kThreads)
    grid_kernel(Args<Out, Real> a, bool wide, const __grid_constant__ NoiseRuns runs) {
  const int64_t row = a.shape.channels * a.shape.plane;
  const int64_t quad = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (4 * quad >= row) return;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  const int valid = static_cast<int>(row - 4 * quad < 4 ? row - 4 * quad : 4);

  int64_t offset[4];
  Real mean[4] = {}, std[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t e = 4 * quad + (i < valid ? i : 0), channel = e / a.shape.plane;
    offset[i] = a.shape.channels_last ? (e - channel * a.shape.plane) * a.shape.channels + channel : e;
    if (a.std != nullptr) {
      mean[i] = a.mean[channel];
      std[i] = a.std[channel];
    }
  }

  const int64_t begin = runs.run[0].begin + blockIdx.y * blockDim.y + threadIdx.y;
  int current = run_of(runs, begin), loaded = -1;
  int32_t k[4] = {};
  for (int64_t n = begin; n < runs.end; n += step) {
    while (current + 1 < runs.count && runs.run[current + 1].begin <= n) ++current;
    const NoiseRun& run = runs.run[current];
    if (loaded != current) {
      for (int i = 0; i < valid; ++i) k[i] = a.k[run.row * row + 4 * quad + i];
      loaded = current;
    }
    const uint32_t sample = run.first + static_cast<uint32_t>(n - run.begin);
    int32_t j[4];
    grid_noise4(a.table, NoiseKey{run.key, a.domain}, run.image, sample, static_cast<uint32_t>(quad), j);
    Pack<Out, 4> result;
    bool tail = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Real y = grid_value<Real>(grid_sum(k[i], j[i]), a.p, a.q);
      result.v[i] = store_as<Out>(a.std == nullptr ? y : (y - mean[i]) / std[i]);
      tail |= i < valid && (j[i] >= a.table.count || -j[i] >= a.table.count);
    }
    if (tail) a.tail[n] = 1;  // a race between writes of equal values
    Out* target = a.out + n * row;
    if (wide) {
      *reinterpret_cast<Pack<Out, 4>*>(target + 4 * quad) = result;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < valid) target[offset[i]] = result.v[i];
    }
  }
}

}  // namespace

template <class Out, class Real>
cudaError_t sample_grid_noise(const GridTable& table, uint32_t domain, const NoiseRun* runs, int64_t run_count,
                              const NoiseShape& shape, const int32_t* k, Real p, Real q, const Real* mean,
                              const Real* std, Out* out, uint8_t* tail, cudaStream_t stream) {
  static_assert(kFits<Args<Out, Real>>);
  const Args<Out, Real> args{table, domain, shape, k, p, q, mean, std, out, tail};
  const int64_t row = shape.channels * shape.plane;
  const bool wide = (!shape.channels_last || shape.channels == 1) && row % 4 == 0 &&
                    reinterpret_cast<uintptr_t>(out) % alignof(Pack<Out, 4>) == 0;
  return for_run_groups(runs, run_count, shape.samples, [&](const NoiseRuns& part, int processors) {
    dim3 grid, block;
    const cudaError_t error = noise_launch((row + 3) / 4, part, processors, &grid, &block);
    if (error != cudaSuccess) return error;
    grid_kernel<Out, Real><<<grid, block, 0, stream>>>(args, wide, part);
    return cudaGetLastError();
  });
}

#define PYROBUST_SAMPLE_GRID_NOISE(Out, Real)                                                                   \
  template cudaError_t sample_grid_noise<Out, Real>(const GridTable&, uint32_t, const NoiseRun*, int64_t,       \
                                                    const NoiseShape&, const int32_t*, Real, Real, const Real*, \
                                                    const Real*, Out*, uint8_t*, cudaStream_t);
PYROBUST_SAMPLE_GRID_NOISE(float, float)
PYROBUST_SAMPLE_GRID_NOISE(double, double)
PYROBUST_SAMPLE_GRID_NOISE(Half, float)
PYROBUST_SAMPLE_GRID_NOISE(BFloat16, float)
#undef PYROBUST_SAMPLE_GRID_NOISE

}  // namespace pyrobust::cuda

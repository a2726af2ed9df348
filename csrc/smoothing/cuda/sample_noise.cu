// One thread for four pixels of the image, in a loop over the samples: x, mean and std are read once per run, nothing
// is divided per sample, and every store is as wide as the layout allows. Bound by the write of the batch.
#include "smoothing/cuda/sample_noise.h"

#include "smoothing/cuda/noise_launch.cuh"

namespace pyrobust::cuda {
namespace {

constexpr int kMaxPackedChannels = 4;

template <class Out, class Real>
struct Args {
  uint32_t domain;
  NoiseShape shape;
  const Real* x;
  Real sigma;
  const Real* mean;
  const Real* std;
  Out* out;
};

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

template <class Out, class Real>
__device__ __forceinline__ Out finished(const Args<Out, Real>& a, float z, Real x, Real mean, Real std) {
  const Real y = fused(a.sigma, static_cast<Real>(z), x);
  return store_as<Out>(a.std == nullptr ? y : (y - mean) / std);
}

// `C` channels innermost (channels_last), or planes one after another (C = 1). Needs planes of a multiple of four
// elements if C > 1 or std is given, else rows of such a multiple.
template <class Out, class Real, Family family, int C>
__global__ void __launch_bounds__(kThreads) packed_kernel(Args<Out, Real> a, const __grid_constant__ NoiseRuns runs) {
  const int64_t extent = C > 1 ? a.shape.plane : a.shape.channels * a.shape.plane;
  const int64_t quad = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (4 * quad >= extent) return;
  const int64_t row = a.shape.channels * a.shape.plane;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;

  Real mean[C] = {}, std[C] = {};
  if (a.std != nullptr) {
    for (int c = 0; c < C; ++c) {
      const int64_t channel = C > 1 ? c : 4 * quad / a.shape.plane;
      mean[c] = a.mean[channel];
      std[c] = a.std[channel];
    }
  }

  const int64_t begin = runs.run[0].begin + blockIdx.y * blockDim.y + threadIdx.y;
  int current = run_of(runs, begin), loaded = -1;
  Pack<Real, 4> x[C];
  for (int64_t n = begin; n < runs.end; n += step) {
    while (current + 1 < runs.count && runs.run[current + 1].begin <= n) ++current;
    const NoiseRun& run = runs.run[current];
    if (loaded != current) {
      for (int c = 0; c < C; ++c)
        x[c] = *reinterpret_cast<const Pack<Real, 4>*>(a.x + run.row * row + c * a.shape.plane + 4 * quad);
      loaded = current;
    }
    const uint32_t sample = run.first + static_cast<uint32_t>(n - run.begin);
    Out result[4 * C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float z[4];
      unit_noise4<family>(NoiseKey{run.key, a.domain}, run.image, sample,
                          static_cast<uint32_t>((c * a.shape.plane) / 4 + quad), z);
#pragma unroll
      for (int j = 0; j < 4; ++j) result[j * C + c] = finished(a, z[j], x[c].v[j], mean[c], std[c]);
    }
    Out* target = a.out + n * row + 4 * C * quad;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      Pack<Out, 4> pack;
#pragma unroll
      for (int j = 0; j < 4; ++j) pack.v[j] = result[4 * c + j];
      *reinterpret_cast<Pack<Out, 4>*>(target + 4 * c) = pack;
    }
  }
}

// Any shape and layout, with one element per store.
template <class Out, class Real, Family family>
__global__ void __launch_bounds__(kThreads) general_kernel(Args<Out, Real> a, const __grid_constant__ NoiseRuns runs) {
  const int64_t row = a.shape.channels * a.shape.plane;
  const int64_t quad = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (4 * quad >= row) return;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  const int valid = static_cast<int>(row - 4 * quad < 4 ? row - 4 * quad : 4);

  int64_t offset[4];
  Real mean[4] = {}, std[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t e = 4 * quad + (j < valid ? j : 0), channel = e / a.shape.plane;
    offset[j] = a.shape.channels_last ? (e - channel * a.shape.plane) * a.shape.channels + channel : e;
    if (a.std != nullptr) {
      mean[j] = a.mean[channel];
      std[j] = a.std[channel];
    }
  }

  const int64_t begin = runs.run[0].begin + blockIdx.y * blockDim.y + threadIdx.y;
  int current = run_of(runs, begin);
  for (int64_t n = begin; n < runs.end; n += step) {
    while (current + 1 < runs.count && runs.run[current + 1].begin <= n) ++current;
    const NoiseRun& run = runs.run[current];
    const uint32_t sample = run.first + static_cast<uint32_t>(n - run.begin);
    float z[4];
    unit_noise4<family>(NoiseKey{run.key, a.domain}, run.image, sample, static_cast<uint32_t>(quad), z);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < valid) a.out[n * row + offset[j]] = finished(a, z[j], a.x[run.row * row + 4 * quad + j], mean[j], std[j]);
  }
}

template <class Out, class Real, Family family>
cudaError_t launch(const Args<Out, Real>& a, const NoiseRuns& runs, int processors, cudaStream_t stream) {
  static_assert(kFits<Args<Out, Real>>);
  const NoiseShape& s = a.shape;
  const int64_t row = s.channels * s.plane;
  const bool innermost = s.channels_last && s.channels > 1;
  const bool aligned = reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && reinterpret_cast<uintptr_t>(a.out) % 16 == 0;
  const bool whole_quads = innermost ? s.plane % 4 == 0 && s.channels <= kMaxPackedChannels
                                     : row % 4 == 0 && (a.std == nullptr || s.plane % 4 == 0);
  const bool packed = aligned && whole_quads;
  const int64_t quads = ((innermost && packed ? s.plane : row) + 3) / 4;

  dim3 grid, block;
  const cudaError_t error = noise_launch(quads, runs, processors, &grid, &block);
  if (error != cudaSuccess) return error;

  if (!packed)
    general_kernel<Out, Real, family><<<grid, block, 0, stream>>>(a, runs);
  else if (!innermost)
    packed_kernel<Out, Real, family, 1><<<grid, block, 0, stream>>>(a, runs);
  else if (s.channels == 2)
    packed_kernel<Out, Real, family, 2><<<grid, block, 0, stream>>>(a, runs);
  else if (s.channels == 3)
    packed_kernel<Out, Real, family, 3><<<grid, block, 0, stream>>>(a, runs);
  else
    packed_kernel<Out, Real, family, 4><<<grid, block, 0, stream>>>(a, runs);
  return cudaGetLastError();
}

}  // namespace

template <class Out, class Real>
cudaError_t sample_noise(uint32_t domain, const NoiseRun* runs, int64_t run_count, const NoiseShape& shape,
                         const Real* x, Real sigma, const Real* mean, const Real* std, Out* out, cudaStream_t stream) {
  const Args<Out, Real> args{domain, shape, x, sigma, mean, std, out};
  return for_run_groups(runs, run_count, shape.samples, [&](const NoiseRuns& part, int processors) {
    switch (family_of(domain)) {
      case Family::kGaussian:
        return launch<Out, Real, Family::kGaussian>(args, part, processors, stream);
      case Family::kUniform:
        return launch<Out, Real, Family::kUniform>(args, part, processors, stream);
      default:
        return launch<Out, Real, Family::kLaplace>(args, part, processors, stream);
    }
  });
}

#define PYROBUST_SAMPLE_NOISE(Out, Real)                                                                           \
  template cudaError_t sample_noise<Out, Real>(uint32_t, const NoiseRun*, int64_t, const NoiseShape&, const Real*, \
                                               Real, const Real*, const Real*, Out*, cudaStream_t);
PYROBUST_SAMPLE_NOISE(float, float)
PYROBUST_SAMPLE_NOISE(double, double)
PYROBUST_SAMPLE_NOISE(Half, float)
PYROBUST_SAMPLE_NOISE(BFloat16, float)
#undef PYROBUST_SAMPLE_NOISE

}  // namespace pyrobust::cuda

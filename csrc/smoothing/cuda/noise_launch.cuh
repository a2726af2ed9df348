// Launch configuration of a noisy batch: threads along the image first, the rest of a block and of the launch along the
// samples.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/half.h"
#include "smoothing/noise.h"

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 256;
// Runs are a kernel argument, so that nothing is copied to the device and nothing waits; further runs take further
// launches. This many fill the 4 KB of arguments that a launch may have on every driver.
constexpr int kRunsPerLaunch = 120;

struct NoiseRuns {
  NoiseRun run[kRunsPerLaunch];
  int count;
  int64_t end;  // one past the last sample of this launch
};

// Whether arguments of type Args, with a flag, leave room for the runs.
template <class Args>
constexpr bool kFits = sizeof(Args) + 8 + sizeof(NoiseRuns) <= 4096;

// The run that holds sample n, which is not before the first sample of the first run.
__device__ __forceinline__ int run_of(const NoiseRuns& runs, int64_t n) {
  int low = 0, high = runs.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (runs.run[middle].begin <= n ? low : high) = middle;
  }
  return low;
}

template <class Out>
__device__ __forceinline__ Out store_as(float value);
template <>
__device__ __forceinline__ float store_as<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ Half store_as<Half>(float value) {
  return to_half(value);
}
template <>
__device__ __forceinline__ BFloat16 store_as<BFloat16>(float value) {
  return to_bfloat16(value);
}
template <class Out>
__device__ __forceinline__ double store_as(double value) {
  return value;
}

template <class T, int n>
struct alignas(sizeof(T) * n <= 16 ? sizeof(T) * n : 16) Pack {
  T v[n];
};

// Blocks and threads for `quads` times the samples of these runs: enough blocks to fill the card several times.
inline cudaError_t noise_launch(int64_t quads, const NoiseRuns& runs, int processors, dim3* grid, dim3* block) {
  int along = 32;
  while (along < kThreads && along < quads) along *= 2;
  *block = dim3(along, kThreads / along);
  const int64_t grid_x = (quads + along - 1) / along;
  if (grid_x > 0x7fffffff) return cudaErrorInvalidConfiguration;
  const int64_t samples = runs.end - runs.run[0].begin;
  const int64_t wanted = std::max<int64_t>(1, int64_t{32} * processors / grid_x);
  const int64_t grid_y = std::clamp<int64_t>((samples + block->y - 1) / block->y, 1, std::min<int64_t>(wanted, 65535));
  *grid = dim3(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
  return cudaSuccess;
}

// Calls launch(runs, processors) for each group of runs in turn, until one fails.
template <class Launch>
cudaError_t for_run_groups(const NoiseRun* runs, int64_t run_count, int64_t samples, const Launch& launch) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  for (int64_t first = 0; first < run_count && error == cudaSuccess; first += kRunsPerLaunch) {
    NoiseRuns part;
    part.count = static_cast<int>(std::min<int64_t>(kRunsPerLaunch, run_count - first));
    part.end = first + part.count < run_count ? runs[first + part.count].begin : samples;
    std::copy_n(runs + first, part.count, part.run);
    error = launch(part, processors);
  }
  return error;
}

}  // namespace
}  // namespace pyrobust::cuda

// A warp reads 32 / kLanes rows, kLanes CUDA threads each; votes for the same counter are added by one atomic.
#include "smoothing/cuda/count_votes.h"

#include <algorithm>

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kAll = 0xffffffffu;

template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads)
    count_votes_kernel(const T* logits, int64_t rows, int64_t classes, const int64_t* image, int64_t images,
                       unsigned long long* counts) {
  using Real = decltype(to_float(T{}));
  const Real infinity = static_cast<Real>(__int_as_float(0x7f800000));
  const int lane = threadIdx.x % kLanes;
  const int64_t groups = static_cast<int64_t>(gridDim.x) * (kThreads / kLanes);
  const int64_t group = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  // Whole warps take part in every round: the shuffles and the match need all threads of a warp.
  const int64_t rounds = (rows + groups - 1) / groups;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t n = round * groups + group;
    Vote<Real> vote{-infinity, -1, false};
    if (n < rows)
      for (int64_t k = lane; k < classes; k += kLanes) consider(vote, to_float(logits[n * classes + k]), k, infinity);
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      const Real best = __shfl_xor_sync(kAll, vote.best, offset);
      const long long index = __shfl_xor_sync(kAll, static_cast<long long>(vote.index), offset);
      const int invalid = __shfl_xor_sync(kAll, static_cast<int>(vote.invalid), offset);
      vote.invalid = vote.invalid || invalid;
      if (index >= 0 && (vote.index < 0 || best > vote.best || (best == vote.best && index < vote.index))) {
        vote.best = best;
        vote.index = index;
      }
    }
    long long counter = -1;
    if (lane == 0 && n < rows && image[n] >= 0 && image[n] < images)
      counter = image[n] * (classes + 1) + column(vote, classes);
    const unsigned same = __match_any_sync(kAll, counter);
    if (counter >= 0 && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(same)) - 1)
      atomicAdd(counts + counter, static_cast<unsigned long long>(__popc(same)));
  }
}

}  // namespace

template <class T>
cudaError_t count_votes(const T* logits, int64_t rows, int64_t classes, const int64_t* image, int64_t images,
                        int64_t* counts, cudaStream_t stream) {
  auto* counters = reinterpret_cast<unsigned long long*>(counts);
  const auto grid = [&](int lanes) {
    return static_cast<unsigned>(std::clamp<int64_t>((rows * lanes + kThreads - 1) / kThreads, 1, 8192));
  };
  if (classes <= 4)
    count_votes_kernel<T, 1><<<grid(1), kThreads, 0, stream>>>(logits, rows, classes, image, images, counters);
  else if (classes <= 64)
    count_votes_kernel<T, 8><<<grid(8), kThreads, 0, stream>>>(logits, rows, classes, image, images, counters);
  else
    count_votes_kernel<T, 32><<<grid(32), kThreads, 0, stream>>>(logits, rows, classes, image, images, counters);
  return cudaGetLastError();
}

#define PYROBUST_COUNT_VOTES(T) \
  template cudaError_t count_votes<T>(const T*, int64_t, int64_t, const int64_t*, int64_t, int64_t*, cudaStream_t);
PYROBUST_COUNT_VOTES(float)
PYROBUST_COUNT_VOTES(double)
PYROBUST_COUNT_VOTES(Half)
PYROBUST_COUNT_VOTES(BFloat16)
#undef PYROBUST_COUNT_VOTES

}  // namespace pyrobust::cuda

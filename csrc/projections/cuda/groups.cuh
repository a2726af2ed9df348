// The groups of threads that share a row (row.h), and the launch that gives each row a group: a few threads of a warp
// for short rows, which stay in registers; a block for longer rows; beyond 4096 elements, a large block that reads the
// row again for every pass, from L2 when the row is too long for the L1 cache.
//
// What to expect: up to 4096 elements, memory is read once and written once, and float64 arithmetic comes close to
// limiting the speed on an sm_90 (about half to two thirds of the copy rate by count of instructions, not measured). 64
// rows of 150528 elements occupy 64 of 132 processors for five to seven passes: a quarter to a third of the copy rate;
// a higher rate would need several blocks for a row.
#pragma once

#include <algorithm>

#include "projections/cuda/row.h"

namespace pyrobust::cuda {

struct Larger {
  template <class R>
  __device__ R operator()(R a, R b) const {
    return a > b ? a : b;
  }
};
struct Plus {
  template <class R>
  __device__ R operator()(R a, R b) const {
    return a + b;
  }
};

// kLanes neighbouring CUDA threads of a warp, which diverge from the others of the warp.
template <int kLanes>
class Lanes {
 public:
  __device__ Lanes() {
    const unsigned lane = threadIdx.x % 32;
    if constexpr (kLanes < 32) mask_ = ((1u << kLanes) - 1) << (lane - lane % kLanes);
  }
  __device__ int rank() const { return static_cast<int>(threadIdx.x % kLanes); }
  __device__ static constexpr int size() { return kLanes; }
  template <class R, int kCount>
  __device__ void add(R (&a)[kCount]) const {
    reduce(a, Plus());
  }
  __device__ double max(double a) const {
    double one[1] = {a + 0.0};  // zeros of one sign
    reduce(one, Larger());
    return one[0];
  }
  __device__ bool any(bool a) const { return __any_sync(mask_, a) != 0; }

  // Every thread gets the same bits: at each step a thread and its partner combine the same two numbers.
  template <class R, int kCount, class Op>
  __device__ void reduce(R (&a)[kCount], const Op& op) const {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
#pragma unroll
      for (int c = 0; c < kCount; ++c) a[c] = op(a[c], __shfl_xor_sync(mask_, a[c], offset));
  }

 private:
  unsigned mask_ = 0xffffffffu;
};

// All kThreads threads of a block.
template <int kThreads>
class Block {
 public:
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kMostValues = 3;
  // One set of partial results is written while the other may still be read. One barrier per reduction is enough,
  // because a thread returns to a set only after a barrier that all threads reach when they have read it.
  struct Shared {
    double partial[2][kMostValues][kWarps];
  };

  __device__ explicit Block(Shared& shared) : shared_(shared) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ static constexpr int size() { return kThreads; }
  template <class R, int kCount>
  __device__ void add(R (&a)[kCount]) {
    reduce(a, Plus());
  }
  __device__ double max(double a) {
    double one[1] = {a + 0.0};
    reduce(one, Larger());
    return one[0];
  }
  __device__ bool any(bool a) const { return __syncthreads_or(a) != 0; }

 private:
  template <class R, int kCount, class Op>
  __device__ void reduce(R (&a)[kCount], const Op& op) {
    static_assert(kCount <= kMostValues && sizeof(R) <= sizeof(double));
    warp_.reduce(a, op);
    auto& partial = shared_.partial[set_];
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    if (lane == 0)
#pragma unroll
      for (int c = 0; c < kCount; ++c) memcpy(&partial[c][warp], &a[c], sizeof(R));
    __syncthreads();
    // Every warp combines the same partial results in the same order.
#pragma unroll
    for (int c = 0; c < kCount; ++c) memcpy(&a[c], &partial[c][lane % kWarps], sizeof(R));
    across_.reduce(a, op);
    set_ = 1 - set_;
  }

  Shared& shared_;
  const Lanes<32> warp_;
  const Lanes<kWarps> across_;
  int set_ = 0;
};

constexpr int kLaneThreads = 128;

// work.template row<kPer>(group, i) for all rows i.
template <int kLanes, int kPer, class Work>
__global__ void __launch_bounds__(kLaneThreads) lanes_kernel(const Work work, int64_t rows) {
  constexpr int kGroups = kLaneThreads / kLanes;
  Lanes<kLanes> group;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kGroups;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kGroups + threadIdx.x / kLanes; i < rows; i += stride)
    work.template row<kPer>(group, i);
}

template <int kThreads, int kPer, class Work>
__global__ void __launch_bounds__(kThreads, kThreads < 1024 ? 512 / kThreads : 1)
    block_kernel(const Work work, int64_t rows) {
  __shared__ typename Block<kThreads>::Shared shared;
  Block<kThreads> group(shared);
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) work.template row<kPer>(group, i);
}

template <int kLanes, int kPer, class Work>
void launch_lanes(const Work& work, int64_t rows, cudaStream_t stream) {
  constexpr int kGroups = kLaneThreads / kLanes;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((rows + kGroups - 1) / kGroups, 1 << 20));
  lanes_kernel<kLanes, kPer><<<blocks, kLaneThreads, 0, stream>>>(work, rows);
}

// rows, n at least 1.
template <class Work>
cudaError_t for_rows(const Work& work, int64_t rows, int64_t n, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(rows, 1 << 20));
  if (n <= 16)
    launch_lanes<4, 4>(work, rows, stream);
  else if (n <= 64)
    launch_lanes<8, 8>(work, rows, stream);
  else if (n <= 256)
    launch_lanes<32, 8>(work, rows, stream);
  else if (n <= 1024)
    block_kernel<128, 8><<<blocks, 128, 0, stream>>>(work, rows);
  else if (n <= 4096)
    block_kernel<256, 16><<<blocks, 256, 0, stream>>>(work, rows);
  else
    block_kernel<1024, 0><<<blocks, 1024, 0, stream>>>(work, rows);
  return cudaGetLastError();
}

}  // namespace pyrobust::cuda

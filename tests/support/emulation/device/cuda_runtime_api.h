// The part of CUDA that the launchers and kernels of csrc/*/cuda use, on the host: a fiber for every thread of a block,
// one block after the other. In the place of CUDA's own header when a .cu file is compiled for an emulator; emulation.py
// rewrites `kernel<<<grid, block, 0, stream>>>(arguments)` to emulate(grid, block, kernel)(arguments).
#pragma once

#include <cmath>
#include <cstdint>

#include "fibers.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __grid_constant__
#define __shared__ static
#define __syncthreads() pyrobust::emulation::meet(pyrobust::emulation::Kind::kAny, 0)

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = void*;
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned a, unsigned b = 1) : x(a), y(b) {}
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};

inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
// Few, so that threads loop over several samples.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 1, cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

namespace pyrobust::emulation {

struct ThreadX {
  operator unsigned() const;
};
struct ThreadY {
  operator unsigned() const;
};
struct ThreadIndex {
  ThreadX x;
  ThreadY y;
};

inline dim3 grid_size, block_size, block_index;

inline ThreadX::operator unsigned() const { return static_cast<unsigned>(Scheduler::running().rank()) % block_size.x; }
inline ThreadY::operator unsigned() const { return static_cast<unsigned>(Scheduler::running().rank()) / block_size.x; }

inline uint64_t meet(Kind kind, uint64_t value, uint64_t with = 0) {
  return Scheduler::running().meet({kind, 1, {value, with}}).values[0];
}

// Returns a function that runs kernel(arguments) on every thread of every block.
template <class Kernel>
auto emulate(dim3 grid, dim3 block, Kernel kernel) {
  return [=](auto... arguments) {
    const unsigned threads = block.x * block.y;
    if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || threads == 0 || threads > kMostThreads)
      throw "a launch that CUDA refuses";
    Scheduler& scheduler = scheduler_of(static_cast<int>(threads));
    grid_size = grid, block_size = block;
    for (block_index.y = 0; block_index.y < grid.y; ++block_index.y)
      for (block_index.x = 0; block_index.x < grid.x; ++block_index.x)
        scheduler.run([&](int) { kernel(arguments...); });
  };
}

}  // namespace pyrobust::emulation

#define threadIdx (pyrobust::emulation::ThreadIndex{})
#define blockIdx pyrobust::emulation::block_index
#define blockDim pyrobust::emulation::block_size
#define gridDim pyrobust::emulation::grid_size

inline float __int_as_float(int word) { return pyrobust::emulation::unpacked<float>(static_cast<uint32_t>(word)); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline int __popc(unsigned mask) { return __builtin_popcount(mask); }
inline int __ffs(int mask) { return __builtin_ffs(mask); }

template <class T>
T __shfl_xor_sync(unsigned, T value, int lane_mask) {
  using namespace pyrobust::emulation;
  return unpacked<T>(meet(Kind::kShuffle, packed(value), static_cast<uint64_t>(lane_mask)));
}
inline unsigned __match_any_sync(unsigned, long long value) {
  using namespace pyrobust::emulation;
  return static_cast<unsigned>(meet(Kind::kMatch, packed(value)));
}
template <class T, class U>
T atomicAdd(T* place, U value) {
  const T before = *place;
  *place += static_cast<T>(value);
  return before;
}

// The inner loops of batch_last_conv.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/batch_last_conv_kernels.h"
#include "simd/dispatch.h"

#define PYROBUST_KERNELS "bounds/cpu/batch_last_conv_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec_real.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Blocks of output planes and kernel columns, by the number of sums that the registers hold.
constexpr int64_t kPlanes = kSums >= 24 ? 8 : 4;
constexpr int64_t kColumns = kSums >= 24 ? 3 : 1;
template <int kBlock>
constexpr int kVectors = kSums / kBlock < 8 ? (kSums / kBlock < 1 ? 1 : kSums / kBlock) : 8;

static_assert(kCount<float> == kConvLanes<float> && kCount<double> == kConvLanes<double>);

template <class T>
using Lanes = decltype(broadcast(T(0)));

// Loads a full vector, or only the n < kCount examples that exist.
template <bool kPartial, class T>
PYROBUST_TARGET inline Lanes<T> get(const T* p, int64_t n) {
  if constexpr (kPartial) return load_up_to(p, 0, n);
  return load_lanes(p);
}

// Computes the outputs of kBlock planes for kWide vectors of examples.
template <int kBlock, int kWide, bool kPartial, class T>
PYROBUST_TARGET inline void tile(const ConvPlace<T>& at, int64_t lane, const KernelElement* elements, int64_t count) {
  Lanes<T> sum[kBlock][kWide];
  const int64_t lanes = at.lanes - lane;
#pragma GCC unroll 8
  for (int w = 0; w < kWide; ++w) {
    const auto scale = at.scale == nullptr ? broadcast(T(1)) : get<kPartial>(at.scale + lane + w * kCount<T>, lanes);
#pragma GCC unroll 8
    for (int j = 0; j < kBlock; ++j)
      sum[j][w] = at.bias == nullptr ? broadcast(T(0)) : mul(broadcast(at.bias[j]), scale);
  }
  for (int64_t t = 0; t < count; ++t) {
    const T* weight = at.weight + elements[t].weight * kBlock;
    const T* input = at.input + elements[t].input + lane;
    for (int64_t k = 0; k < at.inputs; ++k, weight += kBlock, input += at.input_plane) {
      Lanes<T> in[kWide];
#pragma GCC unroll 8
      for (int w = 0; w < kWide; ++w) in[w] = get<kPartial>(input + w * kCount<T>, lanes);
#pragma GCC unroll 8
      for (int j = 0; j < kBlock; ++j) {
        const auto factor = broadcast(weight[j]);
#pragma GCC unroll 8
        for (int w = 0; w < kWide; ++w) sum[j][w] = fused(factor, in[w], sum[j][w]);
      }
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kBlock; ++j)
#pragma GCC unroll 8
    for (int w = 0; w < kWide; ++w) {
      T* const output = at.output + j * at.output_plane + lane;
      if constexpr (kPartial)
        store_up_to(output, 0, lanes, sum[j][w]);
      else
        put(output + w * kCount<T>, sum[j][w]);
    }
}

// Computes the last `wide` vectors, which may overlap those already computed.
template <int kBlock, int kWide, class T>
PYROBUST_TARGET inline void last_tile(int64_t wide, const ConvPlace<T>& at, const KernelElement* elements,
                                      int64_t count) {
  if constexpr (kWide > 0) {
    if (wide == kWide) return tile<kBlock, kWide, false>(at, at.lanes - wide * kCount<T>, elements, count);
    last_tile<kBlock, kWide - 1>(wide, at, elements, count);
  }
}

template <int kBlock, class T>
PYROBUST_TARGET void place_block(const ConvPlace<T>& at, const KernelElement* elements, int64_t count) {
  constexpr int64_t kStep = kVectors<kBlock> * kCount<T>;
  int64_t lane = 0;
  for (; lane + kStep <= at.lanes; lane += kStep) tile<kBlock, kVectors<kBlock>, false>(at, lane, elements, count);
  const int64_t wide = (at.lanes - lane + kCount<T> - 1) / kCount<T>;
  if (wide == 0) return;
  if (wide * kCount<T> <= at.lanes) return last_tile<kBlock, kVectors<kBlock>>(wide, at, elements, count);
  for (; lane < at.lanes; lane += kCount<T>) tile<kBlock, 1, true>(at, lane, elements, count);
}

template <class T>
PYROBUST_TARGET void place(int64_t block, const ConvPlace<T>& at, const KernelElement* elements, int64_t count) {
  switch (block) {
    case 8:
      if constexpr (kPlanes == 8) place_block<8>(at, elements, count);
      return;
    case 4:
      return place_block<4>(at, elements, count);
    case 3:
      return place_block<3>(at, elements, count);
    case 2:
      return place_block<2>(at, elements, count);
    default:
      return place_block<1>(at, elements, count);
  }
}

// Keeps a in a register: loads are the bottleneck, and compilers otherwise reload it for every product.
template <class L>
PYROBUST_TARGET inline L once(L a) {
  in_register(a);
  return a;
}

template <int kBlock, int kWide, bool kPartial, class T>
PYROBUST_TARGET inline void products(const ConvStrip<T>& strip, const T* y, const T* x,
                                     Lanes<T> (&sum)[kBlock][kWide]) {
  Lanes<T> in[kWide];
#pragma GCC unroll 8
  for (int w = 0; w < kWide; ++w) in[w] = get<kPartial>(x + w * strip.x_column, strip.partial);
#pragma GCC unroll 8
  for (int j = 0; j < kBlock; ++j) {
    const auto factor = once(load_lanes(y + j * kCount<T>));
#pragma GCC unroll 8
    for (int w = 0; w < kWide; ++w) sum[j][w] = fused(factor, in[w], sum[j][w]);
  }
}

template <int kBlock, int kWide, class T>
PYROBUST_TARGET void strip_block(const ConvStrip<T>& strip) {
  Lanes<T> sum[kBlock][kWide];
#pragma GCC unroll 8
  for (int j = 0; j < kBlock; ++j)
#pragma GCC unroll 8
    for (int w = 0; w < kWide; ++w) sum[j][w] = load_lanes(strip.sums + j * strip.sums_plane + w * kCount<T>);
  const T *y = strip.y, *x = strip.x;
  constexpr int64_t kStep = kBlock * kCount<T>;
  for (int64_t place = 0; place < strip.places; ++place, x += strip.x_stride) {
    for (int64_t v = 0; v + 1 < strip.vectors; ++v, y += kStep)
      products<kBlock, kWide, false>(strip, y, x + v * kCount<T>, sum);
    if (strip.partial == 0)
      products<kBlock, kWide, false>(strip, y, x + strip.last, sum);
    else
      products<kBlock, kWide, true>(strip, y, x, sum);
    y += kStep;
  }
#pragma GCC unroll 8
  for (int j = 0; j < kBlock; ++j)
#pragma GCC unroll 8
    for (int w = 0; w < kWide; ++w) put(strip.sums + j * strip.sums_plane + w * kCount<T>, sum[j][w]);
}

template <int kBlock, class T>
PYROBUST_TARGET void strip_columns(int64_t columns, const ConvStrip<T>& strip) {
  if constexpr (kColumns == 3) {
    if (columns == 3) return strip_block<kBlock, 3>(strip);
    if (columns == 2) return strip_block<kBlock, 2>(strip);
  }
  strip_block<kBlock, 1>(strip);
}

template <class T>
PYROBUST_TARGET void strip(int64_t block, int64_t columns, const ConvStrip<T>& one) {
  switch (block) {
    case 8:
      if constexpr (kPlanes == 8) strip_columns<8>(columns, one);
      return;
    case 4:
      return strip_columns<4>(columns, one);
    case 3:
      return strip_columns<3>(columns, one);
    case 2:
      return strip_columns<2>(columns, one);
    default:
      return strip_columns<1>(columns, one);
  }
}

template <class T>
constexpr BatchLastConvKernels<T> kKernels = {kPlanes, kColumns, place<T>, strip<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const BatchLastConvKernels<T>& batch_last_conv_kernels() {
  return PYROBUST_AT_LEVEL(kKernels<T>);
}
template const BatchLastConvKernels<float>& batch_last_conv_kernels();
template const BatchLastConvKernels<double>& batch_last_conv_kernels();

}  // namespace pyrobust::cpu

#endif

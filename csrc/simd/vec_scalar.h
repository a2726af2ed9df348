// Eight float64 lanes without intrinsics: the specification of vec_avx2.h and vec_avx512.h, which give the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/directed_rounding.h"
#include "common/half.h"

namespace pyrobust::cpu::scalar {
namespace {

// Vectors of 16 bytes, which the baseline of every 64-bit processor has: twice as fast as arrays of numbers, and far less
// work for a compiler.
using Pair = double __attribute__((vector_size(16)));
using PairBits = int64_t __attribute__((vector_size(16)));
struct V {
  Pair part[4];
};
constexpr int64_t kRegisters = 4;  // of a V
constexpr int kSums = 4;           // number of vectors of sums that the registers hold beside their factors

#define PYROBUST_PARTS(Type, expression)                  \
  Type out;                                               \
  for (int i = 0; i < 4; ++i) out.part[i] = (expression); \
  return out;

inline V splat(double a) { PYROBUST_PARTS(V, (Pair{a, a})) }
// float32 is converted in vectors: of Pair{double(p[0]), double(p[1])}, GCC 12 at -O3 drops a rounding to float32 that went
// before.
template <class T>
inline V load(const T* p) {
  V out;
  if constexpr (std::is_same_v<T, double>) {
    memcpy(&out, p, sizeof(out));
  } else if constexpr (std::is_same_v<T, float>) {
    float __attribute__((vector_size(8))) pair[4];
    memcpy(pair, p, sizeof(pair));
    for (int i = 0; i < 4; ++i) out.part[i] = __builtin_convertvector(pair[i], Pair);
  } else {
    double lane[8];
    for (int i = 0; i < 8; ++i) lane[i] = static_cast<double>(to_float(p[i]));
    memcpy(&out, lane, sizeof(out));
  }
  return out;
}
inline V add(V a, V b) { PYROBUST_PARTS(V, a.part[i] + b.part[i]) }
inline V sub(V a, V b) { PYROBUST_PARTS(V, a.part[i] - b.part[i]) }
inline V mul(V a, V b) { PYROBUST_PARTS(V, a.part[i] * b.part[i]) }
// a b + c, rounded once or twice: hardware rounds once, so bits may differ between levels.
inline V fused(V a, V b, V c) { PYROBUST_PARTS(V, a.part[i] * b.part[i] + c.part[i]) }
inline V div(V a, V b) { PYROBUST_PARTS(V, a.part[i] / b.part[i]) }
// As in hardware, the second argument if either is NaN.
inline V min(V a, V b) { PYROBUST_PARTS(V, a.part[i] < b.part[i] ? a.part[i] : b.part[i]) }
inline V max(V a, V b) { PYROBUST_PARTS(V, a.part[i] > b.part[i] ? a.part[i] : b.part[i]) }
// The bits of b where a bit of `chosen` is set, else those of a.
inline Pair merge(Pair a, Pair b, int64_t chosen) { return (Pair)(((PairBits)a & ~chosen) | ((PairBits)b & chosen)); }
constexpr int64_t kSign64 = std::numeric_limits<int64_t>::min();
inline V abs(V a) { PYROBUST_PARTS(V, merge(a.part[i], Pair{}, kSign64)) }
// The first argument with the sign of the second.
inline V with_sign(V a, V b) { PYROBUST_PARTS(V, merge(a.part[i], b.part[i], kSign64)) }
// a < b ? yes : no
inline V where_less(V a, V b, V yes, V no) { PYROBUST_PARTS(V, a.part[i] < b.part[i] ? yes.part[i] : no.part[i]) }
// Bit i is a < b in lane i.
inline unsigned less_bits(V a, V b) {
  unsigned out = 0;
  for (int i = 0; i < 8; ++i) out |= static_cast<unsigned>(a.part[i / 2][i % 2] < b.part[i / 2][i % 2]) << i;
  return out;
}
inline void put(double* p, V a) { memcpy(p, &a, sizeof(a)); }

// Eight elements of T, each a rounded toward `target`.
template <class T>
inline void put_toward(T* p, V a, V target) {
  double from[8], to[8];
  put(from, a), put(to, target);
  for (int i = 0; i < 8; ++i) p[i] = round_toward<T>(from[i], to[i]);
}

// Eight elements of T, each the nearest to a.
template <class T>
inline void put_nearest(T* p, V a) {
  double from[8];
  put(from, a);
  for (int i = 0; i < 8; ++i) p[i] = round_nearest<T>(from[i]);
}

// Eight elements of T, each a rounded toward zero; returns them.
template <class T>
inline V put_truncated(T* p, V a) {
  double from[8];
  put(from, a);
  for (int i = 0; i < 8; ++i) p[i] = round_toward<T>(from[i], 0.0);
  return load(p);
}

// Packs the elements whose bit is set, in order; may write all eight.
template <class T>
inline int pack(T* out, const T* in, unsigned keep) {
  int count = 0;
  for (int i = 0; i < 8; ++i) {
    const T value = in[i];
    out[count] = value;
    count += static_cast<int>((keep >> i) & 1u);
  }
  return count;
}

inline int pack(double* out, V a, unsigned keep) {
  double from[8];
  put(from, a);
  return pack(out, from, keep);
}

// Sixteen float32 lanes.
using Four = float __attribute__((vector_size(16)));
using FourBits = int32_t __attribute__((vector_size(16)));
struct W {
  Four part[4];
};

inline W wide(float a) { PYROBUST_PARTS(W, (Four{a, a, a, a})) }
inline W load_wide(const float* p) {
  W out;
  memcpy(&out, p, sizeof(out));
  return out;
}
inline void put(float* p, W a) { memcpy(p, &a, sizeof(a)); }
inline W add(W a, W b) { PYROBUST_PARTS(W, a.part[i] + b.part[i]) }
inline W sub(W a, W b) { PYROBUST_PARTS(W, a.part[i] - b.part[i]) }
inline W mul(W a, W b) { PYROBUST_PARTS(W, a.part[i] * b.part[i]) }
inline W fused(W a, W b, W c) { PYROBUST_PARTS(W, a.part[i] * b.part[i] + c.part[i]) }
// Eight float32 lanes.
struct H {
  Four part[2];
};
inline H eight(float a) { return {{Four{a, a, a, a}, Four{a, a, a, a}}}; }
inline H load_eight(const float* p) {
  H out;
  memcpy(&out, p, sizeof(out));
  return out;
}
inline void put(float* p, H a) { memcpy(p, &a, sizeof(a)); }
inline H add(H a, H b) { return {{a.part[0] + b.part[0], a.part[1] + b.part[1]}}; }
inline H fused(H a, H b, H c) { return {{a.part[0] * b.part[0] + c.part[0], a.part[1] * b.part[1] + c.part[1]}}; }
inline W max(W a, W b) { PYROBUST_PARTS(W, a.part[i] > b.part[i] ? a.part[i] : b.part[i]) }
inline Four merge(Four a, Four b, int32_t chosen) { return (Four)(((FourBits)a & ~chosen) | ((FourBits)b & chosen)); }
constexpr int32_t kSign32 = std::numeric_limits<int32_t>::min();
inline W abs(W a) { PYROBUST_PARTS(W, merge(a.part[i], Four{}, kSign32)) }
inline W div(W a, W b) { PYROBUST_PARTS(W, a.part[i] / b.part[i]) }
// The nearest float32 numbers.
inline W narrow(V a, V b) {
  float out[16];
  put_nearest(out, a), put_nearest(out + 8, b);
  return load_wide(out);
}
// Loads four neighbouring elements of each of sixteen rows, the k-th of all rows to columns[k]; store_columns is the
// inverse.
inline void load_columns(const float* rows, int64_t apart, W* columns) {
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 4; ++k) columns[k].part[i / 4][i % 4] = rows[i * apart + k];
}
inline void store_columns(float* rows, int64_t apart, const W* columns) {
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 4; ++k) rows[i * apart + k] = columns[k].part[i / 4][i % 4];
}
// The first and the last eight lanes.
inline V half_of(W a, int half) {
  float from[16];
  put(from, a);
  return load(from + 8 * half);
}
inline V first(W a) { return half_of(a, 0); }
inline V last(W a) { return half_of(a, 1); }
inline W with_sign(W a, W b) { PYROBUST_PARTS(W, merge(a.part[i], b.part[i], kSign32)) }
// a < b ? yes : 0
inline W where_less(W a, W b, W yes) { PYROBUST_PARTS(W, a.part[i] < b.part[i] ? yes.part[i] : Four{}) }
inline W min(W a, W b) { PYROBUST_PARTS(W, a.part[i] < b.part[i] ? a.part[i] : b.part[i]) }
inline W where_less(W a, W b, W yes, W no) { PYROBUST_PARTS(W, a.part[i] < b.part[i] ? yes.part[i] : no.part[i]) }
// Decrements the bits of s where a < b: the next number below, for s > 0.
inline W one_less_where_less(W a, W b, W s) { PYROBUST_PARTS(W, (Four)((FourBits)s.part[i] + (a.part[i] < b.part[i]))) }
inline unsigned less_bits(W a, W b) {
  unsigned out = 0;
  for (int i = 0; i < 16; ++i) out |= static_cast<unsigned>(a.part[i / 4][i % 4] < b.part[i / 4][i % 4]) << i;
  return out;
}
inline int pack(float* out, W a, unsigned keep) {
  float from[16];
  put(from, a);
  int count = 0;
  for (int i = 0; i < 16; ++i)
    if (((keep >> i) & 1u) != 0) out[count++] = from[i];
  return count;
}

#undef PYROBUST_PARTS

constexpr bool kMaskedLanes = false;
constexpr bool kHalfLanes = false;  // whether simd/vec_half.inl is there

// No-op: the level has too few registers to hold it.
inline void in_register(V&) {}
inline void in_register(W&) {}

}  // namespace
}  // namespace pyrobust::cpu::scalar

// Eight float64 lanes in plain C++: the specification of vec_avx2.h and vec_avx512.h, which give the same bits.
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

struct V {
  double lane[8];
};
constexpr int64_t kRegisters = 1;  // the compiler allocates them
constexpr int kSums = 4;           // vectors of sums that the registers hold beside their factors

#define PYROBUST_LANES(expression)                        \
  V out;                                                  \
  for (int i = 0; i < 8; ++i) out.lane[i] = (expression); \
  return out;

inline V splat(double a) { PYROBUST_LANES(a) }
template <class T>
inline V load(const T* p) {
  PYROBUST_LANES(static_cast<double>(to_float(p[i])))
}
inline V add(V a, V b) { PYROBUST_LANES(a.lane[i] + b.lane[i]) }
inline V sub(V a, V b) { PYROBUST_LANES(a.lane[i] - b.lane[i]) }
inline V mul(V a, V b) { PYROBUST_LANES(a.lane[i] * b.lane[i]) }
// a b + c, rounded once or twice: hardware rounds once, so bits may differ between levels.
inline V fused(V a, V b, V c) { PYROBUST_LANES(a.lane[i] * b.lane[i] + c.lane[i]) }
inline V div(V a, V b) { PYROBUST_LANES(a.lane[i] / b.lane[i]) }
// As in hardware: the second argument where either is NaN.
inline V min(V a, V b) { PYROBUST_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]) }
inline V max(V a, V b) { PYROBUST_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]) }
inline V abs(V a) { PYROBUST_LANES(std::fabs(a.lane[i])) }
// The first with the sign of the second.
inline V with_sign(V a, V b) { PYROBUST_LANES(std::copysign(a.lane[i], b.lane[i])) }
// a < b ? yes : no
inline V where_less(V a, V b, V yes, V no) { PYROBUST_LANES(a.lane[i] < b.lane[i] ? yes.lane[i] : no.lane[i]) }
// Bit i is a < b in lane i.
inline unsigned less_bits(V a, V b) {
  unsigned out = 0;
  for (int i = 0; i < 8; ++i) out |= static_cast<unsigned>(a.lane[i] < b.lane[i]) << i;
  return out;
}
inline void put(double* p, V a) { memcpy(p, a.lane, sizeof(a.lane)); }

// Eight elements of T, each a rounded toward `target`.
template <class T>
inline void put_toward(T* p, V a, V target) {
  for (int i = 0; i < 8; ++i) p[i] = round_toward<T>(a.lane[i], target.lane[i]);
}

// Eight elements of T, each the nearest to a.
template <class T>
inline void put_nearest(T* p, V a) {
  for (int i = 0; i < 8; ++i) p[i] = round_nearest<T>(a.lane[i]);
}

// Eight elements of T, each a rounded toward zero; returns them.
template <class T>
inline V put_truncated(T* p, V a) {
  put_toward(p, a, splat(0));
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

inline int pack(double* out, V a, unsigned keep) { return pack(out, a.lane, keep); }

#undef PYROBUST_LANES

// Sixteen float32 lanes.
struct W {
  float lane[16];
};

#define PYROBUST_LANES(expression)                         \
  W out;                                                   \
  for (int i = 0; i < 16; ++i) out.lane[i] = (expression); \
  return out;

inline W wide(float a) { PYROBUST_LANES(a) }
inline W load_wide(const float* p) { PYROBUST_LANES(p[i]) }
inline void put(float* p, W a) { memcpy(p, a.lane, sizeof(a.lane)); }
inline W add(W a, W b) { PYROBUST_LANES(a.lane[i] + b.lane[i]) }
inline W sub(W a, W b) { PYROBUST_LANES(a.lane[i] - b.lane[i]) }
inline W mul(W a, W b) { PYROBUST_LANES(a.lane[i] * b.lane[i]) }
inline W fused(W a, W b, W c) { PYROBUST_LANES(a.lane[i] * b.lane[i] + c.lane[i]) }
inline W max(W a, W b) { PYROBUST_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]) }
inline W abs(W a) { PYROBUST_LANES(std::fabs(a.lane[i])) }
inline W div(W a, W b) { PYROBUST_LANES(a.lane[i] / b.lane[i]) }
// The nearest float32 numbers.
inline W narrow(V a, V b) { PYROBUST_LANES(static_cast<float>(i < 8 ? a.lane[i] : b.lane[i - 8])) }
// Loads four neighbouring elements of each of sixteen rows, the k-th of all rows to columns[k]; store_columns is the
// inverse.
inline void load_columns(const float* rows, int64_t apart, W* columns) {
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 4; ++k) columns[k].lane[i] = rows[i * apart + k];
}
inline void store_columns(float* rows, int64_t apart, const W* columns) {
  for (int i = 0; i < 16; ++i)
    for (int k = 0; k < 4; ++k) rows[i * apart + k] = columns[k].lane[i];
}
// The first and the last eight lanes.
inline V first(W a) { return load(a.lane); }
inline V last(W a) { return load(a.lane + 8); }
inline W with_sign(W a, W b) { PYROBUST_LANES(std::copysign(a.lane[i], b.lane[i])) }
// a < b ? yes : 0
inline W where_less(W a, W b, W yes) { PYROBUST_LANES(a.lane[i] < b.lane[i] ? yes.lane[i] : 0.0f) }
inline W min(W a, W b) { PYROBUST_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]) }
inline W where_less(W a, W b, W yes, W no) { PYROBUST_LANES(a.lane[i] < b.lane[i] ? yes.lane[i] : no.lane[i]) }
// Decrements the bits of s where a < b: the next number below, for s > 0.
inline W one_less_where_less(W a, W b, W s) {
  PYROBUST_LANES(bits<float>(bits<uint32_t>(s.lane[i]) - static_cast<uint32_t>(a.lane[i] < b.lane[i])))
}
inline unsigned less_bits(W a, W b) {
  unsigned out = 0;
  for (int i = 0; i < 16; ++i) out |= static_cast<unsigned>(a.lane[i] < b.lane[i]) << i;
  return out;
}
inline int pack(float* out, W a, unsigned keep) {
  int count = 0;
  for (int i = 0; i < 16; ++i)
    if (((keep >> i) & 1u) != 0) out[count++] = a.lane[i];
  return count;
}

#undef PYROBUST_LANES

constexpr bool kMaskedLanes = false;

// No-op: the level has too few registers to hold it.
inline void in_register(V&) {}
inline void in_register(W&) {}

}  // namespace
}  // namespace pyrobust::cpu::scalar

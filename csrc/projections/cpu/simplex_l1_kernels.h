// The inner loops of the simplex and l1-ball projections, one set per instruction set, all with the same bits: sums run in
// sixteen chains whatever the machine's registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/half.h"
#include "common/row_loop.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {

// A row's elements are a = v (simplex) or |v| (l1 ball). With top the largest, t = top - a >= 0 is how far an element lies
// below it, and the projection is reach - t where that is positive: no cancellation, however large the row.
struct Scan {
  double top;
  double total;  // of a; not finite where an element is not
};
struct Below {  // the elements with t < reach
  int64_t count;
  double total;  // of t
};

template <class T>
struct L1Leaves {
  Scan (*scan)(const T* v, int64_t n);
  // Packs the elements of v with t < reach into kept, which has room for n and may be v.
  Below (*keep)(const T* v, T* kept, int64_t n, double top, double reach);
  // z = reach - t where positive, rounded toward zero, with v's sign; returns the sum of |z|.
  double (*finish)(const T* v, T* z, int64_t n, double top, double reach);
  // kShortRows rows of n <= kShortRow elements, a lane each, of which `rows` exist. Bit i of the result: row i is not done, for
  // it needs the exact comparisons, or is not finite.
  unsigned (*short_rows)(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t n, int rows);
};

// The same for float32 rows of the l1 ball in float32 arithmetic, where its errors do not matter: sums over 32 chains.
struct FastScan {
  float top, total;  // total not finite where an element is not
};
struct FastKept {
  int64_t count;
  float total;  // of |v|
};
struct FastLeaves {
  FastScan (*scan)(const float* v, int64_t n);
  // Packs the elements of v with |v| > theta into kept, which has room for n and may be v.
  FastKept (*keep)(const float* v, float* kept, int64_t n, float theta);
  // z = (|v| - high) - low where positive, in float32, with v's sign; returns the sum of |z|.
  double (*finish)(const float* v, float* z, int64_t n, float high, float low);
};
extern const FastLeaves kFastScalar, kFastAvx2, kFastAvx512;

// Float32 sums of n numbers in 32 chains are within this of the truth, relatively.
constexpr double fast_error(int64_t n) { return static_cast<double>(n / 32 + 40) * 0x1p-23; }

template <class T>
struct L1LeafPair {
  L1Leaves<T> simplex, ball;
};

extern const L1LeafPair<float> kL1FloatScalar, kL1FloatAvx2, kL1FloatAvx512;
extern const L1LeafPair<double> kL1DoubleScalar, kL1DoubleAvx2, kL1DoubleAvx512;
extern const L1LeafPair<Half> kL1Half;
extern const L1LeafPair<BFloat16> kL1BFloat16;

template <class T>
const L1LeafPair<T>& l1_leaves() {
  if constexpr (std::is_same_v<T, Half>)
    return kL1Half;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return kL1BFloat16;
  else if constexpr (std::is_same_v<T, float>)
    return PYROBUST_LEAVES(kL1Float);
  else
    return PYROBUST_LEAVES(kL1Double);
}

}  // namespace pyrobust::cpu

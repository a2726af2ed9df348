// The inner loops of the projections onto the simplex and the l1 ball, one set for each instruction set, all with
// bitwise equal results: sums run in sixteen chains whatever the width of the registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/half.h"
#include "common/row_loop.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {

// A row's elements are a = v (simplex) or |v| (l1 ball). With top the largest, t = top - a >= 0 is how far an element
// lies below it, and the projection is reach - t where that is positive: no cancellation, however large the row.
struct Scan {
  double top;
  double total;  // of a; not finite where an element is not
};
struct Below {  // the elements with t < reach
  int64_t count;
  double total;  // of t
};

template <class T>
struct SimplexL1Kernels {
  Scan (*scan)(const T* v, int64_t n);
  // Packs the elements of v with t < reach into kept, which has room for n and may be v.
  Below (*keep)(const T* v, T* kept, int64_t n, double top, double reach);
  // z = reach - t where positive, rounded toward zero, with v's sign; returns the sum of |z|.
  double (*finish)(const T* v, T* z, int64_t n, double top, double reach);
  // Projects kShortRows rows of n <= kShortRow elements, one SIMD lane each, of which `rows` exist. Bit i of the result
  // is set where row i is left undone: it needs exact comparisons, or is not finite.
  unsigned (*short_rows)(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t n, int rows);
};

// The same for float32 rows of the l1 ball in float32 arithmetic, where its errors do not matter: sums over 32 chains.
struct Float32Scan {
  float top, total;  // total not finite where an element is not
};
struct Float32Kept {
  int64_t count;
  float total;  // of |v|
};
struct SimplexL1Float32Kernels {
  Float32Scan (*scan)(const float* v, int64_t n);
  // Packs the elements of v with |v| > theta into kept, which has room for n and may be v.
  Float32Kept (*keep)(const float* v, float* kept, int64_t n, float theta);
  // z = (|v| - high) - low where positive, in float32, with v's sign; returns the sum of |z|.
  double (*finish)(const float* v, float* z, int64_t n, float high, float low);
};

// Relative error bound of a float32 sum of n non-negative numbers in 32 chains.
constexpr double float32_error(int64_t n) { return static_cast<double>(n / 32 + 40) * 0x1p-23; }

template <class T>
struct SimplexL1KernelPair {
  SimplexL1Kernels<T> simplex, ball;
};

// Return the kernels of the level in use.
template <class T>
const SimplexL1KernelPair<T>& simplex_l1_kernels();
const SimplexL1Float32Kernels& simplex_l1_float32_kernels();

}  // namespace pyrobust::cpu

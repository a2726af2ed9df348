// The inner loops used in addition to library products, one set for each instruction set. Examples and rows lie one
// after the other, [n] neurons each; a range is stored as its ends in T, rounded outward, and every step is one pass
// over it in float64.
#pragma once

#include <cstdint>

#include "bounds/engine/kernels.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {

// Rounding errors of a deployed scale z + shift, relative to |scale| (|z| + flushed) + |shift| + excess +
// flushed.
struct ScaleCosts {
  double share = 0, flushed = 0;
  bool sound = true;
};

template <class T>
struct BatchFirstKernels {
  // Computes the ends of n ranges around x in a clip range, or the ranges [x, x] where reach is 0, rounded outward.
  void (*around)(const float* x, int64_t n, double reach, double low, double high, bool sound, T* lower, T* upper);
  // Computes a center of n ranges and radius + share (|center| + radius + more), rounded up, where radius is an upper
  // bound of the distance of the ends from the center. magnitude, unless null, is at least `more` above the largest
  // |z| and |center|.
  void (*spread)(const T* lower, const T* upper, int64_t n, double share, double more, bool sound, T* center, T* radius,
                 T* magnitude);
  // The same for the ranges around x in a clip range, or the points x where reach is 0.
  void (*spread_around)(const float* x, int64_t n, double reach, double low, double high, double share, double more,
                        bool sound, T* center, T* radius, T* magnitude);
  // Computes n ranges from the sums w c and |w| r, and from |w| m unless magnitude is null; sum is at least the exact
  // sum |w| m, where magnitude is given.
  void (*range)(const T* center, const T* radius, const T* magnitude, const double* bias, int64_t n,
                const RangeCosts& costs, T* lower, T* upper, T* sum);
  // Computes the ranges of scale z + shift, and upper bounds of |scale| |z| unless sum is null; shift_excess may be
  // null.
  void (*scale)(const T* lower, const T* upper, int64_t n, const T* scale, const double* shift,
                const double* scale_error, const double* shift_error, const double* shift_excess,
                const ScaleCosts& costs, T* lower_out, T* upper_out, T* sum);
  // Adds sign times the ranges of a term to n ranges, and its largest |z| to sum unless null.
  void (*add)(const T* lower, const T* upper, int64_t n, double sign, bool sound, T* lower_out, T* upper_out, T* sum);
  // Computes the ranges of max(z, 0).
  void (*relu)(const T* lower, const T* upper, int64_t n, T* lower_out, T* upper_out);
  // Widens n ranges by share (|z| + flushed); sets ranges that are not in order, or are beyond `largest`, or whose sum
  // (unless null) is, to all numbers.
  void (*check)(int64_t n, double share, double flushed, double largest, const T* sum, T* lower, T* upper);
  // Multiplies a row by the slope for its sign, in place; returns the sum of a times the intercept for its sign.
  double (*relax_row)(T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* lower_intercept,
                      const T* upper_intercept);
  // Returns the sum of a times low where a >= 0 and high where a < 0.
  double (*dot_row)(const T* a, int64_t n, const T* low, const T* high);
  // out (+)= sign a s; s may be null, for 1.
  void (*scale_row)(const T* a, int64_t n, const T* s, T sign, bool add, T* out);
};

// Returns the kernels of the level in use.
template <class T>
const BatchFirstKernels<T>& batch_first_kernels();

}  // namespace pyrobust::cpu

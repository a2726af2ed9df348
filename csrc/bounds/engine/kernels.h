// The inner loops of bound propagation, one set per instruction set. A tile holds kLanes numbers for each neuron: the
// coefficients of that many rows, or the values of that many examples.
#pragma once

#include <cstdint>

#include "bounds/engine/network.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {

// A product: the lanes at an offset times the weights of a tap.
struct Tap {
  int32_t offset, tap;
};
// Where a panel's outputs lie that lie side by side.
template <class T>
inline constexpr int64_t kSideBySide[kPanel] = {
    0, kLanes<T>, 2 * kLanes<T>, 3 * kLanes<T>, 4 * kLanes<T>, 5 * kLanes<T>, 6 * kLanes<T>, 7 * kLanes<T>};

// What a range costs beside its radius, as shares: of sum |w| m and of |bias|, and a constant. A sum of positive products
// is at most `more` times what is computed of it, plus tiny.
struct RangeCosts {
  double more = 1, tiny = 0, sum = 0, bias = 0, constant = 0;
  bool sound = true;
};

template <class T>
struct EngineKernels {
  // out[at[j]] (+)= the sum of `count` products of a, j < width <= kPanel; w is a panel.
  void (*multiply)(const T* a, const Tap* taps, int64_t count, const T* w, int64_t width, T* out, const int64_t* at,
                   bool add);
  // The same of outputs whose weights start at w + column[j].
  void (*multiply_picked)(const T* a, const Tap* taps, int64_t count, const T* w, const int64_t* column, int64_t width,
                          T* out, const int64_t* at, bool add);
  // For n neurons: a times the slope of its side, in place; to bias[lane], a times the intercept of its side.
  void (*relax)(T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* lower_intercept,
                const T* upper_intercept, double* bias);
  // To sum[lane], a low where a >= 0 and a high where a < 0.
  void (*dot)(const T* a, int64_t n, const T* low, const T* high, double* sum);
  // out (+)= a s, n neurons; s of length n, or one number where stride is 0.
  void (*scale)(const T* a, int64_t n, const T* s, int64_t stride, T* out, bool add);
  // From the sums of kLanes examples at one neuron, w c, |w| r and |w| m, to its ranges, and to sum |w| m.
  void (*range)(const T* center, const T* radius, const T* magnitude, double bias, const RangeCosts& costs,
                double* lower, double* upper, double* sum);
  // The same of ReLU, from w c and |w| r alone, to a center in T and at least the distance of the ends from it.
  void (*relu_range)(const T* center, const T* radius, double bias, const RangeCosts& costs, T* center_out,
                     T* radius_out);
  // For n neurons, at least r + share (|c| + r); nothing at zero.
  void (*enlarge)(const T* center, const T* radius, int64_t n, double share, bool sound, T* out);
  // From n ranges to lane e of n neurons: a center in T, at least the distance of the ends from it, and at least `more`
  // above the largest |z| and |center|; with sound = false, the nearest numbers. No magnitude is
  // written where it is null.
  void (*spread)(const double* lower, const double* upper, int64_t n, int64_t e, double more, bool sound, T* center,
                 T* radius, T* magnitude);
  // To squares[lane] the sum of a^2, in float64; to largest[lane] the largest |a|.
  void (*lengths)(const T* a, int64_t n, double* squares, double* largest);
};

// The set of the level in use.
template <class T>
const EngineKernels<T>& engine_kernels();

}  // namespace pyrobust::cpu

// The inner loops of the CROWN engine, one set for each instruction set. A tile holds kLanes numbers for each neuron:
// the coefficients of kLanes rows, or the values of kLanes examples.
#pragma once

#include <cstdint>

#include "bounds/engine/network.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {

// One input of a sum of products: its offset in the tile, and the index of its weights in the panel.
struct FanIn {
  int32_t offset, weight;
};
// Offsets of a panel's outputs that are contiguous.
template <class T>
inline constexpr int64_t kSideBySide[kPanel] = {
    0, kLanes<T>, 2 * kLanes<T>, 3 * kLanes<T>, 4 * kLanes<T>, 5 * kLanes<T>, 6 * kLanes<T>, 7 * kLanes<T>};

// Rounding error of a range in addition to its radius: relative to sum |w| m and to |bias|, plus a constant. The exact
// sum of positive products is at most `more` times the computed one, plus tiny.
struct RangeCosts {
  double more = 1, tiny = 0, sum = 0, bias = 0, constant = 0;
  bool sound = true;
};

// What coefficients of n neurons are multiplied by on their way through a gather: a sign or, unless null, the slopes
// for their own sign, with or without intercepts.
template <class T>
struct Route {
  T sign = 1;
  const T *lower_slope = nullptr, *upper_slope = nullptr, *lower_intercept = nullptr, *upper_intercept = nullptr;
  const T *low = nullptr, *high = nullptr;  // the gather's constants
  const int64_t* index = nullptr;           // negative: no place
};

template <class T>
struct EngineKernels {
  // out[at[j]] (+)= the sum of `count` products of a, j < width <= kPanel; w is a panel.
  void (*multiply)(const T* a, const FanIn* fan_in, int64_t count, const T* w, int64_t width, T* out, const int64_t* at,
                   bool add);
  // The same sums, in the same order, of one example, whose inputs lie side by side: all outputs, whose panels lie
  // `apart` elements apart, beginning at w; out has whole panels.
  void (*multiply_one)(const T* a, const FanIn* fan_in, int64_t count, const T* w, int64_t apart, int64_t outputs,
                       T* out);
  // The same for outputs whose weights start at w + column[j].
  void (*multiply_picked)(const T* a, const FanIn* fan_in, int64_t count, const T* w, const int64_t* column,
                          int64_t width, T* out, const int64_t* at, bool add);
  // Multiplies a by the slope for its sign, in place, for n neurons; adds a times the intercept for its sign to
  // bias[lane].
  void (*relax)(T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* lower_intercept,
                const T* upper_intercept, double* bias);
  // Adds a low where a >= 0 and a high where a < 0 to sum[lane].
  void (*dot)(const T* a, int64_t n, const T* low, const T* high, double* sum);
  // out (+)= a s, n neurons; s of length n, or one number where stride is 0.
  void (*scale)(const T* a, int64_t n, const T* s, int64_t stride, T* out, bool add);
  // Adds a[i] to out[index[i] - begin] for the i < n whose index is in [begin, end).
  void (*scatter)(const T* a, int64_t n, const int64_t* index, int64_t begin, int64_t end, T* out);
  // Adds a times the sign or slope to out[index], and a times the intercept and that product times the constant to
  // bias[lane].
  void (*route)(const T* a, int64_t n, const Route<T>& way, T* out, double* bias);
  // Computes the sums of `count` products of points with a panel, in float64: out [points_count][kPanel]. Weights of
  // fan-in i multiply point[offset / kLanes].
  void (*evaluate)(const double* const* points, int64_t points_count, const FanIn* fan_in, int64_t count, const T* w,
                   double* out);
  // The same for one point and several panels: out [panels][kPanel].
  void (*evaluate_one)(const double* point, const FanIn* fan_in, int64_t count, const T* w, int64_t apart,
                       int64_t panels, double* out);
  // Computes the ranges and sum |w| m of kLanes examples at one neuron from the sums w c, |w| r and |w| m.
  void (*range)(const T* center, const T* radius, const T* magnitude, double bias, const RangeCosts& costs,
                double* lower, double* upper, double* sum);
  // The same for n neurons of one example, each with its bias.
  void (*range_one)(const T* center, const T* radius, const T* magnitude, const double* bias, int64_t n,
                    const RangeCosts& costs, double* lower, double* upper, double* sum);
  // The same in the centered form: from w c + bias, known to within `errors`, and sum |w| r, which becomes `sum`; where
  // magnitude is not null, the error of inexact weights is computed from sum |w| m.
  void (*centered_range)(const double* value, const T* radius, const T* magnitude, const double* errors,
                         const RangeCosts& costs, double* lower, double* upper, double* sum, double* weight_error);
  // The same for ReLU, from w c and |w| r alone: a center in T and an upper bound of the distance of the ends from it.
  void (*relu_range)(const T* center, const T* radius, double bias, const RangeCosts& costs, T* center_out,
                     T* radius_out);
  // The same for n neurons of one example.
  void (*relu_range_one)(const T* center, const T* radius, const double* bias, int64_t n, const RangeCosts& costs,
                         T* center_out, T* radius_out);
  // Upper bounds of r + share (|c| + r), n numbers up to a multiple of kLanes; zero stays zero.
  void (*enlarge)(const T* center, const T* radius, int64_t n, double share, bool sound, T* out);
  // Writes n ranges to out[neuron * lanes]: a center in T, an upper bound of the distance of the ends from it, and a
  // magnitude at least `more` above the largest |z| and |center|; with sound = false, the nearest numbers. magnitude
  // may be null.
  void (*spread)(const double* lower, const double* upper, int64_t n, int64_t lanes, double more, bool sound, T* center,
                 T* radius, T* magnitude);
  // The same for given centers: the radius and, unless null, the magnitude.
  void (*spread_around)(const double* center, const double* lower, const double* upper, int64_t n, int64_t lanes,
                        T* radius, T* magnitude);
  // Writes the middle of n ranges, rounded to T, or zero where it is not finite, and subtracts it from offset unless
  // null. Returns the largest magnitude.
  double (*middles)(const double* lower, const double* upper, int64_t n, double* middle, double* offset);
  // Whether lower <= upper everywhere; may be false where both are the same infinity.
  bool (*ordered)(const double* lower, const double* upper, int64_t n);
  // Adds a^2 to squares[lane], in float64, and takes the largest |a| into largest[lane].
  void (*lengths)(const T* a, int64_t n, double* squares, double* largest);
};

// Returns the kernels of the level in use.
template <class T>
const EngineKernels<T>& engine_kernels();

}  // namespace pyrobust::cpu

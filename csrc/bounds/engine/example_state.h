// State of one example during bound propagation: the range of every neuron, and the linear relaxations, widened by the
// rounding error, that the backward pass multiplies coefficients by.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bounds/engine/network.h"
#include "bounds/engine/watch.h"

namespace pyrobust::cpu {

enum class Norm { kLinf, kL2, kL1 };

// How rows search for lower slopes of their own (SlopeSearch in pyrobust/bounds/methods.py).
struct SlopeSearch {
  int64_t iterations = 0, patience = 0;
  double rate = 0, decay = 1, first = 0, second = 0, least_gain = 0;
  bool decides = false;  // whether the search for a row of the output ends at a positive bound
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

struct BoundOptions {
  // The method (pyrobust/bounds/methods.py): whether backward passes refine the ranges of unstable neurons, and whether
  // rows of the output are concretized on the inputs rather than on the ranges of the first functions.
  bool refines = true, to_input = true;
  std::optional<SlopeSearch> search;
  Norm norm = Norm::kLinf;
  bool sound = true;
  // Unit roundoff of the deployed forward pass, whose sums may run in any order; 0 for real arithmetic.
  double deployed = 0;
  double deployed_max = INFINITY;  // the largest finite float of the deployed pass
  bool library = false;  // whether a library multiplies coefficients: summing in any order, flushing underflow to zero
  // Multiplications of one example from which a call of the library is worth its overhead in the interval pass.
  int64_t library_least = 0;
  Watch* watch = nullptr;  // watch of the whole call; null for none
};

// One side of boxes [B][n], in float64, or in float32 and converted when read: a float64 copy of all boxes would be
// most of IBP's memory. Boxes around centers are given by the centers, a radius for each example and the clip range.
struct Corners {
  const double* wide = nullptr;
  const float* narrow = nullptr;
  const double* radius = nullptr;  // [B]
  double sign = -1, low = -INFINITY, high = INFINITY;

  Corners() = default;
  explicit Corners(const double* corners) : wide(corners) {}
  explicit Corners(const float* corners) : narrow(corners) {}
  void read(int64_t example, int64_t n, std::vector<double>& out) const {
    if (wide != nullptr)
      out.assign(wide + example * n, wide + (example + 1) * n);
    else
      out.assign(narrow + example * n, narrow + (example + 1) * n);
    if (radius == nullptr) return;
    // x -+ 0 is exact; other sums may be rounded inward.
    const double reach = sign * radius[example];
    if (reach != 0)
      for (double& z : out) {
        const double end = z + reach;
        z = end + sign * (std::fabs(end) * 0x1p-52 + 0x1p-1074);
      }
    for (double& z : out) z = z < low ? low : z > high ? high : z;
  }
};

// The inputs of B examples: in the box [lower, upper], and, unless the norm is linf, in the ball around center: float64
// [B][n], epsilon [B].
struct InputSet {
  Corners lower, upper;
  const double *center = nullptr, *epsilon = nullptr;
};

// An unstable neuron that lies above (or below) every line through zero with slope s in [least, most]: including
// errors, the intercept of that line is s pull - push, or s pull_negative - push where s < 0.
template <class T>
struct FreeSlope {
  int64_t neuron;
  bool above;  // whether the line is
  double pull, pull_negative, push, fixed_intercept;
  T least, most, slope, fixed_slope;  // slope: CROWN's slope; fixed: slope of the line on the other side
};

template <class T>
struct LayerState {
  std::vector<double> lower, upper;
  // In the centered form (see relaxation.cpp), a number of type T near the middle of each range, from which backward
  // passes measure the neuron, and the largest |origin|. Without it, empty: neurons are measured from zero.
  std::vector<double> origin;
  double origin_size = 0;
  // affine layers, in the centered form: their values at their inputs' origins less their own origins, to within
  // offset_error; and the error of inexact weights, empty for none
  std::vector<double> offset, weight_error;
  double offset_error = 0;
  // affine and input layers: the factor of a coefficient a >= 0 (low) or a < 0 (high) in a lower bound: the bias
  // widened by the error of the step, or the box. sum: sum |w| m before the bias, m the largest distance of each input
  // from its origin; rounding errors are proportional to this sum
  std::vector<double> sum;
  std::vector<T> low, high;
  // input, for a ball: its center
  std::vector<T> center_low, center_high;
  // activations and maxima
  std::vector<T> lower_slope, upper_slope, lower_intercept, upper_intercept;
  std::vector<uint8_t> alive;   // whether a coefficient can differ from zero
  std::vector<uint8_t> needed;  // whether a coefficient matters: a slope or an intercept is not zero
  bool all_needed = false;      // then there is nothing to pick
  // With a search for slopes, the neurons whose slopes the rows choose, in order; the relaxations above are zero there.
  std::vector<FreeSlope<T>> free;
  bool stable_but_free = false;  // whether all other neurons are stable
  std::vector<int64_t> picked;   // maxima: the element with the largest lower bound
  // products: the slopes of the second factor; the slopes above are those of the first
  std::vector<T> second_lower_slope, second_upper_slope;
};

template <class T>
struct ExampleState {
  std::vector<LayerState<T>> layer;
  double underflow_error = 0;  // bound of the underflow in a row
  double epsilon = 0;
  bool undefined = false;  // whether a partial function may have no value

  LayerState<T>& operator[](int64_t i) { return layer[static_cast<size_t>(i)]; }
  const LayerState<T>& operator[](int64_t i) const { return layer[static_cast<size_t>(i)]; }
};

// Added to magnitudes to cover deployed products, and inputs below the smallest normal float, that flush to zero: its
// share of any sum is at least 4 u 2^-100, more than 2^-126.
inline constexpr double kFlushed = 0x1p-100;

// Whether backward passes measure neurons from the middle of their ranges. The rounding errors of a deployed pass are
// proportional to the values themselves, and a library's loops measure from zero.
template <class T>
bool centered(const BoundOptions& options) {
  return sizeof(T) == sizeof(float) && options.to_input && options.sound && options.deployed == 0 && !options.library;
}

// Neuron k; with a label, number k of the neurons other than the label.
inline int64_t other_neuron(int64_t k, int64_t label) { return k + (label >= 0 && k >= label ? 1 : 0); }

// Memory of one thread, passed from layer to layer of a group: fresh pages for each layer would cost more than the
// work. It shrinks as soon as no later layer needs as much, because the input takes several times the memory of other
// layers.
template <class T>
class Room {
 public:
  // sizes: for each layer, the largest number of elements that it or any later layer takes.
  explicit Room(const std::vector<int64_t>& sizes) : sizes_(sizes) {}

  // Memory for layer i, uninitialised.
  T* take(int64_t i) {
    const int64_t n = sizes_[static_cast<size_t>(i)];
    if (n != size_) {
      memory_.reset(), size_ = 0;
      memory_ = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(n));
      size_ = n;
    }
    return memory_.get();
  }

 private:
  const std::vector<int64_t>& sizes_;
  std::unique_ptr<T[]> memory_;
  int64_t size_ = 0;
};

// The largest |z| of a range.
inline double magnitude(double lower, double upper) { return std::max(std::fabs(lower), std::fabs(upper)); }

// The largest |z - origin| of a range, up to its rounding error.
inline double distance(double lower, double upper, double origin) { return std::max(upper - origin, origin - lower); }

// The origins, or null for zeros.
template <class T>
const double* origins_of(const LayerState<T>& state) {
  return state.origin.empty() ? nullptr : state.origin.data();
}
template <class T>
double origin_of(const LayerState<T>& state, size_t k) {
  return state.origin.empty() ? 0 : state.origin[k];
}

// Error of a deployed activation: the ends of a clamp, a slope and the product are rounded, and other functions are
// approximations. share: relative error of `roundings` roundings.
template <class T>
double deployed_error(const Layer<T>& function, double lower, double upper, double share) {
  switch (function.function) {
    case Function::kLeakyRelu:
      if (function.slope == 0 || lower >= 0) return 0;
      break;
    case Function::kPrelu:
    case Function::kClamp:
    case Function::kRule:
      break;
  }
  return share * (magnitude(lower, upper) + kFlushed);
}

// Error of the deployed product of element k of two layers, including that of factors flushed to zero.
template <class T>
double deployed_product_error(const LayerState<T>& x, const LayerState<T>& y, size_t k, double share,
                              const Outward& out) {
  const double a = magnitude(x.lower[k], x.upper[k]), b = magnitude(y.lower[k], y.upper[k]);
  return out.mul_up(share, out.up(out.up(a * b) + kFlushed * (1 + a + b)));
}

// Whether a ReLU-like function is unstable, that is, has both pieces on the range.
template <class T>
bool unstable(const Layer<T>& activation, double lower, double upper) {
  switch (activation.function) {
    case Function::kLeakyRelu:
    case Function::kPrelu:
      return lower < 0 && upper > 0;
    case Function::kClamp:
      return (lower < activation.low && upper > activation.low) || (lower < activation.high && upper > activation.high);
    case Function::kRule:
      return lower < upper;
  }
  throw std::logic_error("BoundNetwork: unknown activation");
}

// Relative error of sums of products in T over runs that are flushed to float64, with the conversions.
template <class T>
double dot_error(const BoundNetwork<T>& network, const Outward& out) {
  if (!out.sound()) return 0;
  return out.gamma<T>(kRun + 4) + static_cast<double>(2 * network.neurons() + 64) * 0x1p-52;
}

// Computes the range of layer i from those of its inputs, and `sum` for affine layers, for a group of at most kLanes
// examples; in the centered form, their origins and offsets, too.
template <class T>
void propagate_intervals(const BoundNetwork<T>& network, int64_t i, ExampleState<T>* const* group, int64_t count,
                         const BoundOptions& options, Room<T>& room);

// Puts the origins of a layer in the middle of its ranges (at zero where nothing is known), and subtracts them from
// offset.
template <class T>
void choose_origins(LayerState<T>& state);

// Computes low and high, or the linear relaxation, of layer i from final ranges.
template <class T>
void prepare(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& state, const BoundOptions& options);

}  // namespace pyrobust::cpu

// pyrobust._C.BoundNetwork32 and BoundNetwork64: networks for bound propagation on the CPU. Only module.cpp includes
// this header: pybind11 costs a compiler five seconds in each file that includes it.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bounds/curves/curves.h"
#include "bounds/engine/network.h"
#include "bounds/engine/propagate.h"
#include "bounds/engine/relaxation_kernels.h"
#include "bounds/sound_relaxation.h"
#include "common/check.h"
#include "common/threads.h"

namespace pyrobust {
namespace {

namespace py = pybind11;

using cpu::Function;
using cpu::Kind;
using cpu::Layer;
using cpu::Shape;

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;
using Doubles = Array<double>;
using Integers = Array<int64_t>;

template <class T>
std::vector<T> values(const Array<T>& array, int64_t size, const char* name) {
  check(array.size() == size, "BoundNetwork: ", name, ": expected ", size, " elements, got ", array.size());
  return {array.data(), array.data() + array.size()};
}

Shape shape_of(const std::vector<int64_t>& sizes) {
  check(sizes.size() == 3 && sizes[0] >= 0 && sizes[1] >= 0 && sizes[2] >= 0,
        "BoundNetwork: shape: expected (channels, height, width)");
  // Offsets into a tile have 32 bits.
  check(static_cast<double>(sizes[0]) * static_cast<double>(sizes[1]) * static_cast<double>(sizes[2]) <= 0x1p26,
        "BoundNetwork: shape: expected at most 2^26 elements");
  return {sizes[0], sizes[1], sizes[2]};
}

// The smooth function of a name, with its parameters, as pyrobust/bounds/graph/activations has them; none for others.
std::optional<cpu::CurveFunction> curve_named(const std::string& name, const std::vector<double>& parameters) {
  using cpu::Curve;
  static const std::pair<const char*, Curve> kCurves[] = {{"sigmoid", Curve::kSigmoid},
                                                          {"tanh", Curve::kTanh},
                                                          {"gelu", Curve::kGelu},
                                                          {"tanh_gelu", Curve::kTanhGelu},
                                                          {"silu", Curve::kSilu},
                                                          {"mish", Curve::kMish},
                                                          {"softplus", Curve::kSoftplus},
                                                          {"exp", Curve::kExp},
                                                          {"square", Curve::kSquare},
                                                          {"reciprocal", Curve::kReciprocal},
                                                          {"sqrt", Curve::kSqrt},
                                                          {"rsqrt", Curve::kRsqrt},
                                                          {"log", Curve::kLog}};
  for (const auto& [known, curve] : kCurves) {
    if (name != known) continue;
    cpu::CurveFunction function{.curve = curve};
    if (curve == Curve::kSoftplus) {
      check(parameters.size() == 2 && parameters[0] > 0, "softplus: expected a positive beta and a threshold");
      function.beta = parameters[0], function.threshold = parameters[1];
    }
    return function;
  }
  return std::nullopt;
}

cpu::CurveFunction known_curve(const std::string& name, const std::vector<double>& parameters) {
  const auto function = curve_named(name, parameters);
  check(function.has_value(), "curve: unknown: ", name);
  return *function;
}

void check_ranges(const Doubles& lower, const Doubles& upper) {
  check(lower.ndim() == 1 && upper.ndim() == 1 && lower.size() == upper.size(),
        "curve: expected lower [n] and upper [n]");
}

// (low, high) of the values on ranges, each [n].
py::tuple curve_interval(const std::string& name, const std::vector<double>& parameters, const Doubles& lower,
                         const Doubles& upper) {
  const cpu::CurveFunction function = known_curve(name, parameters);
  check_ranges(lower, upper);
  Doubles low(lower.size()), high(lower.size());
  const cpu::KeepDenormals keep;
  cpu::bound_curve(function, lower.size(), lower.data(), upper.data(), low.mutable_data(), high.mutable_data());
  return py::make_tuple(low, high);
}

// (lower slope, lower intercept, upper slope, upper intercept, low, high) on ranges, each [n].
py::tuple curve_relaxation(const std::string& name, const std::vector<double>& parameters, const Doubles& lower,
                           const Doubles& upper) {
  const cpu::CurveFunction function = known_curve(name, parameters);
  check_ranges(lower, upper);
  Doubles parts[6];
  for (Doubles& part : parts) part = Doubles(lower.size());
  const cpu::KeepDenormals keep;
  cpu::relax_curve(function, lower.size(), lower.data(), upper.data(), parts[0].mutable_data(), parts[1].mutable_data(),
                   parts[2].mutable_data(), parts[3].mutable_data(), parts[4].mutable_data(), parts[5].mutable_data());
  return py::make_tuple(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]);
}

// The same for z above zero and z times a slope in [least, most], each [n], below; slopes in T.
template <class T>
py::tuple prelu_relaxation(const Doubles& least, const Doubles& most, const Doubles& lower, const Doubles& upper) {
  check_ranges(lower, upper);
  check(least.size() == lower.size() && most.size() == lower.size(), "prelu: expected a slope for each range");
  Doubles parts[6];
  for (Doubles& part : parts) part = Doubles(lower.size());
  const cpu::KeepDenormals keep;
  const Outward out(true);
  for (int64_t k = 0; k < lower.size(); ++k) {
    const double l = lower.data()[k], u = upper.data()[k], s = least.data()[k], t = most.data()[k];
    const LinearRelaxation<T> lines = relax_prelu<T>(l, u, s, t, out);
    const Values values = prelu_values(l, u, s, t, out);
    const double all[6] = {static_cast<double>(lines.lower_slope),
                           lines.lower_intercept,
                           static_cast<double>(lines.upper_slope),
                           lines.upper_intercept,
                           values.low,
                           values.high};
    for (size_t j = 0; j < 6; ++j) parts[j].mutable_data()[k] = all[j];
  }
  return py::make_tuple(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]);
}

// (p, q, c) of the planes p x + q y + c below and above x y for x in [a, b] and y in [c, d], and the ranges of x y, each
// [n]; slopes in T.
template <class T>
py::tuple product_bounds(const Doubles& a, const Doubles& b, const Doubles& c, const Doubles& d) {
  check_ranges(a, b), check_ranges(c, d), check_ranges(a, c);
  const int64_t n = a.size();
  Doubles parts[8];
  for (Doubles& part : parts) part = Doubles(n);
  double* to[8];
  for (size_t j = 0; j < 8; ++j) to[j] = parts[j].mutable_data();
  std::vector<T> slopes(static_cast<size_t>(4 * n));
  T* const slope = slopes.data();
  const cpu::Factors factors{a.data(), b.data(), c.data(), d.data()};
  const cpu::RelaxationKernels<T>& kernels = cpu::relaxation_kernels<T>();
  const cpu::KeepDenormals keep;
  kernels.product_planes(factors, n, true, {slope, slope + n, to[2]}, {slope + 2 * n, slope + 3 * n, to[5]});
  for (int64_t j = 0; j < 4; ++j) std::copy_n(slope + j * n, n, to[j + j / 2]);
  kernels.product_ranges(factors, n, true, to[6], to[7]);
  return py::make_tuple(parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], parts[7]);
}

// A Python function (l, u) -> six arrays like l, called from any thread.
cpu::RelaxationRule relaxation_rule(py::function rule) {
  // The last copy may be destroyed by a thread that does not hold the interpreter's lock.
  auto* const kept = new py::function(std::move(rule));
  const std::shared_ptr<py::function> shared(kept, [](py::function* p) {
    const py::gil_scoped_acquire lock;
    delete p;
  });
  return [shared](int64_t n, const double* l, const double* u, double* lower_slope, double* lower_intercept,
                  double* upper_slope, double* upper_intercept, double* lower, double* upper) {
    const py::gil_scoped_acquire lock;
    try {
      const py::tuple result = (*shared)(Doubles(n, l), Doubles(n, u));
      double* const targets[6] = {lower_slope, lower_intercept, upper_slope, upper_intercept, lower, upper};
      check(result.size() == 6, "a bound rule: expected six arrays, got ", result.size());
      for (size_t i = 0; i < 6; ++i) {
        const Doubles part = result[i].cast<Doubles>();
        check(part.size() == n, "a bound rule: expected arrays of ", n, " elements, got ", part.size());
        std::copy(part.data(), part.data() + n, targets[i]);
      }
    } catch (py::error_already_set& error) {
      // A Python exception must not outlive the lock.
      throw std::runtime_error(std::string("a bound rule failed: ") + error.what());
    }
  };
}

// What does not depend on the element type, and is bound only once.
class AnyNetwork {
 public:
  virtual ~AnyNetwork() = default;
  virtual int64_t input(const std::vector<int64_t>& shape) = 0;
  virtual int64_t gather(const std::vector<int64_t>& inputs, const Integers& index,
                         const std::vector<int64_t>& shape) = 0;
  // A gather whose element k is the smaller or larger of two elements [size, 2] of the last input.
  virtual int64_t sort(const std::vector<int64_t>& inputs, const Integers& index, const Integers& pairs,
                       const Integers& larger, const std::vector<int64_t>& shape) = 0;
  virtual int64_t sum(const std::vector<int64_t>& inputs, const Doubles& signs, int64_t roundings) = 0;
  // parameters: of a smooth function; error, largest: see CurveFunction; slopes: the least and the most of each neuron
  // of a prelu; partial: whether the function has no value for some numbers.
  virtual int64_t activation(int64_t input, const std::string& function, double slope, double low, double high,
                             int64_t roundings, const std::optional<py::function>& rule,
                             const std::vector<double>& parameters, double error, double largest,
                             const std::pair<Doubles, Doubles>& slopes, bool partial) = 0;
  virtual int64_t max_pool(int64_t input, const Integers& windows, const std::vector<int64_t>& shape) = 0;
  virtual int64_t product(int64_t first, int64_t second) = 0;
  // low and high bound the values of a layer whatever the input, in real arithmetic.
  virtual void know(int64_t layer, double low, double high) = 0;
  // For each neuron of a layer, the first one that equals it or its negative, and the sign.
  virtual void relate(int64_t layer, const Integers& first, const Doubles& sign) = 0;
  // From pyrobust/bounds/graph/analysis.py, for each layer.
  virtual void finish(const std::vector<int64_t>& consumers, const std::vector<uint8_t>& fused,
                      const std::vector<uint8_t>& affine_in_input, const std::vector<uint8_t>& ends_affine_part,
                      const std::vector<std::vector<int64_t>>& repeats) = 0;
  // (bytes of an example, of the library's copies of weights), see cpu::memory_of; deployed: whether bounds cover the
  // deployed pass.
  virtual std::pair<int64_t, int64_t> memory(bool to_input, bool ball, bool sound, bool deployed, bool library,
                                             bool rows) const = 0;
};

template <class T>
class Network final : public AnyNetwork {
 public:
  int64_t input(const std::vector<int64_t>& shape) override {
    check(network_.size() == 0, "BoundNetwork: expected the input first");
    Layer<T> layer;
    layer.shape = shape_of(shape);
    return network_.add(std::move(layer));
  }

  int64_t linear(int64_t input, const Array<T>& weight, const Doubles& bias, double weight_error, double bias_error) {
    check(weight.ndim() == 2, "BoundNetwork: weight: expected two dimensions, got ", weight.ndim());
    shape_of({weight.shape(0), 1, 1});
    check(weight.shape(1) == source(input).shape.size(), "BoundNetwork: weight: expected ", source(input).shape.size(),
          " columns, got ", weight.shape(1));
    Layer<T> layer;
    set_bias(layer, bias, weight.shape(0), weight_error, bias_error);
    return network_.add_linear(input, weight.shape(0), weight.data(), std::move(layer));
  }

  // sizes: stride, padding, dilation (two each), groups
  int64_t conv(int64_t input, const Array<T>& weight, const Doubles& bias, double weight_error, double bias_error,
               const std::vector<int64_t>& sizes, const std::vector<int64_t>& shape) {
    check(weight.ndim() == 4 && sizes.size() == 7, "BoundNetwork: weight: expected four dimensions, got ",
          weight.ndim());
    Layer<T> layer;
    layer.shape = shape_of(shape);
    layer.conv = {weight.shape(2), weight.shape(3), sizes[0], sizes[1], sizes[2],
                  sizes[3],        sizes[4],        sizes[5], sizes[6]};
    const cpu::ConvSizes& s = layer.conv;
    check(s.stride_h > 0 && s.stride_w > 0 && s.pad_h >= 0 && s.pad_w >= 0 && s.dilation_h > 0 && s.dilation_w > 0 &&
              s.groups > 0,
          "BoundNetwork: expected positive strides, dilations and groups");
    const Shape& from = source(input).shape;
    check(from.channels == weight.shape(1) * s.groups && layer.shape.channels == weight.shape(0) &&
              weight.shape(0) % s.groups == 0,
          "BoundNetwork: weight: expected [", layer.shape.channels, ", ", from.channels / s.groups, ", ., .]");
    set_bias(layer, bias, weight.shape(0), weight_error, bias_error);
    return network_.add_conv(input, weight.data(), std::move(layer));
  }

  int64_t scale(int64_t input, const Array<T>& scale, const Doubles& shift, const Doubles& scale_error,
                const Doubles& shift_error, const Doubles& shift_excess, int64_t roundings) {
    Layer<T> layer = like(input, Kind::kScale);
    const int64_t n = layer.shape.size();
    layer.scale = values(scale, n, "scale");
    layer.shift = values(shift, n, "shift");
    layer.scale_error = values(scale_error, n, "scale_error");
    layer.shift_error = values(shift_error, n, "shift_error");
    if (shift_excess.size() > 0) layer.shift_excess = values(shift_excess, n, "shift_excess");
    layer.roundings = roundings;
    return network_.add(std::move(layer));
  }

  int64_t gather(const std::vector<int64_t>& inputs, const Integers& index,
                 const std::vector<int64_t>& shape) override {
    return network_.add(gathered(inputs, index, shape));
  }

  int64_t sort(const std::vector<int64_t>& inputs, const Integers& index, const Integers& pairs, const Integers& larger,
               const std::vector<int64_t>& shape) override {
    check(!inputs.empty(), "BoundNetwork: inputs: expected at least one");
    Layer<T> layer = gathered(inputs, index, shape);
    layer.window = 2;
    layer.windows = values(pairs, 2 * layer.shape.size(), "pairs");
    layer.larger = values(larger, layer.shape.size(), "larger");
    check_indices(layer.windows, source(inputs.back()).shape.size());
    for (const int64_t from : layer.windows) check(from >= 0, "BoundNetwork: pairs: expected elements, got none");
    return network_.add(std::move(layer));
  }

  int64_t sum(const std::vector<int64_t>& inputs, const Doubles& signs, int64_t roundings) override {
    check(!inputs.empty(), "BoundNetwork: inputs: expected at least one");
    Layer<T> layer = like(inputs[0], Kind::kSum);
    layer.inputs = inputs;
    for (const int64_t i : inputs)
      check(source(i).shape == layer.shape, "BoundNetwork: inputs: expected tensors of one shape");
    layer.signs = values(signs, static_cast<int64_t>(inputs.size()), "signs");
    layer.roundings = roundings;
    return network_.add(std::move(layer));
  }

  int64_t activation(int64_t input, const std::string& function, double slope, double low, double high,
                     int64_t roundings, const std::optional<py::function>& rule, const std::vector<double>& parameters,
                     double error, double largest, const std::pair<Doubles, Doubles>& slopes, bool partial) override {
    Layer<T> layer = like(input, Kind::kActivation);
    layer.partial = partial;
    check(slope >= 0 && slope <= 1 && low <= high, "BoundNetwork: expected a slope in [0, 1] and low <= high");
    check(roundings >= 0, "BoundNetwork: roundings: expected at least 0, got ", roundings);
    auto curve = rule ? std::nullopt : curve_named(function, parameters);
    layer.function =
        rule || curve
            ? Function::kRule
            : chosen<Function>(
                  function, "function without a rule",
                  {{"leaky_relu", Function::kLeakyRelu}, {"prelu", Function::kPrelu}, {"clamp", Function::kClamp}});
    layer.slope = slope, layer.low = low, layer.high = high;
    if (layer.function == Function::kPrelu) {
      layer.least_slope = values(slopes.first, layer.shape.size(), "slopes");
      layer.most_slope = values(slopes.second, layer.shape.size(), "slopes");
      for (size_t k = 0; k < layer.most_slope.size(); ++k)
        check(layer.least_slope[k] <= layer.most_slope[k], "BoundNetwork: slopes: expected pairs in order");
    }
    layer.roundings = roundings;
    if (rule) {
      layer.relaxation_rule = relaxation_rule(*rule);
      layer.range_rule = [whole = layer.relaxation_rule](int64_t n, const double* l, const double* u, double* lower,
                                                         double* upper) {
        std::vector<double> lines(static_cast<size_t>(4 * n));
        double* const p = lines.data();
        whole(n, l, u, p, p + n, p + 2 * n, p + 3 * n, lower, upper);
      };
    } else if (curve) {
      curve->error = error, curve->largest = largest;
      layer.relaxation_rule = [f = *curve](auto... arguments) { cpu::relax_curve(f, arguments...); };
      layer.range_rule = [f = *curve](auto... arguments) { cpu::bound_curve(f, arguments...); };
    }
    return network_.add(std::move(layer));
  }

  int64_t max_pool(int64_t input, const Integers& windows, const std::vector<int64_t>& shape) override {
    Layer<T> layer;
    layer.kind = Kind::kMaxPool;
    layer.shape = shape_of(shape);
    layer.inputs = {input};
    check(windows.ndim() == 2 && windows.shape(0) == layer.shape.size() && windows.shape(1) > 0,
          "BoundNetwork: windows: expected [", layer.shape.size(), ", K]");
    layer.window = windows.shape(1);
    layer.windows = values(windows, windows.size(), "windows");
    check_indices(layer.windows, source(input).shape.size());
    for (int64_t k = 0; k < layer.shape.size(); ++k) {
      bool any = false;
      for (int64_t j = 0; j < layer.window; ++j) any |= layer.windows[static_cast<size_t>(k * layer.window + j)] >= 0;
      check(any, "BoundNetwork: windows: expected at least one element in each");
    }
    return network_.add(std::move(layer));
  }

  int64_t product(int64_t first, int64_t second) override {
    Layer<T> layer = like(first, Kind::kProduct);
    check(source(second).shape == layer.shape, "BoundNetwork: second: expected the shape of the first");
    layer.inputs = {first, second};
    layer.roundings = 1;
    return network_.add(std::move(layer));
  }

  void know(int64_t layer, double low, double high) override {
    source(layer);
    check(low <= high && !finished_, "BoundNetwork: know: expected low <= high, before finish");
    network_.know(layer, low, high);
  }

  void relate(int64_t layer, const Integers& first, const Doubles& sign) override {
    const int64_t n = source(layer).shape.size();
    std::vector<int64_t> neurons = values(first, n, "first");
    std::vector<double> signs = values(sign, n, "sign");
    for (int64_t k = 0; k < n; ++k) {
      const int64_t j = neurons[static_cast<size_t>(k)];
      check(j >= 0 && j <= k && neurons[static_cast<size_t>(j)] == j && std::fabs(signs[static_cast<size_t>(k)]) == 1,
            "BoundNetwork: relate: expected first neurons and signs of 1 or -1");
    }
    check(!finished_, "BoundNetwork: relate: expected a network that is not finished");
    network_.relate(layer, std::move(neurons), std::move(signs));
  }

  void finish(const std::vector<int64_t>& consumers, const std::vector<uint8_t>& fused,
              const std::vector<uint8_t>& affine_in_input, const std::vector<uint8_t>& ends_affine_part,
              const std::vector<std::vector<int64_t>>& repeats) override {
    check(network_.size() > 1 && !finished_, "BoundNetwork: expected layers, and to be finished once");
    network_.finish({consumers, fused, affine_in_input, ends_affine_part, repeats});
    finished_ = true;
  }

  // The fields of SlopeSearch in order, except for the seconds left in place of the deadline.
  using Search = std::tuple<int64_t, int64_t, double, double, double, double, double, bool, double>;

  // lower, upper, center: [B, n]; epsilon: [B]; rows: [S, K], [B, S, K] or None. With radius [B], the boxes are those
  // around lower in the clip range [low, high], and upper is not read. With labels [B] in place of rows, the rows are
  // those of the margins. watch: see told; and the least seconds between two calls.
  py::tuple propagate(const py::array& lower, const py::array& upper, const std::optional<Doubles>& center,
                      const std::optional<Doubles>& epsilon, const std::optional<Doubles>& rows, bool refines,
                      bool to_input, const std::string& norm, bool sound, double deployed, double deployed_max,
                      bool with_upper, int64_t chunk, const std::optional<py::function>& product, int64_t product_least,
                      const std::optional<Doubles>& radius, double clip_low, double clip_high,
                      const std::optional<Search>& search, const std::optional<Integers>& labels,
                      const std::optional<std::pair<py::object, double>>& watch) const {
    check(finished_, "BoundNetwork: expected a finished network");
    check(chunk > 0, "BoundNetwork: chunk: expected a positive number");
    const int64_t n = network_.layer(0).shape.size(), outputs = network_.layer(network_.output()).shape.size();
    check(lower.ndim() == 2 && lower.shape(1) == n, "BoundNetwork: lower: expected [B, ", n, "]");
    const int64_t batch = lower.shape(0);
    check(upper.ndim() == 2 && upper.shape(0) == batch && upper.shape(1) == n,
          "BoundNetwork: upper: expected lower's shape");
    cpu::BoundOptions options;
    options.sound = sound, options.deployed = deployed, options.deployed_max = deployed_max;
    options.library = product.has_value(), options.library_least = product_least;
    options.refines = refines, options.to_input = to_input;
    if (search) options.search = search_of(*search);
    options.norm =
        chosen<cpu::Norm>(norm, "norm", {{"linf", cpu::Norm::kLinf}, {"l2", cpu::Norm::kL2}, {"l1", cpu::Norm::kL1}});
    if (options.norm != cpu::Norm::kLinf)
      check(center && epsilon && center->size() == batch * n && epsilon->size() == batch,
            "BoundNetwork: center, epsilon: expected [", batch, ", ", n, "] and [", batch, "]");
    cpu::Specification spec;
    spec.upper = with_upper;
    spec.count = outputs;
    if (rows) {
      const auto& c = *rows;
      check((c.ndim() == 2 || (c.ndim() == 3 && c.shape(0) == batch)) && c.shape(c.ndim() - 1) == outputs,
            "BoundNetwork: rows: expected [S, ", outputs, "] or [", batch, ", S, ", outputs, "]");
      spec.rows = c.data(), spec.per_example = c.ndim() == 3, spec.count = c.shape(c.ndim() - 2);
    }
    if (labels) {
      check(!rows && labels->size() == batch, "BoundNetwork: labels: expected [", batch, "] and no rows");
      for (int64_t e = 0; e < batch; ++e)
        check(labels->data()[e] >= 0 && labels->data()[e] < outputs, "BoundNetwork: labels: expected 0 to ",
              outputs - 1);
      spec.labels = labels->data(), spec.count = outputs - 1;
    }
    const std::vector<py::ssize_t> shape{batch, spec.count};
    const std::vector<py::ssize_t> upper_shape{with_upper ? batch : 0, spec.count};
    Doubles low(shape), high(upper_shape);
    Array<uint8_t> low_by(shape), high_by(upper_shape);
    std::fill_n(low_by.mutable_data(), low_by.size(), uint8_t{0});
    std::fill_n(high_by.mutable_data(), high_by.size(), uint8_t{0});
    // Other types than float32 are read as float64, because conversion to float32 might round them.
    py::array kept[2];
    const auto corners_of = [](const py::array& corners, py::array& copy) {
      if (py::isinstance<Array<float>>(corners)) return cpu::Corners(static_cast<const float*>(corners.data()));
      copy = Doubles(corners);
      return cpu::Corners(static_cast<const double*>(copy.data()));
    };
    cpu::InputSet set{corners_of(lower, kept[0]), corners_of(upper, kept[1]), center ? center->data() : nullptr,
                      epsilon ? epsilon->data() : nullptr};
    if (radius) {
      check(radius->size() == batch, "BoundNetwork: radius: expected [", batch, "]");
      for (cpu::Corners* corners : {&set.lower, &set.upper})
        corners->radius = radius->data(), corners->low = clip_low, corners->high = clip_high;
      set.upper.sign = 1;
    }
    const cpu::BoundSide lower_side{low.mutable_data(), low_by.mutable_data()};
    const cpu::BoundSide upper_side{high.mutable_data(), high_by.mutable_data()};
    std::optional<py::error_already_set> interrupt;
    if (batch > 0) {
      const py::gil_scoped_release unlocked;
      const cpu::KeepDenormals keep;
      const cpu::LibraryProduct<T> library =
          product ? library_product(*product, watch ? &interrupt : nullptr) : cpu::LibraryProduct<T>();
      std::optional<cpu::Watch> watching;
      if (watch) {
        watching.emplace(told(watch->first, interrupt), watch->second, network_.size());
        options.watch = &*watching;
      }
      cpu::propagate(network_, set, batch, spec, options, chunk, static_cast<int>(torch::stable::get_num_threads()),
                     kParallelFor, library, lower_side, upper_side);
    }
    if (interrupt) {
      if (!interrupt->matches(PyExc_KeyboardInterrupt)) throw py::error_already_set(*interrupt);
      watch->first.attr("interrupt") = interrupt->value();
    }
    return py::make_tuple(low, high, low_by, high_by);
  }

  // The weight of a layer of products, flat, without a copy: it lives as long as the network.
  static Array<T> weight(const py::object& self, int64_t i) {
    const auto& network = self.cast<const Network&>();
    const std::vector<T>& weight = network.source(i).weight;
    return Array<T>(static_cast<py::ssize_t>(weight.size()), weight.data(), self);
  }

  std::pair<int64_t, int64_t> memory(bool to_input, bool ball, bool sound, bool deployed, bool library,
                                     bool rows) const override {
    cpu::BoundOptions options;
    options.to_input = to_input, options.sound = sound, options.library = library;
    options.norm = ball ? cpu::Norm::kL2 : cpu::Norm::kLinf, options.deployed = deployed ? 1 : 0;
    const cpu::Memory found = cpu::memory_of(network_, options, rows);
    return {found.example, found.weights};
  }

 private:
  static cpu::SlopeSearch search_of(const Search& given) {
    cpu::SlopeSearch search;
    double seconds = INFINITY;
    std::tie(search.iterations, search.patience, search.rate, search.decay, search.first, search.second,
             search.least_gain, search.decides, seconds) = given;
    // A year is as good as no limit, and does not overflow the clock.
    if (seconds < 3e7)
      search.deadline =
          std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                 std::chrono::duration<double>(std::max(seconds, 0.0)));
    return search;
  }
  // An object with tell(rows [layers], spared rows [layers], examples) -> whether to go on. An error ends the work, but
  // not its results: Ctrl-C raises one before the function's first line.
  static cpu::Watch::Tell told(const py::object& watch, std::optional<py::error_already_set>& interrupt) {
    return [&watch, &interrupt](const cpu::Watch::Work& work) {
      const py::gil_scoped_acquire lock;
      try {
        return !interrupt && watch.attr("tell")(work.rows, work.spared, work.examples).template cast<bool>();
      } catch (const py::error_already_set& error) {
        interrupt.emplace(error);
        return false;
      }
    };
  }
  // A Python function (layer, product, [batch, inputs]) -> [batch, outputs]; called again at Ctrl-C where there is a
  // watch, which then ends the work.
  cpu::LibraryProduct<T> library_product(const py::function& function,
                                         std::optional<py::error_already_set>* interrupt) const {
    return [this, &function, interrupt](int64_t i, cpu::Product product, int64_t batch, const T* in,
                                        const cpu::Channels* channels) {
      const Layer<T>& layer = network_.layer(i);
      const int64_t from = network_.layer(layer.inputs[0]).shape.size(), to = layer.shape.size();
      const bool back = product == cpu::Product::kBackward;
      const py::gil_scoped_acquire lock;
      const Array<T> operand(std::vector<py::ssize_t>{batch, back ? to : from}, in, py::none());
      // The array is released under the lock, whoever holds it last.
      const py::tuple block = channels == nullptr ? py::tuple() : py::make_tuple(channels->first, channels->last);
      const auto call = [&] {
        return function(i, static_cast<int>(product), operand, *block).template cast<Array<T>>();
      };
      const auto repeated = [&] {
        try {
          return call();
        } catch (const py::error_already_set& error) {
          if (interrupt == nullptr || !error.matches(PyExc_KeyboardInterrupt)) throw;
          interrupt->emplace(error);
          return call();
        }
      };
      auto* const kept = new Array<T>(repeated());
      cpu::LibraryResult<T> result;
      result.owner = std::shared_ptr<void>(kept, [](void* p) {
        const py::gil_scoped_acquire lock;
        delete static_cast<Array<T>*>(p);
      });
      check(kept->size() == batch * (back ? from : to), "BoundNetwork: product: expected ", batch * (back ? from : to),
            " elements, got ", kept->size());
      result.data = kept->mutable_data();
      return result;
    };
  }
  const Layer<T>& source(int64_t i) const {
    check(i >= 0 && i < network_.size(), "BoundNetwork: input: expected an earlier layer, got ", i);
    return network_.layer(i);
  }
  Layer<T> like(int64_t input, Kind kind) const {
    Layer<T> layer;
    layer.kind = kind;
    layer.shape = source(input).shape;
    layer.inputs = {input};
    return layer;
  }
  Layer<T> gathered(const std::vector<int64_t>& inputs, const Integers& index,
                    const std::vector<int64_t>& shape) const {
    Layer<T> layer;
    layer.kind = Kind::kGather;
    layer.shape = shape_of(shape);
    layer.inputs = inputs;
    int64_t total = 0;
    for (const int64_t i : inputs) total += source(i).shape.size();
    layer.index = values(index, layer.shape.size(), "index");
    check_indices(layer.index, total);
    return layer;
  }
  static void check_indices(const std::vector<int64_t>& indices, int64_t size) {
    for (const int64_t i : indices)
      check(i >= -1 && i < size, "BoundNetwork: index: expected -1 to ", size - 1, ", got ", i);
  }
  static void set_bias(Layer<T>& layer, const Doubles& bias, int64_t size, double weight_error, double bias_error) {
    check(weight_error >= 0 && bias_error >= 0, "BoundNetwork: expected errors of at least 0");
    check(bias.size() == 0 || bias.size() == size, "BoundNetwork: bias: expected ", size, " elements, got ",
          bias.size());
    const int64_t plane = layer.shape.plane();
    layer.bias.resize(static_cast<size_t>(size * plane));
    for (int64_t k = 0; bias.size() > 0 && k < size * plane; ++k)
      layer.bias[static_cast<size_t>(k)] = bias.data()[k / plane];
    layer.weight_error = weight_error, layer.bias_error = bias_error;
  }
  template <class E>
  static E chosen(const std::string& name, const char* what, const std::vector<std::pair<const char*, E>>& known) {
    for (const auto& [one, value] : known)
      if (name == one) return value;
    check(false, "BoundNetwork: ", what, ": unknown: ", name);
    return known[0].second;
  }

  cpu::BoundNetwork<T> network_;
  bool finished_ = false;
};

template <class T>
void bind(py::module_& m, const char* name) {
  using N = Network<T>;
  py::class_<N, AnyNetwork>(m, name)
      .def(py::init<>())
      .def("linear", &N::linear, py::arg("input"), py::arg("weight"), py::arg("bias"), py::arg("weight_error"),
           py::arg("bias_error"))
      .def("conv", &N::conv, py::arg("input"), py::arg("weight"), py::arg("bias"), py::arg("weight_error"),
           py::arg("bias_error"), py::arg("sizes"), py::arg("shape"))
      .def("scale", &N::scale, py::arg("input"), py::arg("scale"), py::arg("shift"), py::arg("scale_error"),
           py::arg("shift_error"), py::arg("shift_excess"), py::arg("roundings"))
      .def("propagate", &N::propagate, py::arg("lower"), py::arg("upper"), py::arg("center"), py::arg("epsilon"),
           py::arg("rows"), py::arg("refines"), py::arg("to_input"), py::arg("norm"), py::arg("sound"),
           py::arg("deployed"), py::arg("deployed_max"), py::arg("with_upper"), py::arg("chunk"),
           py::arg("product") = py::none(), py::arg("product_least") = 0, py::arg("radius") = py::none(),
           py::arg("clip_low") = -INFINITY, py::arg("clip_high") = INFINITY, py::arg("search") = py::none(),
           py::arg("labels") = py::none(), py::arg("watch") = py::none())
      .def("weight", &N::weight, py::arg("layer"));
}

}  // namespace

inline void bind_bound_networks(py::module_& m) {
  using N = AnyNetwork;
  py::class_<N>(m, "BoundNetwork", "A network for bound propagation: layers are added in order, then it is finished.")
      .def("input", &N::input, py::arg("shape"))
      .def("gather", &N::gather, py::arg("inputs"), py::arg("index"), py::arg("shape"))
      .def("sort", &N::sort, py::arg("inputs"), py::arg("index"), py::arg("pairs"), py::arg("larger"), py::arg("shape"))
      .def("sum", &N::sum, py::arg("inputs"), py::arg("signs"), py::arg("roundings"))
      .def("activation", &N::activation, py::arg("input"), py::arg("function"), py::arg("slope"), py::arg("low"),
           py::arg("high"), py::arg("roundings"), py::arg("rule"), py::arg("parameters") = std::vector<double>(),
           py::arg("error") = 0.0, py::arg("largest") = INFINITY, py::arg("slopes") = std::pair(Doubles(), Doubles()),
           py::arg("partial") = false)
      .def("max_pool", &N::max_pool, py::arg("input"), py::arg("windows"), py::arg("shape"))
      .def("product", &N::product, py::arg("first"), py::arg("second"))
      .def("know", &N::know, py::arg("layer"), py::arg("low"), py::arg("high"))
      .def("relate", &N::relate, py::arg("layer"), py::arg("first"), py::arg("sign"))
      .def("finish", &N::finish, py::arg("consumers"), py::arg("fused"), py::arg("affine_in_input"),
           py::arg("ends_affine_part"), py::arg("repeats"))
      .def("memory", &N::memory, py::kw_only(), py::arg("to_input"), py::arg("ball"), py::arg("sound"),
           py::arg("deployed"), py::arg("library"), py::arg("rows"));
  bind<float>(m, "BoundNetwork32");
  bind<double>(m, "BoundNetwork64");
  m.def("curve_interval", curve_interval, py::arg("function"), py::arg("parameters"), py::arg("lower"),
        py::arg("upper"));
  m.def("curve_relaxation", curve_relaxation, py::arg("function"), py::arg("parameters"), py::arg("lower"),
        py::arg("upper"));
  m.def("product_bounds32", product_bounds<float>, py::arg("a"), py::arg("b"), py::arg("c"), py::arg("d"));
  m.def("product_bounds64", product_bounds<double>, py::arg("a"), py::arg("b"), py::arg("c"), py::arg("d"));
  m.def("prelu_relaxation32", prelu_relaxation<float>, py::arg("least"), py::arg("most"), py::arg("lower"),
        py::arg("upper"));
  m.def("prelu_relaxation64", prelu_relaxation<double>, py::arg("least"), py::arg("most"), py::arg("lower"),
        py::arg("upper"));
}

}  // namespace pyrobust

// The interval pass: ranges of neurons layer by layer, as center and radius of sums of products, for up to kLanes
// examples.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "bounds/engine/example_state.h"
#include "bounds/engine/forward_products.h"
#include "bounds/engine/kernels.h"
#include "bounds/engine/relaxation_kernels.h"

namespace pyrobust::cpu {
namespace {

// The inputs of an example group as [neuron][example]: a point c of each range, the distance of the range's ends from
// c, and the largest |z| and |c|.
template <class T>
struct Lanes {
  const T *center, *radius, *magnitude;
};

template <class T>
Lanes<T> lanes_of(int64_t layer, int64_t n, ExampleState<T>* const* group, int64_t count, const BoundOptions& options,
                  T* lanes) {
  const int64_t size = n * kLanes<T>;
  const double flushed = options.deployed > 0 ? kFlushed : 0;
  if (count < kLanes<T>) std::fill(lanes, lanes + 3 * size, T(0));
  for (int64_t e = 0; e < count; ++e) {
    const LayerState<T>& state = (*group[e])[layer];
    engine_kernels<T>().spread(state.lower.data(), state.upper.data(), n, kLanes<T>, flushed, options.sound, lanes + e,
                               lanes + size + e, lanes + 2 * size + e);
  }
  return {lanes, lanes + size, lanes + 2 * size};
}

// Sums of products of one channel block at one place: out [kPanel][kLanes].
template <class T>
struct Sums {
  T center[kPanel * kLanes<T>], radius[kPanel * kLanes<T>], magnitude[kPanel * kLanes<T>];
};

// Turns the sums at one neuron into a range, rounded outward.
template <class T>
class Ranges {
 public:
  Ranges(const Layer<T>& layer, const BoundOptions& options) : layer_(layer), costs_(range_costs(layer, options)) {}

  // `width` neurons k, k + plane, ... for the examples of a group.
  void store(ExampleState<T>* const* group, int64_t count, int64_t layer, const Sums<T>& sums, int64_t k, int64_t plane,
             int64_t width) const {
    double lower[kLanes<T>], upper[kLanes<T>], sum[kLanes<T>];
    for (int64_t j = 0; j < width; ++j) {
      const auto at = static_cast<size_t>(k + j * plane);
      engine_kernels<T>().range(sums.center + j * kLanes<T>, sums.radius + j * kLanes<T>,
                                sums.magnitude + j * kLanes<T>, layer_.bias[at], costs_, lower, upper, sum);
      for (int64_t e = 0; e < count; ++e) {
        LayerState<T>& state = (*group[e])[layer];
        state.lower[at] = lower[e], state.upper[at] = upper[e], state.sum[at] = sum[e];
      }
    }
  }

 private:
  const Layer<T>& layer_;
  RangeCosts costs_;
};

// A linear layer or a convolution.
template <class T>
void products(const BoundNetwork<T>& network, int64_t i, ExampleState<T>* const* group, int64_t count,
              const BoundOptions& options, Room<T>& room) {
  const Layer<T>& layer = network.layer(i);
  const int64_t input = layer.inputs[0];
  const Shape& from = network.layer(input).shape;
  const Lanes<T> lanes = lanes_of(input, from.size(), group, count, options, room.take(i));
  const Ranges<T> ranges(layer, options);
  Sums<T> sums;
  for_panels(layer, from, [&](const ForwardPanel& panel) {
    panel.multiply(lanes.center, layer.forward, sums.center);
    panel.multiply(lanes.radius, layer.forward_abs, sums.radius);
    panel.multiply(lanes.magnitude, layer.forward_abs, sums.magnitude);
    ranges.store(group, count, i, sums, panel.first, panel.apart, panel.width);
  });
}

// Memory of a thread for the sums of one example.
template <class T>
std::vector<T>& memory_of_one(int64_t n) {
  thread_local std::vector<T> kept;
  if (kept.size() < static_cast<size_t>(n)) kept.resize(static_cast<size_t>(n));
  return kept;
}

template <class T>
void products_of_one(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const LayerState<T>& input = example[layer.inputs[0]];
  const Shape& from = network.layer(layer.inputs[0]).shape;
  const int64_t inputs = from.size(), n = layer.shape.size();
  T* const center = memory_of_one<T>(3 * (inputs + n)).data();
  T *const radius = center + inputs, *const magnitude = radius + inputs, *const sums = magnitude + inputs;
  engine_kernels<T>().spread(input.lower.data(), input.upper.data(), inputs, 1, options.deployed > 0 ? kFlushed : 0,
                             options.sound, center, radius, magnitude);
  multiply_one<T>(layer, from,
                  {{center, layer.forward, sums},
                   {radius, layer.forward_abs, sums + n},
                   {magnitude, layer.forward_abs, sums + 2 * n}});
  LayerState<T>& state = example[i];
  engine_kernels<T>().range_one(sums, sums + n, sums + 2 * n, layer.bias.data(), n, range_costs(layer, options),
                                state.lower.data(), state.upper.data(), state.sum.data());
}

// The same in the centered form. The sums of the origins are taken in float64, where products of two float32 numbers are
// exact: the errors of float32 are all proportional to the radius.
template <class T>
void centered_products(const BoundNetwork<T>& network, int64_t i, ExampleState<T>* const* group, int64_t count,
                       const BoundOptions& options, Room<T>& room) {
  constexpr int64_t L = kLanes<T>;
  const Layer<T>& layer = network.layer(i);
  const Outward out(options.sound);
  const Shape& from = network.layer(layer.inputs[0]).shape;
  const bool inexact = layer.weight_error > 0;
  T* const radius = room.take(i);
  T* const magnitude = inexact ? radius + from.size() * L : nullptr;
  if (count < L) std::fill(radius, radius + (inexact ? 2 : 1) * from.size() * L, T(0));
  const double share = out.gamma(layer.forward_fan_in + 3, Unit<double>::kRoundoff);
  const double *origins[L], *points[L];
  double errors[L] = {};
  for (int64_t e = 0; e < count; ++e) {
    const LayerState<T>& input = (*group[e])[layer.inputs[0]];
    LayerState<T>& state = (*group[e])[i];
    engine_kernels<T>().spread_around(input.origin.data(), input.lower.data(), input.upper.data(), from.size(), L,
                                      radius + e, magnitude ? magnitude + e : nullptr);
    const double size = out.add_up(out.mul_up(layer.weight_size, input.origin_size), layer.bias_size);
    errors[e] = state.offset_error = out.mul_up(share, size);
    if (inexact) state.weight_error.resize(state.lower.size());
    origins[e] = input.origin.data();
  }
  RangeCosts costs = range_costs(layer, options);
  costs.sum = layer.weight_error;
  // of each example, and of one neuron
  double *lowers[L], *uppers[L], *all_sums[L], *offsets[L], *weight_errors[L];
  for (int64_t e = 0; e < count; ++e) {
    LayerState<T>& state = (*group[e])[i];
    lowers[e] = state.lower.data(), uppers[e] = state.upper.data(), all_sums[e] = state.sum.data();
    offsets[e] = state.offset.data(), weight_errors[e] = state.weight_error.data();
  }
  Sums<T> sums;
  double values[kPanel * L], value[L] = {}, lower[L], upper[L], sum[L], weight_error[L];
  for_panels(layer, from, [&](const ForwardPanel& panel) {
    panel.multiply(radius, layer.forward_abs, sums.radius);
    if (inexact) panel.multiply(magnitude, layer.forward_abs, sums.magnitude);
    for (int64_t e = 0; e < count; ++e) points[e] = origins[e] + panel.offset / L;
    engine_kernels<T>().evaluate(points, count, panel.fan_in.data(), static_cast<int64_t>(panel.fan_in.size()),
                                 layer.forward[panel.group].panel(panel.panel), values);
    for (int64_t j = 0; j < panel.width; ++j) {
      const auto at = static_cast<size_t>(panel.first + j * panel.apart);
      for (int64_t e = 0; e < count; ++e) value[e] = values[e * kPanel + j] + layer.bias[at];
      engine_kernels<T>().centered_range(value, sums.radius + j * L, inexact ? sums.magnitude + j * L : nullptr, errors,
                                         costs, lower, upper, sum, weight_error);
      for (int64_t e = 0; e < count; ++e) {
        lowers[e][at] = lower[e], uppers[e][at] = upper[e], all_sums[e][at] = sum[e], offsets[e][at] = value[e];
        if (inexact) weight_errors[e][at] = weight_error[e];
      }
    }
  });
}

template <class T>
void centered_products_of_one(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example,
                              const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const LayerState<T>& input = example[layer.inputs[0]];
  LayerState<T>& state = example[i];
  const Outward out(options.sound);
  const Shape& from = network.layer(layer.inputs[0]).shape;
  const int64_t inputs = from.size(), n = layer.shape.size();
  const bool inexact = layer.weight_error > 0;
  T* const radius = memory_of_one<T>(2 * (inputs + n) + 2 * kLanes<T>).data();
  T* const magnitude = inexact ? radius + inputs : nullptr;
  T *const radius_sums = radius + 2 * inputs, *const magnitude_sums = radius_sums + n + kLanes<T>;
  engine_kernels<T>().spread_around(input.origin.data(), input.lower.data(), input.upper.data(), inputs, 1, radius,
                                    magnitude);
  const double size = out.add_up(out.mul_up(layer.weight_size, input.origin_size), layer.bias_size);
  state.offset_error = out.mul_up(out.gamma(layer.forward_fan_in + 3, Unit<double>::kRoundoff), size);
  if (inexact) state.weight_error.resize(state.lower.size());
  const SumsOfOne<T> radii{radius, layer.forward_abs, radius_sums};
  if (inexact)
    multiply_one<T>(layer, from, {radii, {magnitude, layer.forward_abs, magnitude_sums}});
  else
    multiply_one<T>(layer, from, {radii});
  std::vector<double> values;
  for_places(layer, layer.conv, layer.shape, from, [&](const ForwardPlace& place) {
    const Panels<T>& panels = layer.forward[place.group];
    values.resize(static_cast<size_t>(panels.count() * kPanel));
    engine_kernels<T>().evaluate_one(input.origin.data() + place.offset / kLanes<T>, place.fan_in.data(),
                                     static_cast<int64_t>(place.fan_in.size()), panels.w.data(), kPanel * panels.fan_in,
                                     panels.count(), values.data());
    for (int64_t j = 0; j < panels.outputs; ++j) {
      const auto at = static_cast<size_t>(place.first + j * place.apart);
      state.offset[at] = values[static_cast<size_t>(j)] + layer.bias[at];
    }
  });
  RangeCosts costs = range_costs(layer, options);
  costs.sum = layer.weight_error;
  double errors[kLanes<T>], value[kLanes<T>] = {}, lower[kLanes<T>], upper[kLanes<T>], sum[kLanes<T>],
                            weight_error[kLanes<T>];
  std::fill(errors, errors + kLanes<T>, state.offset_error);
  for (int64_t k = 0; k < n; k += kLanes<T>) {
    const int64_t count = std::min(kLanes<T>, n - k);
    std::copy_n(state.offset.begin() + k, count, value);
    engine_kernels<T>().centered_range(value, radius_sums + k, inexact ? magnitude_sums + k : nullptr, errors, costs,
                                       lower, upper, sum, weight_error);
    std::copy_n(lower, count, state.lower.begin() + k), std::copy_n(upper, count, state.upper.begin() + k);
    std::copy_n(sum, count, state.sum.begin() + k);
    if (inexact) std::copy_n(weight_error, count, state.weight_error.begin() + k);
  }
}

// Computes `sum` and `offset` (except for the layer's own origin) of an affine layer without products in the centered
// form.
template <class T>
void measure_from_origins(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example) {
  const Layer<T>& layer = network.layer(i);
  const Outward out(true);
  LayerState<T>& state = example[i];
  const size_t n = state.sum.size();
  std::fill(state.offset.begin(), state.offset.end(), 0.0), std::fill(state.sum.begin(), state.sum.end(), 0.0);
  double size = 0;  // of an offset's terms
  const auto add = [&](size_t k, const LayerState<T>& source, size_t from, double factor) {
    const double origin = source.origin[from];
    state.offset[k] += factor * origin;
    state.sum[k] += out.up(std::fabs(factor) * distance(source.lower[from], source.upper[from], origin));
  };
  switch (layer.kind) {
    case Kind::kScale:
      for (size_t k = 0; k < n; ++k) {
        add(k, example[layer.inputs[0]], k, layer.scale[k]);
        size = std::max(size, std::fabs(state.offset[k]) + std::fabs(layer.shift[k]));
        state.offset[k] += layer.shift[k];
      }
      break;
    case Kind::kSum:
      for (size_t j = 0; j < layer.inputs.size(); ++j) {
        const LayerState<T>& source = example[layer.inputs[j]];
        for (size_t k = 0; k < n; ++k) add(k, source, k, layer.signs[j]);
        size += std::fabs(layer.signs[j]) * source.origin_size;
      }
      break;
    default:  // gather
      for (size_t k = 0; k < n; ++k) {
        int64_t from = layer.index[k];
        for (size_t j = 0; from >= 0 && j < layer.inputs.size(); ++j) {
          const int64_t elements = network.layer(layer.inputs[j]).shape.size();
          if (from < elements) add(k, example[layer.inputs[j]], static_cast<size_t>(from), 1);
          from -= elements;
        }
      }
  }
  const auto terms = static_cast<int64_t>(layer.inputs.size()) + 4;
  for (size_t k = 0; k < n; ++k) state.sum[k] *= 1 + static_cast<double>(terms) * 0x1p-52;
  state.offset_error = out.mul_up(out.gamma(terms, Unit<double>::kRoundoff), size);
}

// Intersects the range of an element with that of the smaller or larger of its pair, whichever the element is.
template <class T>
void intersect_with_pair(const Layer<T>& layer, const LayerState<T>& pairs, size_t k, LayerState<T>& state) {
  const auto a = static_cast<size_t>(layer.windows[2 * k]), b = static_cast<size_t>(layer.windows[2 * k + 1]);
  const bool larger = layer.larger[k] != 0;
  const auto of_pair = [&](double x, double y) { return larger ? std::max(x, y) : std::min(x, y); };
  const double lower = of_pair(pairs.lower[a], pairs.lower[b]), upper = of_pair(pairs.upper[a], pairs.upper[b]);
  const double low = std::max(lower, state.lower[k]), high = std::min(upper, state.upper[k]);
  // Without directed rounding, the two ranges may be disjoint.
  state.lower[k] = low <= high ? low : lower;
  state.upper[k] = low <= high ? high : upper;
  state.sum[k] = magnitude(state.lower[k], state.upper[k]);
}

// Applies the bounds that hold for a layer's values whatever the input, and records whether a value may not exist.
template <class T>
void know(const Layer<T>& layer, LayerState<T>& state, const BoundOptions& options, bool& undefined) {
  for (size_t k = 0; k < state.lower.size(); ++k) {
    double &l = state.lower[k], &u = state.upper[k];
    undefined |= layer.partial && l == -INFINITY && u == INFINITY;
    if (options.deployed > 0) continue;
    const double low = std::max(l, layer.known_low), high = std::min(u, layer.known_high);
    if (low <= high) l = low, u = high;
  }
}

// All other layers, one example at a time, in float64.
template <class T>
void elementwise(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const Outward out(options.sound);
  LayerState<T>& state = example[i];
  const LayerState<T>& first = example[layer.inputs[0]];
  const auto n = static_cast<size_t>(layer.shape.size());
  const double share = out.gamma(layer.roundings, options.deployed);
  const auto widen = [&](size_t k, double error) {
    state.lower[k] = out.add_down(state.lower[k], -error);
    state.upper[k] = out.add_up(state.upper[k], error);
  };
  switch (layer.kind) {
    case Kind::kScale:
      for (size_t k = 0; k < n; ++k) {
        const auto s = static_cast<double>(layer.scale[k]);
        const double l = first.lower[k], u = first.upper[k], m = magnitude(l, u), t = layer.shift[k];
        state.sum[k] = out.mul_up(std::fabs(s), m);
        state.lower[k] = out.add_down(out.mul_down(s, s >= 0 ? l : u), t);
        state.upper[k] = out.add_up(out.mul_up(s, s >= 0 ? u : l), t);
        if (!out.sound()) continue;
        double error = out.add_up(out.mul_up(layer.scale_error[k], m), layer.shift_error[k]);
        const double excess = layer.shift_excess.empty() ? 0 : layer.shift_excess[k];
        error =
            out.add_up(error, out.mul_up(share, state.sum[k] + std::fabs(t) + excess + kFlushed * (1 + std::fabs(s))));
        widen(k, error);
      }
      break;
    case Kind::kGather:
      if (layer.inputs.size() == 1 && layer.larger.empty()) {
        for (size_t k = 0; k < n; ++k) {
          const int64_t from = layer.index[k];
          const bool zero = from < 0;
          const size_t at = zero ? 0 : static_cast<size_t>(from);
          state.lower[k] = zero ? 0 : first.lower[at], state.upper[k] = zero ? 0 : first.upper[at];
          state.sum[k] = magnitude(state.lower[k], state.upper[k]);
        }
        break;
      }
      for (size_t k = 0; k < n; ++k) {
        int64_t from = layer.index[k];
        state.lower[k] = state.upper[k] = state.sum[k] = 0;
        for (const int64_t input : layer.inputs) {
          const int64_t size = network.layer(input).shape.size();
          if (from >= 0 && from < size) {
            const LayerState<T>& source = example[input];
            state.lower[k] = source.lower[static_cast<size_t>(from)];
            state.upper[k] = source.upper[static_cast<size_t>(from)];
            state.sum[k] = magnitude(state.lower[k], state.upper[k]);
          }
          from -= size;
          if (from < 0) break;
        }
        if (!layer.larger.empty()) intersect_with_pair(layer, example[layer.inputs.back()], k, state);
      }
      break;
    case Kind::kSum:
      for (auto* part : {&state.lower, &state.upper, &state.sum}) std::fill(part->begin(), part->end(), 0.0);
      for (size_t j = 0; j < layer.inputs.size(); ++j) {
        const LayerState<T>& source = example[layer.inputs[j]];
        const double sign = layer.signs[j];
        for (size_t k = 0; k < n; ++k) {
          const double l = sign * source.lower[k], u = sign * source.upper[k];
          state.lower[k] = out.add_down(state.lower[k], std::min(l, u));
          state.upper[k] = out.add_up(state.upper[k], std::max(l, u));
          state.sum[k] = out.add_up(state.sum[k], magnitude(l, u));
        }
      }
      for (size_t k = 0; share > 0 && k < n; ++k) widen(k, out.mul_up(share, state.sum[k] + kFlushed));
      break;
    case Kind::kActivation:
      if (layer.function == Function::kRule) {
        layer.range_rule(static_cast<int64_t>(n), first.lower.data(), first.upper.data(), state.lower.data(),
                         state.upper.data());
        break;
      }
      if (layer.function == Function::kLeakyRelu && layer.slope == 0) {
        for (size_t k = 0; k < n; ++k) {
          state.lower[k] = std::max(0.0, first.lower[k]);
          state.upper[k] = std::max(0.0, first.upper[k]);
        }
        break;
      }
      if (layer.function == Function::kPrelu) {
        for (size_t k = 0; k < n; ++k) {
          const Values values =
              prelu_values(first.lower[k], first.upper[k], layer.least_slope[k], layer.most_slope[k], out);
          state.lower[k] = values.low, state.upper[k] = values.high;
        }
        break;
      }
      if (layer.function != Function::kClamp && layer.function != Function::kLeakyRelu)
        throw std::logic_error("BoundNetwork: unknown activation");
      for (size_t k = 0; k < n; ++k) {
        const double l = first.lower[k], u = first.upper[k];
        if (layer.function == Function::kClamp) {
          state.lower[k] = std::isnan(l) ? l : std::fmin(std::fmax(l, layer.low), layer.high);
          state.upper[k] = std::isnan(u) ? u : std::fmin(std::fmax(u, layer.low), layer.high);
        } else {
          state.lower[k] = l >= 0 ? l : layer.slope == 0 ? 0 : out.mul_down(layer.slope, l);
          state.upper[k] = u >= 0 ? u : layer.slope == 0 ? 0 : out.mul_up(layer.slope, u);
        }
      }
      break;
    case Kind::kProduct: {
      const LayerState<T>& second = example[layer.inputs[1]];
      relaxation_kernels<T>().product_ranges(
          {first.lower.data(), first.upper.data(), second.lower.data(), second.upper.data()}, static_cast<int64_t>(n),
          out.sound(), state.lower.data(), state.upper.data());
      for (size_t k = 0; share > 0 && k < n; ++k) widen(k, deployed_product_error(first, second, k, share, out));
      break;
    }
    case Kind::kMaxPool:
      for (size_t k = 0; k < n; ++k) {
        double lower = -INFINITY, upper = -INFINITY;
        for (int64_t j = 0; j < layer.window; ++j) {
          const int64_t from = layer.windows[k * static_cast<size_t>(layer.window) + static_cast<size_t>(j)];
          if (from < 0) continue;
          const double l = first.lower[static_cast<size_t>(from)], u = first.upper[static_cast<size_t>(from)];
          lower = std::isnan(l) || l > lower ? l : lower;
          upper = std::isnan(u) || u > upper ? u : upper;
        }
        state.lower[k] = lower, state.upper[k] = upper;
      }
      break;
    default:
      break;
  }
}

}  // namespace

template <class T>
void choose_origins(LayerState<T>& state) {
  state.origin.resize(state.lower.size());
  state.origin_size =
      engine_kernels<T>().middles(state.lower.data(), state.upper.data(), static_cast<int64_t>(state.lower.size()),
                                  state.origin.data(), state.offset.empty() ? nullptr : state.offset.data());
}

template <class T>
void propagate_intervals(const BoundNetwork<T>& network, int64_t i, ExampleState<T>* const* group, int64_t count,
                         const BoundOptions& options, Room<T>& room) {
  const Layer<T>& layer = network.layer(i);
  const auto n = static_cast<size_t>(layer.shape.size());
  for (int64_t e = 0; e < count; ++e) {
    LayerState<T>& state = (*group[e])[i];
    state.lower.resize(n), state.upper.resize(n);
    if (layer.affine()) state.sum.resize(n);
    if (layer.affine() && centered<T>(options)) state.offset.resize(n);
  }
  if (layer.products() && centered<T>(options) && count == 1)
    centered_products_of_one(network, i, *group[0], options);
  else if (layer.products() && count == 1)
    products_of_one(network, i, *group[0], options);
  else if (layer.products() && centered<T>(options))
    centered_products(network, i, group, count, options, room);
  else if (layer.products())
    products(network, i, group, count, options, room);
  else
    for (int64_t e = 0; e < count; ++e) elementwise(network, i, *group[e], options);
  const double share = layer.kind == Kind::kActivation ? Outward(true).gamma(layer.roundings, options.deployed) : 0;
  // Nothing is known where anything overflowed, or may overflow in the deployed pass.
  const double largest = options.deployed > 0 ? options.deployed_max : INFINITY;
  for (int64_t e = 0; e < count; ++e) {
    LayerState<T>& state = (*group[e])[i];
    for (size_t k = 0; share > 0 && k < n; ++k) {
      const double error = deployed_error(layer, state.lower[k], state.upper[k], share);
      state.lower[k] -= error, state.upper[k] += error;
    }
    const bool usable = largest == INFINITY &&
                        engine_kernels<T>().ordered(state.lower.data(), state.upper.data(), static_cast<int64_t>(n));
    // An activation's value may be NaN where its own input (not the network's) is unknown: no function bounds NaN.
    const LayerState<T>* const input =
        layer.kind == Kind::kActivation && layer.inputs[0] > 0 ? &(*group[e])[layer.inputs[0]] : nullptr;
    for (size_t k = 0; k < n && !usable; ++k) {
      const bool large =
          (layer.affine() && state.sum[k] > largest) ||
          (input != nullptr && largest < INFINITY && input->lower[k] == -INFINITY && input->upper[k] == INFINITY);
      if (!(state.lower[k] <= state.upper[k]) || state.lower[k] < -largest || state.upper[k] > largest || large)
        state.lower[k] = -INFINITY, state.upper[k] = INFINITY;
    }
    if (layer.needs_intervals()) know(layer, state, options, (*group[e]).undefined);
    if (!centered<T>(options)) continue;
    if (layer.affine() && !layer.products()) measure_from_origins(network, i, *group[e]);
    choose_origins(state);
  }
}

template void choose_origins<float>(LayerState<float>&);
template void choose_origins<double>(LayerState<double>&);
template void propagate_intervals<float>(const BoundNetwork<float>&, int64_t, ExampleState<float>* const*, int64_t,
                                         const BoundOptions&, Room<float>&);
template void propagate_intervals<double>(const BoundNetwork<double>&, int64_t, ExampleState<double>* const*, int64_t,
                                          const BoundOptions&, Room<double>&);

}  // namespace pyrobust::cpu

// The factors of the backward pass at one layer of one example: linear relaxations with intercepts widened by the
// rounding error of the whole step, computed once, so that the loops over rows are plain arithmetic.
//
// The rounding error for a coefficient a of a neuron z in [l, u], with m the largest |z|, is
//   - at a sum of products: the computed coefficients are taken as exact, which is off by at most gamma sum |a w|;
//     times the inputs, |a| gamma sum |w| m. The same holds for weights, biases and deployed sums that are not exact;
//   - at a function: a times a slope is rounded, which is off by |a| u |slope| m;
//   - where several consumers add to one coefficient: a rounding for each addition.
//
// The centered form measures every neuron from a number c near the middle of its range, its origin, fixed for the example:
// where z' = W z + b,
//     a (z' - c') = a W (z - c) + a (W c + b - c'),
// and for lines s z + h of a function, s z + h - c' = s (z - c) + (s c + h - c'). The backward pass is the same, with the
// intercepts in parentheses, but m is the largest |z - c|: rounding errors shrink with the input set, whatever the values.
// Any c is sound, as long as the same c is used on both sides of a layer. W c is a sum in float64, off by offset_error;
// the row's value at the origins of its own layer is added at the end. An error relative to z itself, that of inexact
// weights, stays proportional to |z|. Without the centered form, c = 0.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "bounds/engine/example_state.h"
#include "bounds/engine/relaxation_kernels.h"
#include "bounds/engine/wide/library_products.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {
namespace {

// The factor of a coefficient in a lower bound: low where it is positive, high where it is negative.
struct Pair {
  double low, high;
};

// Rounding errors of the step at an affine layer, and at an activation that consumes it.
template <class T>
StepCosts costs_of(const BoundNetwork<T>& network, const Layer<T>& layer, const LayerState<T>& state,
                   const BoundOptions& options) {
  const Outward out(options.sound);
  StepCosts costs;
  costs.sound = options.sound;
  costs.share = dot_error(network, out);
  costs.added = out.gamma<T>(layer.adds);
  costs.multiplied = out.gamma<T>(layer.adds + 1);
  if (!options.sound || !layer.affine()) return costs;
  const bool products = layer.products();
  const int64_t adds = network.input_adds(layer);
  const int64_t depth = products ? network.depth(layer, options.library) : layer.kind == Kind::kScale ? adds + 1 : adds;
  const double deployed = out.gamma(products ? layer.forward_fan_in + 4 : layer.roundings, options.deployed);
  costs.sum = out.gamma<T>(depth) + (centered<T>(options) ? 0 : layer.weight_error) + deployed;
  costs.bias = deployed;
  costs.flushed = deployed * kFlushed + layer.bias_error + state.offset_error;
  return costs;
}

// The bias at neuron k of an affine layer, minus and plus the error.
template <class T>
__attribute__((always_inline)) inline Pair affine_pair(const Layer<T>& layer, const ExampleState<T>& example,
                                                       const LayerState<T>& state, const StepCosts& costs, size_t k) {
  double bias = 0, known = 0;
  if (layer.kind == Kind::kScale) {
    const LayerState<T>& input = example[layer.inputs[0]];
    bias = layer.shift[k];
    known = layer.shift_error[k] + layer.scale_error[k] * magnitude(input.lower[k], input.upper[k]);
    if (!layer.shift_excess.empty()) known += costs.bias * layer.shift_excess[k];
    known += costs.bias * kFlushed * std::fabs(static_cast<double>(layer.scale[k]));
  } else {
    bias = layer.bias[k];
  }
  if (!state.offset.empty()) bias = state.offset[k];
  if (!state.weight_error.empty()) known += state.weight_error[k];
  if (!costs.sound) return {bias, bias};
  const double size = std::fabs(bias);
  double error = costs.sum * state.sum[k] + costs.bias * size + costs.flushed + known;
  error += Outward(true).rounding_error<T>(error + size);
  return {bias - error, bias + error};
}

// The part of the error that differs by neuron and is not proportional to `sum`; empty for none.
template <class T>
std::vector<double> known_errors(const Layer<T>& layer, const ExampleState<T>& example, const LayerState<T>& state,
                                 const StepCosts& costs) {
  std::vector<double> known = state.weight_error;
  if (layer.kind != Kind::kScale || !costs.sound) return known;
  const LayerState<T>& input = example[layer.inputs[0]];
  known.resize(layer.shift.size());
  for (size_t k = 0; k < known.size(); ++k)
    known[k] = layer.shift_error[k] + layer.scale_error[k] * magnitude(input.lower[k], input.upper[k]);
  for (size_t k = 0; k < layer.shift_excess.size(); ++k) known[k] += costs.bias * layer.shift_excess[k];
  // a deployed pass may flush the input to zero
  for (size_t k = 0; costs.bias > 0 && k < known.size(); ++k)
    known[k] += costs.bias * kFlushed * std::fabs(static_cast<double>(layer.scale[k]));
  return known;
}
template <class T>
const std::vector<double>& offsets(const Layer<T>& layer, const LayerState<T>& state) {
  if (!state.offset.empty()) return state.offset;
  return layer.kind == Kind::kScale ? layer.shift : layer.bias;
}

// Stores a pair in T, widened by the relative error of the loops.
template <class T>
void store_pair(const Outward& out, double share, Pair pair, T& low, T& high) {
  const double below = std::fabs(pair.low), above = std::fabs(pair.high);
  low = out.down_to<T>(pair.low - (share * below + out.rounding_error<T>(below)));
  high = out.up_to<T>(pair.high + (share * above + out.rounding_error<T>(above)));
}

template <class T>
void prepare_input(const BoundNetwork<T>& network, ExampleState<T>& example, const BoundOptions& options) {
  const Outward out(options.sound);
  const double share = dot_error(network, out);
  LayerState<T>& state = example[0];
  const size_t n = state.lower.size();
  state.low.resize(n), state.high.resize(n);
  relaxation_kernels<T>().pairs(state.lower.data(), state.upper.data(), origins_of(state), static_cast<int64_t>(n),
                                share, options.sound, state.low.data(), state.high.data());
}

template <class T>
LinearRelaxation<double> relaxation_of(const Layer<T>& layer, size_t k, double l, double u, const Outward& out) {
  const auto relaxation = [&]() -> LinearRelaxation<T> {
    switch (layer.function) {
      case Function::kClamp:
        return relax_clamp<T>(l, u, layer.low, layer.high, out);
      case Function::kLeakyRelu:
        return relax_leaky_relu<T>(l, u, layer.slope, out);
      case Function::kPrelu:
        return relax_prelu<T>(l, u, layer.least_slope[k], layer.most_slope[k], out);
      case Function::kRule:  // a function that gives its relaxation itself
        break;
    }
    throw std::logic_error("BoundNetwork: unknown activation");
  }();
  return {static_cast<double>(relaxation.lower_slope), static_cast<double>(relaxation.upper_slope),
          relaxation.lower_intercept, relaxation.upper_intercept};
}

// Widens intercepts by the rounding error of the step, and by that of the layer below where it is fused.
template <class T>
class RelaxationErrors {
 public:
  explicit RelaxationErrors(const StepCosts& costs) : out_(costs.sound), costs_(costs) {}

  // m: the largest |z - origin| below; pair: the factors of the layer below, where it is fused.
  void store(LayerState<T>& state, size_t k, const LinearRelaxation<double>& relaxation, double m, double origin,
             const Pair* pair) const {
    const double s = relaxation.lower_slope, t = relaxation.upper_slope, own = origin_of(state, k);
    double low = relaxation.lower_intercept, high = relaxation.upper_intercept;
    double low_size = std::fabs(low), high_size = std::fabs(high);
    if (origin != 0 || own != 0) {
      low += s * origin - own, high += t * origin - own;
      low_size += std::fabs(s * origin) + std::fabs(own), high_size += std::fabs(t * origin) + std::fabs(own);
    }
    if (pair != nullptr) {
      // slope b - |slope| error; the rounding of the coefficient affects b, too
      const double size = std::fmax(std::fabs(pair->low), std::fabs(pair->high));
      low += s * (s >= 0 ? pair->low : pair->high);
      high += t * (t >= 0 ? pair->high : pair->low);
      low_size += std::fabs(s) * size, high_size += std::fabs(t) * size;
      m += size;
    }
    const double low_cost = rounding(s) * m, high_cost = rounding(t) * m;
    low -= low_cost + out_.template rounding_error<T>(low_size + low_cost);
    high += high_cost + out_.template rounding_error<T>(high_size + high_cost);
    state.lower_slope[k] = static_cast<T>(s);
    state.upper_slope[k] = static_cast<T>(t);
    store_pair(out_, costs_.share, {low, high}, state.lower_intercept[k], state.upper_intercept[k]);
    state.alive[k] = s != 0 || t != 0;
    state.needed[k] = state.alive[k] != 0 || state.lower_intercept[k] != 0 || state.upper_intercept[k] != 0;
  }

  // Removes neuron k, which every line through zero with a slope in [least, most] bounds on one side, from the layer's
  // relaxations; arguments as for `store`, which has stored the line on the other side. The errors are those of
  // `store`, linear in the size of the slope; four more roundings pay for the arithmetic here and for the product with
  // the coefficient.
  void set_free(LayerState<T>& state, size_t k, const LinearRelaxation<double>& relaxation, double m, double origin,
                const Pair* pair, bool above, T least, T most) const {
    const Pair none{0, 0}, &bias = pair == nullptr ? none : *pair;
    const double size = std::fmax(std::fabs(bias.low), std::fabs(bias.high));
    const double own = origin_of(state, k), cost = costs_.multiplied * (m + size);
    const double scale = std::fabs(origin) + size + cost;
    const double lost = cost + (costs_.share * scale + out_.template rounding_error<T>(4 * scale));
    const double intercept = above ? relaxation.upper_intercept : relaxation.lower_intercept;
    const double fixed = std::fabs(own) + std::fabs(intercept);
    const double fixed_lost = costs_.share * fixed + out_.template rounding_error<T>(4 * fixed);
    FreeSlope<T> free{};
    free.neuron = static_cast<int64_t>(k);
    free.above = above, free.least = least, free.most = most;
    free.slope = static_cast<T>(above ? relaxation.upper_slope : relaxation.lower_slope);
    free.fixed_slope = above ? state.lower_slope[k] : state.upper_slope[k];
    free.fixed_intercept = static_cast<double>(above ? state.lower_intercept[k] : state.upper_intercept[k]);
    // The factor of a positive slope is small below and large above; that of a negative slope, the other way round.
    const double small = origin + bias.low - lost, large = origin + bias.high + lost;
    free.pull = above ? large : small, free.pull_negative = above ? small : large;
    free.push = own - intercept + (above ? -fixed_lost : fixed_lost);
    state.free.push_back(free);
    state.lower_slope[k] = state.upper_slope[k] = state.lower_intercept[k] = state.upper_intercept[k] = 0;
    state.alive[k] = state.needed[k] = 1;
  }

 private:
  // |slope| times the number of roundings: one fewer where the slope is 1, none where it is 0.
  double rounding(double slope) const {
    const double size = std::fabs(slope);
    return size == 0 ? 0 : size * (size == 1 ? costs_.added : costs_.multiplied);
  }

  Outward out_;
  StepCosts costs_;
};

template <class T>
void resize_relaxation(LayerState<T>& state, size_t n) {
  for (auto* part : {&state.lower_slope, &state.upper_slope, &state.lower_intercept, &state.upper_intercept})
    part->resize(n);
  state.alive.resize(n), state.needed.resize(n);
}

template <class T>
bool finite(const LayerState<T>& state) {
  return std::isfinite(relaxation_kernels<T>().total_distance(state.lower.data(), state.upper.data(), nullptr,
                                                              static_cast<int64_t>(state.lower.size())));
}

// Moves the lines apart by an error of the function.
void widen(LinearRelaxation<double>& relaxation, double error, const Outward& out) {
  relaxation.lower_intercept = out.add_down(relaxation.lower_intercept, -error);
  relaxation.upper_intercept = out.add_up(relaxation.upper_intercept, error);
}

// Frees the slopes of the unstable neurons of leaky functions, whose relaxations are stored.
template <class T>
void free_slopes(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const StepCosts& step,
                 const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const Layer<T>& below = network.layer(layer.inputs[0]);
  const LayerState<T>& input = example[layer.inputs[0]];
  LayerState<T>& state = example[i];
  const Outward out(options.sound);
  const RelaxationErrors<T> costs(step);
  const double share = out.gamma(layer.roundings, options.deployed);
  const bool prelu = layer.function == Function::kPrelu;
  for (size_t k = 0; k < input.lower.size(); ++k) {
    const double l = input.lower[k], u = input.upper[k];
    if (!(l < 0 && u > 0)) continue;
    LinearRelaxation<double> relaxation = relaxation_of(layer, k, l, u, out);
    if (share > 0) widen(relaxation, deployed_error(layer, state.lower[k], state.upper[k], share), out);
    const double origin = origin_of(input, k), far = distance(l, u, origin);
    const Pair pair = below.fused ? affine_pair(below, example, input, step, k) : Pair{0, 0};
    const Pair* const fused = below.fused ? &pair : nullptr;
    // If it is convex, every line between the pieces is below it; if concave, above it.
    const double least = prelu ? layer.least_slope[k] : layer.slope, most = prelu ? layer.most_slope[k] : layer.slope;
    if (most <= 1)
      costs.set_free(state, k, relaxation, far, origin, fused, false, std::min(out.up_to<T>(most), T(1)), T(1));
    else if (least >= 1)
      costs.set_free(state, k, relaxation, far, origin, fused, true, T(1), std::max(out.down_to<T>(least), T(1)));
  }
}

template <class T>
void prepare_activation(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example,
                        const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const int64_t from = layer.inputs[0];
  const Layer<T>& below = network.layer(from);
  const LayerState<T>& input = example[from];
  LayerState<T>& state = example[i];
  const Outward out(options.sound);
  const auto n = static_cast<size_t>(layer.shape.size());
  resize_relaxation(state, n);
  const StepCosts step = costs_of(network, below, input, options);
  const bool relu = layer.function == Function::kLeakyRelu && layer.slope == 0;
  state.free.clear();
  const bool leaky = layer.function == Function::kLeakyRelu || layer.function == Function::kPrelu;
  state.stable_but_free = options.search && leaky && finite(input);
  if (relu && !state.stable_but_free && finite(input)) {
    const std::vector<double> known = below.fused ? known_errors(below, example, input, step) : std::vector<double>();
    relaxation_kernels<T>().relu_relaxation(
        input.lower.data(), input.upper.data(), origins_of(input), state.origin.data(),
        below.fused ? input.sum.data() : nullptr, offsets(below, input).data(), known.empty() ? nullptr : known.data(),
        static_cast<int64_t>(n), step, state.lower_slope.data(), state.upper_slope.data(), state.lower_intercept.data(),
        state.upper_intercept.data(), state.alive.data());
    state.needed = state.alive;  // the intercepts of the other neurons are zero
    return;
  }
  const RelaxationErrors<T> costs(step);
  std::vector<double> given;
  if (layer.function == Function::kRule) {
    given.resize(6 * n);
    layer.relaxation_rule(static_cast<int64_t>(n), input.lower.data(), input.upper.data(), given.data(),
                          given.data() + n, given.data() + 2 * n, given.data() + 3 * n, given.data() + 4 * n,
                          given.data() + 5 * n);
  }
  const double share = out.gamma(layer.roundings, options.deployed);
  for (size_t k = 0; k < n; ++k) {
    const double l = input.lower[k], u = input.upper[k];
    LinearRelaxation<double> relaxation =
        given.empty() ? relaxation_of(layer, k, l, u, out)
                      : LinearRelaxation<double>{given[k], given[2 * n + k], given[n + k], given[3 * n + k]};
    if (!given.empty() && out.sound()) {
      // the rule's slopes, rounded to T
      const double m = magnitude(l, u);
      const auto rounded = [&](double s) { return out.mul_up(std::fabs(s) * Unit<T>::kRoundoff + Unit<T>::kTiny, m); };
      relaxation.lower_intercept = out.add_down(relaxation.lower_intercept, -rounded(relaxation.lower_slope));
      relaxation.upper_intercept = out.add_up(relaxation.upper_intercept, rounded(relaxation.upper_slope));
      relaxation.lower_slope = static_cast<double>(static_cast<T>(relaxation.lower_slope));
      relaxation.upper_slope = static_cast<double>(static_cast<T>(relaxation.upper_slope));
    }
    if (share > 0) widen(relaxation, deployed_error(layer, state.lower[k], state.upper[k], share), out);
    const double origin = origin_of(input, k), far = distance(l, u, origin);
    if (below.fused) {
      const Pair pair = affine_pair(below, example, input, step, k);
      costs.store(state, k, relaxation, far, origin, &pair);
    } else {
      costs.store(state, k, relaxation, far, origin, nullptr);
    }
  }
  if (state.stable_but_free) free_slopes(network, i, example, step, options);
}

template <class T>
void prepare_maximum(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const LayerState<T>& input = example[layer.inputs[0]];
  LayerState<T>& state = example[i];
  const auto n = static_cast<size_t>(layer.shape.size());
  const auto width = static_cast<size_t>(layer.window);
  resize_relaxation(state, n);
  state.picked.resize(n);
  const RelaxationErrors<T> costs(costs_of(network, network.layer(layer.inputs[0]), input, options));
  for (size_t k = 0; k < n; ++k) {
    const int64_t* window = layer.windows.data() + k * width;
    const auto lower = [&](int64_t j) { return input.lower[static_cast<size_t>(j)]; };
    const auto upper = [&](int64_t j) { return input.upper[static_cast<size_t>(j)]; };
    int64_t best = -1;
    for (size_t j = 0; j < width; ++j)
      if (window[j] >= 0 && (best < 0 || lower(window[j]) > lower(best))) best = window[j];
    bool largest = true;
    for (size_t j = 0; j < width; ++j)
      if (window[j] >= 0 && window[j] != best && upper(window[j]) > lower(best)) largest = false;
    // Any element of the window is a lower bound; it is the maximum if no other can exceed it.
    const LinearRelaxation<double> relaxation{1, largest ? 1.0 : 0.0, 0, largest ? 0 : state.upper[k]};
    state.picked[k] = best;
    const double origin = origin_of(input, static_cast<size_t>(best));
    costs.store(state, k, relaxation, distance(lower(best), upper(best), origin), origin, nullptr);
  }
}

template <class T>
void prepare_product(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const LayerState<T>&x = example[layer.inputs[0]], &y = example[layer.inputs[1]];
  LayerState<T>& state = example[i];
  const Outward out(options.sound);
  const auto n = static_cast<size_t>(layer.shape.size());
  resize_relaxation(state, n);
  state.second_lower_slope.resize(n), state.second_upper_slope.resize(n);
  const double share = out.gamma(layer.roundings, options.deployed);
  std::vector<double> error(share > 0 ? n : 0);
  for (size_t k = 0; k < error.size(); ++k) error[k] = deployed_product_error(x, y, k, share, out);
  const bool real = options.deployed == 0;
  const ProductStep step{.x_origin = origins_of(x),
                         .y_origin = origins_of(y),
                         .origin = origins_of(state),
                         .error = error.empty() ? nullptr : error.data(),
                         .lower = state.lower.data(),
                         .upper = state.upper.data(),
                         .known_low = real ? layer.known_low : -INFINITY,
                         .known_high = real ? layer.known_high : INFINITY,
                         .x = costs_of(network, network.layer(layer.inputs[0]), x, options),
                         .y = costs_of(network, network.layer(layer.inputs[1]), y, options)};
  relaxation_kernels<T>().product_relaxation(
      {x.lower.data(), x.upper.data(), y.lower.data(), y.upper.data()}, static_cast<int64_t>(n), step,
      state.lower_slope.data(), state.second_lower_slope.data(), state.lower_intercept.data(), state.upper_slope.data(),
      state.second_upper_slope.data(), state.upper_intercept.data(), state.alive.data());
  std::fill(state.needed.begin(), state.needed.end(), uint8_t{1});
}

}  // namespace

template <class T>
void prepare(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const Outward out(options.sound);
  // An underflowing product loses up to the smallest number, times its later factors.
  const auto count_underflow = [&](int64_t from, double operations) {
    const LayerState<T>& input = example[from];
    // Ranges are freed after their last reader: a missing range must not make this bound smaller.
    if (std::cmp_not_equal(input.lower.size(), network.layer(from).shape.size())) example.underflow_error = INFINITY;
    const double total =
        relaxation_kernels<T>().total_distance(input.lower.data(), input.upper.data(), origins_of(input),
                                               static_cast<int64_t>(input.lower.size())) +
        static_cast<double>(input.lower.size());
    example.underflow_error = out.add_up(example.underflow_error, 2 * total * out.underflow<T>(operations));
  };
  if (i == 0) prepare_input(network, example, options);
  // Only rows that start at a fused layer read its factors.
  const bool starts = options.refines || options.norm != Norm::kLinf;
  if (layer.affine() && (!layer.fused || starts)) {
    LayerState<T>& state = example[i];
    const auto n = static_cast<size_t>(layer.shape.size());
    const StepCosts costs = costs_of(network, layer, state, options);
    state.low.resize(n), state.high.resize(n);
    const std::vector<double> known = known_errors(layer, example, state, costs);
    relaxation_kernels<T>().affine_pairs(state.sum.data(), offsets(layer, state).data(),
                                         known.empty() ? nullptr : known.data(), static_cast<int64_t>(n), costs,
                                         state.low.data(), state.high.data());
  } else if (layer.kind == Kind::kActivation) {
    prepare_activation(network, i, example, options);
    const std::vector<uint8_t>& needed = example[i].needed;
    example[i].all_needed = std::find(needed.begin(), needed.end(), uint8_t{0}) == needed.end();
  } else if (layer.kind == Kind::kMaxPool) {
    prepare_maximum(network, i, example, options);
  } else if (layer.kind == Kind::kProduct) {
    prepare_product(network, i, example, options);
  }
  // A library may treat subnormal operands and results as zero.
  const bool flushes = options.library && layer.products();
  if (layer.fused || flushes) {
    // A coefficient that underflows above a fused layer also loses its share of that layer's bias; one that a library
    // flushes loses all that it is multiplied by.
    const std::vector<double>& sum = example[i].sum;
    const double total =
        std::cmp_equal(sum.size(), layer.shape.size())
            ? relaxation_kernels<T>().total(sum.data(), offsets(layer, example[i]).data(), layer.shape.size())
            : INFINITY;
    const double lost = out.underflow<T>(8) + (flushes && options.sound ? 2 * kSmallestNormal<T> : 0);
    example.underflow_error = out.add_up(example.underflow_error, 2 * total * lost);
  }
  const double flushed = flushes ? 2 * kSmallestNormal<T> / Unit<T>::kTiny : 1;
  for (const int64_t from : layer.inputs)
    count_underflow(from, (layer.products() ? static_cast<double>(layer.fan_in() + 8) : 8.0) * flushed);
}

template void prepare<float>(const BoundNetwork<float>&, int64_t, ExampleState<float>&, const BoundOptions&);
template void prepare<double>(const BoundNetwork<double>&, int64_t, ExampleState<double>&, const BoundOptions&);

}  // namespace pyrobust::cpu

// What the backward pass multiplies coefficients with, of one layer and one example: every error that a step can make is
// worked out here, once, and taken from the intercepts, so that the loops over rows are plain arithmetic.
//
// A coefficient a of a neuron z in [l, u], m the largest |z|, costs
//   - at a sum of products: the computed coefficients are taken as exact, which is wrong by at most gamma sum |a w|; times
//     the inputs that is |a| gamma sum |w| m. The same holds for weights, biases and deployed sums that are not exact;
//   - at a function: a times a slope is rounded, which is wrong by |a| u |slope| m;
//   - where several consumers add to one coefficient: a rounding for each addition.
#include <algorithm>

#include "cpu/bound_state.h"

namespace pyrobust::cpu {
namespace {

// What a coefficient is multiplied with at least: low where it is positive, high where it is negative.
struct Pair {
  double low, high;
};

// The bias less and plus the error at neuron k of an affine layer.
template <class T>
class AffineError {
 public:
  AffineError(const BoundNetwork<T>& network, const Layer<T>& layer, const ExampleState<T>& example,
              const LayerState<T>& state, const BoundOptions& options)
      : layer_(layer), state_(state), example_(example), out_(options.sound) {
    if (!out_.sound()) return;
    const int64_t adds = network.input_adds(layer);
    int64_t depth = adds;
    if (layer.kind == Kind::kLinear || layer.kind == Kind::kConv) depth = network.depth(layer);
    if (layer.kind == Kind::kScale) depth = adds + 1;
    share_ = out_.template gamma<T>(depth) + layer.weight_error;
    const bool products = layer.kind == Kind::kLinear || layer.kind == Kind::kConv;
    deployed_ = out_.gamma(products ? layer.forward[0].taps + 4 : layer.roundings, options.deployed);
  }

  Pair operator()(size_t k) const {
    double bias = 0, known = 0;  // the bias, and how well
    if (layer_.kind == Kind::kScale) {
      const LayerState<T>& input = example_[layer_.inputs[0]];
      bias = layer_.shift[k];
      known = out_.add_up(layer_.shift_error[k],
                          out_.mul_up(layer_.scale_error[k], magnitude(input.lower[k], input.upper[k])));
    } else if (!layer_.bias.empty()) {
      bias = layer_.bias[k / static_cast<size_t>(layer_.shape.plane())];
      known = layer_.bias_error * std::fabs(bias);
    }
    if (!out_.sound()) return {bias, bias};
    double error = out_.add_up(out_.mul_up(share_, state_.sum[k]), known);
    error = out_.add_up(error, out_.mul_up(deployed_, state_.sum[k] + std::fabs(bias) + kFlushed));
    return {out_.add_down(bias, -error), out_.add_up(bias, error)};
  }

 private:
  const Layer<T>& layer_;
  const LayerState<T>& state_;
  const ExampleState<T>& example_;
  Outward out_;
  double share_ = 0, deployed_ = 0;
};

template <class T>
void store_pair(const Outward& out, double share, Pair pair, T& low, T& high) {
  low = out.down_to<T>(out.add_down(pair.low, -out.mul_up(share, std::fabs(pair.low))));
  high = out.up_to<T>(out.add_up(pair.high, out.mul_up(share, std::fabs(pair.high))));
}

template <class T>
void prepare_input(const BoundNetwork<T>& network, ExampleState<T>& example, const BoundOptions& options) {
  const Outward out(options.sound);
  const double share = dot_error(network, out);
  LayerState<T>& state = example[0];
  const size_t n = state.lower.size();
  state.low.resize(n), state.high.resize(n);
  for (size_t k = 0; k < n; ++k) store_pair(out, share, {state.lower[k], state.upper[k]}, state.low[k], state.high[k]);
}

template <class T>
Lines<double> lines_of(const Layer<T>& layer, double l, double u, const Outward& out) {
  const Lines<T> lines = layer.function == Function::kClamp ? clamp_lines<T>(l, u, layer.low, layer.high, out)
                                                            : leaky_relu_lines<T>(l, u, layer.slope, out);
  return {static_cast<double>(lines.lower_slope), static_cast<double>(lines.upper_slope), lines.lower_intercept,
          lines.upper_intercept};
}

// Intercepts lowered and raised by what the step costs, and by what the layer below costs where it is fused.
template <class T>
class LineCosts {
 public:
  LineCosts(const BoundNetwork<T>& network, const Layer<T>& layer, const BoundOptions& options)
      : out_(options.sound), share_(dot_error(network, out_)), adds_(network.input_adds(layer)) {}

  void store(LayerState<T>& state, size_t k, Lines<double> lines, double m, const Pair* below) const {
    Pair pair{out_.add_down(lines.lower_intercept, -rounding(lines.lower_slope, m)),
              out_.add_up(lines.upper_intercept, rounding(lines.upper_slope, m))};
    if (below != nullptr) {
      // slope b - |slope| error, and b times the rounding of the coefficient
      const double s = lines.lower_slope, t = lines.upper_slope;
      const double size = std::fmax(std::fabs(below->low), std::fabs(below->high));
      pair.low = out_.add_down(pair.low, out_.mul_down(s, s >= 0 ? below->low : below->high));
      pair.low = out_.add_down(pair.low, -rounding(s, size));
      pair.high = out_.add_up(pair.high, out_.mul_up(t, t >= 0 ? below->high : below->low));
      pair.high = out_.add_up(pair.high, rounding(t, size));
    }
    state.lower_slope[k] = static_cast<T>(lines.lower_slope);
    state.upper_slope[k] = static_cast<T>(lines.upper_slope);
    store_pair(out_, share_, pair, state.lower_intercept[k], state.upper_intercept[k]);
    state.alive[k] = lines.lower_slope != 0 || lines.upper_slope != 0;
  }

 private:
  // |slope| m times the roundings: none where the slope is 0 or 1 and nobody adds.
  double rounding(double slope, double m) const {
    if (!out_.sound() || slope == 0) return 0;
    const double gamma = out_.template gamma<T>(adds_ + (std::fabs(slope) == 1 ? 0 : 1));
    return gamma == 0 ? 0 : out_.mul_up(gamma, out_.mul_up(std::fabs(slope), m));
  }

  Outward out_;
  double share_;
  int64_t adds_;
};

template <class T>
void resize_lines(LayerState<T>& state, size_t n) {
  for (auto* part : {&state.lower_slope, &state.upper_slope, &state.lower_intercept, &state.upper_intercept})
    part->resize(n);
  state.alive.resize(n);
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
  resize_lines(state, n);
  const LineCosts<T> costs(network, layer, options);
  const AffineError<T> affine(network, below, example, input, options);
  std::vector<double> given;
  if (layer.function == Function::kRule) {
    given.resize(6 * n);
    layer.rule(static_cast<int64_t>(n), input.lower.data(), input.upper.data(), given.data(), given.data() + n,
               given.data() + 2 * n, given.data() + 3 * n, given.data() + 4 * n, given.data() + 5 * n);
  }
  const double share = out.gamma(layer.roundings, options.deployed);
  for (size_t k = 0; k < n; ++k) {
    const double l = input.lower[k], u = input.upper[k];
    Lines<double> lines = given.empty() ? lines_of(layer, l, u, out)
                                        : Lines<double>{given[k], given[2 * n + k], given[n + k], given[3 * n + k]};
    if (!given.empty() && out.sound()) {
      // the rule's slopes, rounded to T
      const double u1 = Unit<T>::kRoundoff * magnitude(l, u);
      lines.lower_intercept = out.add_down(lines.lower_intercept, -out.mul_up(u1, std::fabs(lines.lower_slope)));
      lines.upper_intercept = out.add_up(lines.upper_intercept, out.mul_up(u1, std::fabs(lines.upper_slope)));
      lines.lower_slope = static_cast<double>(static_cast<T>(lines.lower_slope));
      lines.upper_slope = static_cast<double>(static_cast<T>(lines.upper_slope));
    }
    if (share > 0 && layer.function == Function::kLeakyRelu && layer.slope > 0 && l < 0) {
      const double error = out.mul_up(share, out.mul_up(layer.slope, -l));
      lines.lower_intercept = out.add_down(lines.lower_intercept, -error);
      lines.upper_intercept = out.add_up(lines.upper_intercept, error);
    }
    if (below.fused) {
      const Pair pair = affine(k);
      costs.store(state, k, lines, magnitude(l, u), &pair);
    } else {
      costs.store(state, k, lines, magnitude(l, u), nullptr);
    }
  }
}

template <class T>
void prepare_maximum(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const LayerState<T>& input = example[layer.inputs[0]];
  LayerState<T>& state = example[i];
  const auto n = static_cast<size_t>(layer.shape.size());
  const auto width = static_cast<size_t>(layer.window);
  resize_lines(state, n);
  state.picked.resize(n);
  const LineCosts<T> costs(network, layer, options);
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
    // Any element of the window is a lower line; it is the maximum where no other can be above it.
    const Lines<double> lines{1, largest ? 1.0 : 0.0, 0, largest ? 0 : state.upper[k]};
    state.picked[k] = best;
    costs.store(state, k, lines, magnitude(lower(best), upper(best)), nullptr);
  }
}

}  // namespace

template <class T>
void prepare(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const Outward out(options.sound);
  // Below the smallest normal number a product may lose up to the smallest number, times what it is multiplied with.
  const auto count_underflow = [&](int64_t from, double operations) {
    const LayerState<T>& input = example[from];
    double total = 0;
    for (size_t k = 0; k < input.lower.size(); ++k) total += magnitude(input.lower[k], input.upper[k]) + 1;
    example.slack = out.add_up(example.slack, 2 * total * out.underflow<T>(operations));
  };
  if (i == 0) prepare_input(network, example, options);
  if (layer.affine()) {
    LayerState<T>& state = example[i];
    const auto n = static_cast<size_t>(layer.shape.size());
    const double share = dot_error(network, out);
    const AffineError<T> affine(network, layer, example, state, options);
    state.low.resize(n), state.high.resize(n);
    for (size_t k = 0; k < n; ++k) store_pair(out, share, affine(k), state.low[k], state.high[k]);
  } else if (layer.kind == Kind::kActivation) {
    prepare_activation(network, i, example, options);
  } else if (layer.kind == Kind::kMaxPool) {
    prepare_maximum(network, i, example, options);
  }
  const bool products = layer.kind == Kind::kLinear || layer.kind == Kind::kConv;
  for (const int64_t from : layer.inputs) count_underflow(from, static_cast<double>(products ? layer.taps() + 8 : 8));
}

template void prepare<float>(const BoundNetwork<float>&, int64_t, ExampleState<float>&, const BoundOptions&);
template void prepare<double>(const BoundNetwork<double>&, int64_t, ExampleState<double>&, const BoundOptions&);

}  // namespace pyrobust::cpu

#include "bounds/engine/batched_ibp.h"

#include <algorithm>
#include <cmath>

#include "bounds/engine/forward_products.h"
#include "bounds/engine/kernels.h"

namespace pyrobust::cpu {
namespace {

// [neuron][lane] of every layer, [neuron] of a single example: z is in center -+ radius.
template <class T>
struct BatchRanges {
  std::vector<T> center, radius;
};

// Kept by each thread, which works on one group at a time: fresh allocations would cost more than the work.
template <class T>
std::vector<BatchRanges<T>>& ranges() {
  thread_local std::vector<BatchRanges<T>> kept;
  return kept;
}
template <class T>
int64_t lanes_of(int64_t count) {
  return count == 1 ? 1 : kLanes<T>;
}
// Of layer i with n neurons, whole vectors.
template <class T>
BatchRanges<T>& ranges_of(int64_t i, int64_t n, int64_t lanes) {
  if (ranges<T>().size() <= static_cast<size_t>(i)) ranges<T>().resize(static_cast<size_t>(i) + 1);
  BatchRanges<T>& found = ranges<T>()[static_cast<size_t>(i)];
  const int64_t vectors = (n * lanes + kLanes<T> - 1) / kLanes<T>;
  found.center.resize(static_cast<size_t>(vectors * kLanes<T>)), found.radius.resize(found.center.size());
  return found;
}

}  // namespace

template <class T>
LaneIntervals<T>::LaneIntervals(const BoundNetwork<T>& network, const std::vector<uint8_t>& reached,
                                const BoundOptions& options)
    : network_(network),
      options_(options),
      does_(static_cast<size_t>(network.size()), 0),
      asked_(static_cast<size_t>(network.size()), 0) {
  const auto relu = [](const Layer<T>& layer) {
    return layer.kind == Kind::kActivation && layer.function == Function::kLeakyRelu && layer.slope == 0;
  };
  // A deployed pass may overflow at an intermediate layer; backward passes for neurons, and balls, need the ranges of
  // single examples.
  const bool plain = !options.to_input && options.norm == Norm::kLinf && options.deployed == 0;
  for (int64_t i = 1; i < network.size() && plain; ++i) {
    const Layer<T>& layer = network.layer(i);
    const int64_t input = layer.inputs[0];
    // A backward pass that reaches a ReLU, the output alone, needs the ranges of single examples, too.
    if (relu(layer) && reached[static_cast<size_t>(i)] == 0) {
      // fused with the products below, which nothing else consumes
      const Layer<T>& products = network.layer(input);
      if ((products.kind != Kind::kLinear && products.kind != Kind::kConv) ||
          reached[static_cast<size_t>(input)] != 0 || products.consumers != 1)
        continue;
      const int64_t from = products.inputs[0];
      if (from == 0 || does(from)) does_[static_cast<size_t>(i)] = does_[static_cast<size_t>(input)] = 1;
    }
  }
  for (int64_t i = 1; i < network.size(); ++i)
    for (const int64_t input : network.layer(i).inputs)
      if (!does(i)) asked_[static_cast<size_t>(input)] = 1;
}

template <class T>
void LaneIntervals<T>::begin(const InputSet& inputs, int64_t first, int64_t count) const {
  const int64_t n = network_.layer(0).shape.size();
  BatchRanges<T>& input = ranges_of<T>(0, n, lanes_of<T>(count));
  if (1 < count && count < kLanes<T>) {
    std::fill(input.center.begin(), input.center.end(), T(0));
    std::fill(input.radius.begin(), input.radius.end(), T(0));
  }
  thread_local std::vector<double> lower, upper;
  for (int64_t e = 0; e < count; ++e) {
    inputs.lower.read(first + e, n, lower), inputs.upper.read(first + e, n, upper);
    engine_kernels<T>().spread(lower.data(), upper.data(), n, lanes_of<T>(count), 0, options_.sound,
                               input.center.data() + e, input.radius.data() + e, nullptr);
  }
}

template <class T>
void LaneIntervals<T>::run(int64_t i, ExampleState<T>* const* group, int64_t count) const {
  if (network_.layer(i).kind != Kind::kActivation) return;  // computed with its ReLU
  if (count == 1)
    multiply_one(i);
  else
    multiply(i);
  if (asked(i)) hand_out(i, group, count);
}

// ReLU i after a layer of products. With z = c + d, |d| <= r, w z differs from the computed w c by at most
//   sum |w| r + s sum |w| m,  m >= |z| and |c|, s the share of gamma and of weights that are not exact,
// and as |c| + r is such an m, that is at most sum |w| (r + s (|c| + r)): two sums are enough.
template <class T>
void LaneIntervals<T>::multiply(int64_t i) const {
  const Layer<T>& layer = network_.layer(network_.layer(i).inputs[0]);
  const Shape& from = network_.layer(layer.inputs[0]).shape;
  const RangeCosts costs = range_costs(layer, options_);
  BatchRanges<T>& to = ranges_of<T>(i, layer.shape.size(), kLanes<T>);
  const BatchRanges<T>& input = ranges_of<T>(layer.inputs[0], from.size(), kLanes<T>);
  thread_local std::vector<T> radius;
  radius.resize(input.radius.size());
  engine_kernels<T>().enlarge(input.center.data(), input.radius.data(), from.size() * kLanes<T>, costs.sum, costs.sound,
                              radius.data());
  T center_sums[kPanel * kLanes<T>], radius_sums[kPanel * kLanes<T>];
  for_panels(layer, from, [&](const ForwardPanel& panel) {
    panel.multiply(input.center.data(), layer.forward, center_sums);
    panel.multiply(radius.data(), layer.forward_abs, radius_sums);
    for (int64_t j = 0; j < panel.width; ++j) {
      const int64_t k = panel.first + j * panel.apart;
      engine_kernels<T>().relu_range(center_sums + j * kLanes<T>, radius_sums + j * kLanes<T>,
                                     layer.bias[static_cast<size_t>(k)], costs, to.center.data() + k * kLanes<T>,
                                     to.radius.data() + k * kLanes<T>);
    }
  });
}

template <class T>
void LaneIntervals<T>::multiply_one(int64_t i) const {
  const Layer<T>& layer = network_.layer(network_.layer(i).inputs[0]);
  const Shape& from = network_.layer(layer.inputs[0]).shape;
  const RangeCosts costs = range_costs(layer, options_);
  const int64_t n = layer.shape.size();
  BatchRanges<T>& to = ranges_of<T>(i, n, 1);
  const BatchRanges<T>& input = ranges_of<T>(layer.inputs[0], from.size(), 1);
  thread_local std::vector<T> radius, center_sums, radius_sums;
  radius.resize(input.radius.size()), center_sums.resize(static_cast<size_t>(n)),
      radius_sums.resize(center_sums.size());
  engine_kernels<T>().enlarge(input.center.data(), input.radius.data(), from.size(), costs.sum, costs.sound,
                              radius.data());
  pyrobust::cpu::multiply_one<T>(layer, from,
                                 {{input.center.data(), layer.forward, center_sums.data()},
                                  {radius.data(), layer.forward_abs, radius_sums.data()}});
  engine_kernels<T>().relu_range_one(center_sums.data(), radius_sums.data(), layer.bias.data(), n, costs,
                                     to.center.data(), to.radius.data());
}

template <class T>
void LaneIntervals<T>::hand_out(int64_t i, ExampleState<T>* const* group, int64_t count) const {
  const Outward out(options_.sound);
  const int64_t n = network_.layer(i).shape.size();
  const BatchRanges<T>& from = ranges_of<T>(i, n, lanes_of<T>(count));
  for (int64_t e = 0; e < count; ++e) {
    LayerState<T>& state = (*group[e])[i];
    state.lower.resize(static_cast<size_t>(n)), state.upper.resize(static_cast<size_t>(n));
    for (int64_t k = 0; k < n; ++k) {
      const auto at = static_cast<size_t>(k * lanes_of<T>(count) + e), to = static_cast<size_t>(k);
      const double c = from.center[at], r = from.radius[at];
      const double lower = std::fmax(out.add_down(c, -r), 0), upper = out.add_up(c, r);
      // Nothing is known where anything overflowed.
      const bool known = lower <= upper;
      state.lower[to] = known ? lower : 0, state.upper[to] = known ? upper : INFINITY;
    }
  }
}

template class LaneIntervals<float>;
template class LaneIntervals<double>;

}  // namespace pyrobust::cpu

// A network for bound propagation on the CPU: a list of layers, with weights packed for the inner loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "bounds/engine/conv_cells.h"
#include "bounds/engine/packed_weights.h"
#include "bounds/outward_arithmetic.h"
#include "bounds/sound_relaxation.h"

namespace pyrobust::cpu {

// Number of rows of a tile, or examples of a group, that the inner loops process at once.
template <class T>
inline constexpr int64_t kLanes = sizeof(T) == 4 ? 16 : 8;
// Sums of products: runs of kRun products are summed in registers, and so are the runs of a block of kBlock products;
// the blocks are added in memory.
inline constexpr int64_t kRun = 8, kBlock = 64;

inline int64_t blocks_of(int64_t products) { return (products + kBlock - 1) / kBlock; }
// Number of roundings of a product in a sum of n until the sum of its block is complete: at most kRun in its run, and
// one for each further run. If few outputs share the registers, a run is split into up to four sums, of at most kRun
// products except for a remainder of two: at most one rounding more.
inline int64_t roundings_in_block(int64_t n) { return std::min(n, kRun) + (std::min(n, kBlock) + kRun - 1) / kRun; }

enum class Kind { kInput, kLinear, kConv, kScale, kGather, kSum, kActivation, kMaxPool, kProduct };
// The functions with code of their own; every switch over them lists all, so that a new one cannot be mistaken for
// another.
enum class Function { kLeakyRelu, kPrelu, kClamp, kRule };

// A tensor of one example, flat or [channels, height, width].
struct Shape {
  int64_t channels = 0, height = 1, width = 1;
  int64_t size() const { return channels * height * width; }
  int64_t plane() const { return height * width; }
  bool operator==(const Shape&) const = default;
};

// Range, and linear relaxation, for n numbers between l and u, of an activation that has no case of its own here.
using RangeRule = std::function<void(int64_t n, const double* l, const double* u, double* lower, double* upper)>;
using RelaxationRule =
    std::function<void(int64_t n, const double* l, const double* u, double* lower_slope, double* lower_intercept,
                       double* upper_slope, double* upper_intercept, double* lower, double* upper)>;

// The analysis of the graph by pyrobust/bounds/graph/analysis.py; one element per layer.
struct GraphAnalysis {
  std::vector<int64_t> consumers;             // number of reads by later layers
  std::vector<uint8_t> fused;                 // see Layer
  std::vector<uint8_t> affine_in_input;       // see Layer
  std::vector<uint8_t> ends_affine_part;      // see Layer
  std::vector<std::vector<int64_t>> repeats;  // for each input, the largest number of reads of one element
};

template <class T>
struct Layer {
  Kind kind = Kind::kInput;
  Shape shape;
  std::vector<int64_t> inputs;  // indices of earlier layers

  // linear and conv: weight [outputs, inputs] or [outputs, channels / groups, kernel_h, kernel_w], and the same packed
  // for the kernels, one set of panels for each group
  ConvSizes conv;
  std::vector<T> weight;
  int64_t forward_fan_in = 0;
  std::vector<Panels<T>> forward, forward_abs;  // abs: weights |w|
  Panels<T> backward;                           // linear
  std::vector<Cells<T>> cells;                  // conv, backward
  std::vector<double> bias;                     // bias of every neuron; also zeros for gather and sum
  double weight_size = 0, bias_size = 0;        // upper bounds of sum |w| and |bias| of any neuron
  double bias_error = 0;                        // the largest absolute error
  double weight_error = 0;                      // the exact weight is w (1 + e), |e| <= weight_error

  // scale z + shift, whose exact values are within these errors
  std::vector<T> scale;
  std::vector<double> shift, scale_error, shift_error;
  // by how much the terms that a deployed pass adds up to the shift exceed it; empty for none
  std::vector<double> shift_excess;

  std::vector<int64_t> index;  // gather: into the concatenated inputs; -1 is zero
  std::vector<double> signs;   // sum

  Function function = Function::kLeakyRelu;
  double slope = 0, low = -INFINITY, high = INFINITY;
  std::vector<double> least_slope, most_slope;  // prelu: for every neuron, an interval around its slope below zero
  RangeRule range_rule;
  RelaxationRule relaxation_rule;
  bool partial = false;  // has no value for some numbers: there, nothing is known of the example

  // maxpool: [size][width], -1 for none; a gather of sorted pairs: [size][2] of the last input
  std::vector<int64_t> windows;
  int64_t window = 0;
  std::vector<int64_t> larger;  // for such a gather: whether each element is the larger of its pair

  int64_t roundings = 0;  // roundings of the deployed forward pass, for semantics = "float32"

  // Bounds of its values whatever the input, in real arithmetic.
  double known_low = -INFINITY, known_high = INFINITY;
  // For each neuron, the first one that equals it or its negative, and the sign; empty where no two are related.
  std::vector<int64_t> first;
  std::vector<double> sign;

  // Given to BoundNetwork::finish, or derived from it.
  int64_t consumers = 0;          // layers that read this one
  int64_t adds = 0;               // additions into memory of its coefficients, where several consumers write them
  bool fused = false;             // its bias and error are charged to the activation that is its only consumer
  bool affine_in_input = false;   // whether it is an affine function of the network's input
  bool ends_affine_part = false;  // whether it is, and the output or read by a layer that is not
  // An affine layer with one sum of all values of a function, which nothing else reads, such as global average pooling:
  // interval ranges lose nothing there.
  bool separate = false;

  bool products() const { return kind == Kind::kLinear || kind == Kind::kConv; }
  // Number of products in the sum of a coefficient of the input.
  int64_t fan_in() const {
    return kind == Kind::kLinear ? shape.size() : conv.kernel_h * conv.kernel_w * shape.channels / conv.groups;
  }
  // Multiplications of one example.
  int64_t multiplications() const { return shape.size() * forward_fan_in; }
  bool affine() const { return kind != Kind::kInput && !nonlinear(); }
  bool nonlinear() const { return kind == Kind::kActivation || kind == Kind::kMaxPool || kind == Kind::kProduct; }
  // Whether bounds by intervals are concretized on its ranges.
  bool stops_intervals() const { return nonlinear() || separate; }
  // Whether its interval ranges may be needed because a backward pass knows less, for example not that a sum is
  // positive.
  bool needs_intervals() const {
    return kind == Kind::kProduct || partial || known_low > -INFINITY || known_high < INFINITY;
  }
};

template <class T>
class BoundNetwork {
 public:
  // Each returns the number of the new layer. Arguments are those of Layer, checked by the binding.
  int64_t add(Layer<T> layer);
  // weight [outputs, inputs]
  int64_t add_linear(int64_t input, int64_t outputs, const T* weight, Layer<T> layer);
  // weight [outputs, channels / groups, kernel_h, kernel_w]
  int64_t add_conv(int64_t input, const T* weight, Layer<T> layer);
  // Sets what is known of the values of layer i, and which of its neurons are equal or opposite.
  void know(int64_t i, double low, double high);
  void relate(int64_t i, std::vector<int64_t> first, std::vector<double> sign);
  // Takes the analysis of the whole graph, whose last layer is the output; throws if it does not fit the layers.
  void finish(const GraphAnalysis& analysis);
  // Packs the weights of layer i, or of all, for the kernels at the first call, from any thread: if a library computes
  // a layer's products, the three further copies are never needed.
  void pack(int64_t i) const;
  void pack() const {
    for (int64_t i = 0; i < size(); ++i) pack(i);
  }

  const std::vector<Layer<T>>& layers() const { return layers_; }
  const Layer<T>& layer(int64_t i) const { return layers_[static_cast<size_t>(i)]; }
  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  int64_t output() const { return size() - 1; }
  int64_t neurons() const { return neurons_; }
  // Whether bounds of backward passes are always intersected with those of intervals.
  bool needs_intervals() const { return needs_intervals_; }

  // Number of roundings of a product a w in the backward step at a layer until it is in the input's memory. library:
  // also in a library's sums, in any order.
  int64_t depth(const Layer<T>& layer, bool library) const {
    const int64_t fan_in = layer.fan_in(), adds = input_adds(layer);
    const int64_t blocked = roundings_in_block(fan_in) + std::max(blocks_of(fan_in), adds);
    return library ? std::max(blocked, fan_in + 1 + adds) : blocked;
  }
  int64_t input_adds(const Layer<T>& layer) const {
    int64_t adds = 0;
    for (const int64_t input : layer.inputs) adds = std::max(adds, this->layer(input).adds);
    return adds;
  }

 private:
  void pack_linear(Layer<T>& layer) const;
  void pack_conv(Layer<T>& layer) const;

  mutable std::vector<Layer<T>> layers_;
  mutable std::vector<std::once_flag> packed_;  // by layer
  int64_t neurons_ = 0;
  bool needs_intervals_ = false;
};

extern template class BoundNetwork<float>;
extern template class BoundNetwork<double>;

}  // namespace pyrobust::cpu

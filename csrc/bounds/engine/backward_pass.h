// The backward pass (CROWN; Zhang et al., 2018): carries rows of coefficients of one example from a layer to the input.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bounds/engine/example_state.h"

namespace pyrobust::cpu {

// Up to kLanes linear functions of one layer's neurons, `count` of them in use, whose lower bounds are wanted.
template <class T>
struct Tile {
  int64_t example = 0, layer = 0, count = 0;
  // Each SIMD lane is sign[lane] times one neuron ...
  int64_t neuron[kLanes<T>] = {};
  // ... or, where rows is given, times row neuron[lane] of rows [*][size of the layer] ...
  const T* rows = nullptr;
  // ... or, where label >= 0, times neuron label less another one, number neuron[lane] of the others.
  int64_t label = -1;
  T sign[kLanes<T>] = {};
  bool paired = false;  // whether lanes 2k and 2k + 1 are a neuron and its negative, near neurons in a tile
};

template <class T>
class BackwardPass {
 public:
  // stop: concretize at the first non-affine layers, on their ranges. single: no two consecutive tiles belong to the
  // same example, so that no list of products is worth keeping.
  BackwardPass(const BoundNetwork<T>& network, const BoundOptions& options, bool stop, bool single);
  ~BackwardPass();

  // Writes to bounds[lane] a lower bound of the function, or -inf where none could be proved; and to intervals[lane],
  // unless that is null, the bound of a pass that stops, which a network with a `sole_stop` gives on the way.
  void run(const Tile<T>& tile, const ExampleState<T>& example, double* bounds, double* intervals = nullptr);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

extern template class BackwardPass<float>;
extern template class BackwardPass<double>;

}  // namespace pyrobust::cpu

// The backward pass (CROWN; Zhang et al., 2018): rows of coefficients of one example walk from a layer to the input.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bounds/engine/example_state.h"

namespace pyrobust::cpu {

// kLanes linear functions of one layer's neurons, of which `count` are meant: lower bounds are asked for.
template <class T>
struct Tile {
  int64_t example = 0, layer = 0, count = 0;
  // sign[lane] times one neuron each ...
  int64_t neuron[kLanes<T>] = {};
  // ... or, where given, times row neuron[lane] of rows [*][size of the layer].
  const T* rows = nullptr;
  T sign[kLanes<T>] = {};
};

template <class T>
class CrownWalk {
 public:
  // With stop, rows end at the first layers that are not affine, on their ranges. With single, no two tiles in turn are
  // of one example, so that no list of products is worth keeping.
  CrownWalk(const BoundNetwork<T>& network, const BoundOptions& options, bool stop, bool single);
  ~CrownWalk();

  // bounds[lane]: at most the function's smallest value, or -inf where nothing could be proved.
  void run(const Tile<T>& tile, const ExampleState<T>& example, double* bounds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

extern template class CrownWalk<float>;
extern template class CrownWalk<double>;

}  // namespace pyrobust::cpu

// IBP of layers that no backward pass reaches: the ranges of an example group stay in batch-last layout from one ReLU
// to the next, as center and radius in T, in one pass for a layer of products and its ReLU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bounds/engine/example_state.h"

namespace pyrobust::cpu {

template <class T>
class LaneIntervals {
 public:
  // reached: [layers of the network], whether a backward pass can reach a layer.
  LaneIntervals(const BoundNetwork<T>& network, const std::vector<uint8_t>& reached, const BoundOptions& options);

  // Whether layer i is computed here: then its range, and that of its function, are in batch-last layout.
  bool does(int64_t i) const { return does_[static_cast<size_t>(i)] != 0; }
  bool does_any() const { return std::find(does_.begin(), does_.end(), 1) != does_.end(); }
  // Whether the range of the input, or of a ReLU computed here, is also needed for each example.
  bool asked(int64_t i) const { return asked_[static_cast<size_t>(i)] != 0; }

  // Loads the inputs of `count` examples from `first` on.
  void begin(const InputSet& inputs, int64_t first, int64_t count) const;
  // Computes the range of layer i, and stores it for each example where it is needed.
  void run(int64_t i, ExampleState<T>* const* group, int64_t count) const;

 private:
  void multiply(int64_t i) const;
  void multiply_one(int64_t i) const;
  void hand_out(int64_t i, ExampleState<T>* const* group, int64_t count) const;

  const BoundNetwork<T>& network_;
  BoundOptions options_;
  std::vector<uint8_t> does_, asked_;
};

extern template class LaneIntervals<float>;
extern template class LaneIntervals<double>;

}  // namespace pyrobust::cpu

// What the order of the layers decides before any example comes: where backward passes go, and until when ranges are read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bounds/engine/example_state.h"

namespace pyrobust::cpu {

template <class T>
bool affine_in_input(const BoundNetwork<T>& network, int64_t i) {
  const Layer<T>& layer = network.layer(i);
  if (layer.kind == Kind::kInput) return true;
  if (!layer.affine()) return false;
  return std::all_of(layer.inputs.begin(), layer.inputs.end(), [&](int64_t j) { return affine_in_input(network, j); });
}

// Whether a layer is affine in the input, and somebody takes it who is not.
template <class T>
bool ends_affine_part(const BoundNetwork<T>& network, int64_t i) {
  if (i == 0 || !affine_in_input(network, i)) return false;
  bool ends = i == network.output();
  for (int64_t j = i + 1; j < network.size(); ++j)
    for (const int64_t input : network.layer(j).inputs) ends |= input == i && !affine_in_input(network, j);
  return ends;
}

// Layers that a backward pass can come to; without any inside, those between the output and the first that are not
// affine, and for a ball those near the input.
template <class T>
std::vector<uint8_t> list_walked(const BoundNetwork<T>& network, const BoundOptions& options) {
  std::vector<uint8_t> walked(static_cast<size_t>(network.size()), options.method != Method::kIbp);
  walked.back() = 1;
  for (int64_t i = network.output(); i >= 0; --i) {
    if (options.norm != Norm::kLinf && affine_in_input(network, i)) walked[static_cast<size_t>(i)] = 1;
    if (walked[static_cast<size_t>(i)] == 0 || network.layer(i).nonlinear()) continue;
    for (const int64_t input : network.layer(i).inputs)
      if (!network.layer(input).nonlinear()) walked[static_cast<size_t>(input)] = 1;
  }
  return walked;
}

// For each layer, how many numbers it and those behind it take at most to spread a group's inputs.
template <class T>
std::vector<int64_t> list_rooms(const BoundNetwork<T>& network) {
  std::vector<int64_t> rooms(static_cast<size_t>(network.size()), 0);
  int64_t most = 0;
  for (int64_t i = network.output(); i >= 0; --i) {
    const Layer<T>& layer = network.layer(i);
    if (layer.kind == Kind::kLinear || layer.kind == Kind::kConv)
      most = std::max(most, 3 * kLanes<T> * network.layer(layer.inputs[0]).shape.size());
    rooms[static_cast<size_t>(i)] = most;
  }
  return rooms;
}

// Whether layer j reads the range of layer i: of its inputs, and of those of a scale whose errors it pays for.
template <class T>
bool reads(const BoundNetwork<T>& network, int64_t j, int64_t i) {
  const auto& inputs = network.layer(j).inputs;
  return std::any_of(inputs.begin(), inputs.end(), [&](int64_t input) {
    const Layer<T>& layer = network.layer(input);
    return input == i || (layer.fused && layer.kind == Kind::kScale && layer.inputs[0] == i);
  });
}

// For each layer, those whose ranges it is the last to read: backward passes know layers by their lines. Only those of
// IBP read the ranges of the functions that they end on, and at the end that of the output is asked for.
template <class T>
std::vector<std::vector<int64_t>> list_read_last(const BoundNetwork<T>& network, const BoundOptions& options,
                                                 const std::vector<uint8_t>& walked) {
  std::vector<std::vector<int64_t>> read_last(walked.size());
  for (int64_t i = 0; i < network.output(); ++i) {
    int64_t last = network.output();  // where nobody takes it
    bool ended_on = false;
    for (int64_t j = i + 1; j < network.size(); ++j) {
      if (!reads(network, j, i)) continue;
      last = j;
      ended_on |= options.method == Method::kIbp && network.layer(i).nonlinear() && walked[static_cast<size_t>(j)] != 0;
    }
    if (!ended_on) read_last[static_cast<size_t>(last)].push_back(i);
  }
  return read_last;
}

}  // namespace pyrobust::cpu

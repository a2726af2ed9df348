// Schedule of the layers, computed once for a network: which layers backward passes reach, and the last reader of each
// range.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bounds/engine/example_state.h"

namespace pyrobust::cpu {

// Layers that a backward pass can reach: if there are no passes for neurons, the layers between the output and the
// first layers that stop it, and for a ball also layers near the input.
template <class T>
std::vector<uint8_t> list_reached(const BoundNetwork<T>& network, const BoundOptions& options) {
  std::vector<uint8_t> reached(static_cast<size_t>(network.size()), options.to_input);
  reached.back() = 1;
  for (int64_t i = network.output(); i >= 0; --i) {
    if (options.norm != Norm::kLinf && network.layer(i).affine_in_input) reached[static_cast<size_t>(i)] = 1;
    if (reached[static_cast<size_t>(i)] == 0 || network.layer(i).stops_intervals()) continue;
    for (const int64_t input : network.layer(i).inputs)
      if (!network.layer(input).stops_intervals()) reached[static_cast<size_t>(input)] = 1;
  }
  return reached;
}

// Layers of which the output is an affine function, if its interval bounds come from the ranges of the first layers
// that stop the pass.
template <class T>
std::vector<uint8_t> list_affine_in_output(const BoundNetwork<T>& network) {
  std::vector<uint8_t> listed(static_cast<size_t>(network.size()), 0);
  listed.back() = 1;
  for (int64_t i = network.output(); i >= 0; --i) {
    if (listed[static_cast<size_t>(i)] == 0 || network.layer(i).stops_intervals()) continue;
    for (const int64_t input : network.layer(i).inputs)
      if (!network.layer(input).stops_intervals()) listed[static_cast<size_t>(input)] = 1;
  }
  return listed;
}

// The layer on whose range alone bounds of the output by intervals are concretized; -1 if there are several, or if the
// input is one of them.
template <class T>
int64_t sole_stop(const BoundNetwork<T>& network) {
  const std::vector<uint8_t> affine = list_affine_in_output(network);
  int64_t sole = -1;
  if (network.layer(network.output()).stops_intervals()) return sole;
  for (int64_t i = 0; i < network.size(); ++i) {
    if (affine[static_cast<size_t>(i)] == 0) continue;
    if (network.layer(i).kind == Kind::kInput) return -1;
    for (const int64_t input : network.layer(i).inputs) {
      if (!network.layer(input).stops_intervals()) continue;
      if (sole >= 0 && input != sole) return -1;
      sole = input;
    }
  }
  return sole;
}

// For each layer, the largest number of elements that it or a later layer needs to lay out a group's inputs.
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

// Whether layer j reads the range of layer i: one of its inputs, or an input of a fused scale.
template <class T>
bool reads(const BoundNetwork<T>& network, int64_t j, int64_t i) {
  const auto& inputs = network.layer(j).inputs;
  return std::any_of(inputs.begin(), inputs.end(), [&](int64_t input) {
    const Layer<T>& layer = network.layer(input);
    return input == i || (layer.fused && layer.kind == Kind::kScale && layer.inputs[0] == i);
  });
}

// For each layer, the layers whose ranges it is the last to read. Backward passes read linear relaxations, not ranges,
// but passes that stop read the ranges below the layers of `stopping` that stop them; the output's range is read at the
// end.
template <class T>
std::vector<std::vector<int64_t>> list_read_last(const BoundNetwork<T>& network, const std::vector<uint8_t>& stopping) {
  std::vector<std::vector<int64_t>> read_last(stopping.size());
  for (int64_t i = 0; i < network.output(); ++i) {
    int64_t last = network.output();  // the output, if no layer consumes it
    bool ended_on = false;
    for (int64_t j = i + 1; j < network.size(); ++j) {
      if (!reads(network, j, i)) continue;
      last = j;
      ended_on |= network.layer(i).stops_intervals() && stopping[static_cast<size_t>(j)] != 0;
    }
    if (!ended_on) read_last[static_cast<size_t>(last)].push_back(i);
  }
  return read_last;
}

}  // namespace pyrobust::cpu

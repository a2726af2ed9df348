// Selection of the neurons worth a backward pass, and their tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bounds/engine/backward_pass.h"
#include "bounds/engine/example_state.h"

namespace pyrobust::cpu {

// Wants the elements that can be the largest of a window, if more than one can; for ranges before a ReLU-like function.
template <class T>
void want_unstable_windows(const Layer<T>& layer, const Layer<T>* function, const LayerState<T>& state,
                           std::vector<uint8_t>& wanted) {
  const auto value = [&](double z) {
    if (function == nullptr) return z;
    if (function->function == Function::kClamp) return std::clamp(z, function->low, function->high);
    return z < 0 ? function->slope * z : z;
  };
  const auto width = static_cast<size_t>(layer.window);
  for (size_t k = 0; k * width < layer.windows.size(); ++k) {
    const int64_t* const window = layer.windows.data() + k * width;
    double best = -INFINITY;
    size_t best_index = 0;
    for (size_t j = 0; j < width; ++j)
      if (window[j] >= 0 && value(state.lower[static_cast<size_t>(window[j])]) > best)
        best = value(state.lower[static_cast<size_t>(window[j])]), best_index = j;
    const auto may_be_largest = [&](size_t j) {
      return window[j] >= 0 && value(state.upper[static_cast<size_t>(window[j])]) > best;
    };
    bool unstable = false;
    for (size_t j = 0; j < width; ++j) unstable |= j != best_index && may_be_largest(j);
    for (size_t j = 0; unstable && j < width; ++j)
      if (may_be_largest(j)) wanted[static_cast<size_t>(window[j])] = 1;
  }
}

// Lists tiles for lower bounds of z and of -z of each neuron, in a serpentine order over the plane, so that the neurons
// of a tile are neighbours and its windows small.
template <class T>
void list_tiles(int64_t e, int64_t i, const Shape& shape, const std::vector<uint8_t>& wanted,
                std::vector<Tile<T>>& tiles) {
  Tile<T> tile;
  tile.example = e, tile.layer = i, tile.paired = true;
  for (int64_t y = 0; y < shape.height; ++y)
    for (int64_t step = 0; step < shape.width; ++step) {
      const int64_t x = y % 2 == 0 ? step : shape.width - 1 - step;
      for (int64_t c = 0; c < shape.channels; ++c) {
        const int64_t k = c * shape.plane() + y * shape.width + x;
        if (wanted[static_cast<size_t>(k)] == 0) continue;
        for (const int sign : {1, -1}) {
          tile.neuron[tile.count] = k;
          tile.sign[tile.count++] = static_cast<T>(sign);
        }
        if (tile.count == kLanes<T>) {
          tiles.push_back(tile);
          tile.count = 0;
        }
      }
    }
  if (tile.count > 0) tiles.push_back(tile);
}

}  // namespace pyrobust::cpu

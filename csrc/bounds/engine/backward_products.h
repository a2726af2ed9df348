// Products of a tile with the weights of a linear layer or a convolution, in the backward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bounds/engine/conv_products.h"
#include "bounds/engine/kernels.h"

namespace pyrobust::cpu {

// From coefficients a of a layer's outputs, of which those in `alive` (all if null) can differ from zero, to
// coefficients of its inputs, of which only those in `needed` (all if null) are written. Both are
// [channels][window][kLanes]; with `add`, products are added to what is there.
template <class T>
struct BackwardStep {
  const T* a;
  const uint8_t *alive, *needed;
  T* out;
  bool add;
};

template <class T>
class BackwardProducts {
 public:
  // Reserves `lists` lists of products.
  explicit BackwardProducts(int64_t lists) : listed_(static_cast<size_t>(lists)) {}

  void linear(const Layer<T>& layer, const BackwardStep<T>& step) {
    fan_in_.resize(static_cast<size_t>(layer.shape.size()));
    int64_t count = 0;
    for (int64_t k = 0; k < layer.shape.size(); ++k) {
      fan_in_[static_cast<size_t>(count)] = {static_cast<int32_t>(k * L), static_cast<int32_t>(k)};
      count += step.alive == nullptr || step.alive[k] != 0;
    }
    linear(layer, step, count);
  }
  // The same, but step.a holds only the coefficients of these outputs, in order.
  void linear(const Layer<T>& layer, const BackwardStep<T>& step, const std::vector<int64_t>& outputs) {
    fan_in_.resize(outputs.size());
    for (size_t j = 0; j < outputs.size(); ++j)
      fan_in_[j] = {static_cast<int32_t>(static_cast<int64_t>(j) * L), static_cast<int32_t>(outputs[j])};
    linear(layer, step, static_cast<int64_t>(outputs.size()));
  }

  // From a window of a layer's outputs to one of its inputs, of the shape `from`, by list i of products, which the next
  // tiles reuse if what alive points to does not change. One neuron after the inputs' window takes results that are
  // discarded.
  void convolution(int64_t i, const Layer<T>& layer, const Shape& from, const Window& outputs, const Window& inputs,
                   bool stays, const BackwardStep<T>& step) {
    ConvProducts& products = listed_[static_cast<size_t>(i)];
    using Cell = ConvProducts::Cell;
    const auto multiply = [&](size_t kind, const Cell* begin, const Cell* end) {
      const Cells<T>& cells = layer.cells[kind];
      if (step.needed == nullptr) return whole_panels(cells, begin, end, products, from, inputs, 0, step);
      size_t g = 0;
      for (const Cell* cell = begin; cell != end; ++cell) {
        pick(step, products.fan_in(*cell), cell->count, cells.panels[g], products.columns(*cell), products.at(*cell),
             cell->picks);
        g = g + 1 == cells.panels.size() ? 0 : g + 1;
      }
    };
    products.for_cells(layer, from, outputs, inputs, step.alive, step.needed, stays, multiply);
  }

  // The same for a layer whose inputs are in cells of one kind and all needed, one row of cells at a time: step.out
  // holds one row, and taken(window) is called after each row.
  template <class F>
  void convolution_by_rows(int64_t i, const Layer<T>& layer, const Shape& from, const Window& outputs,
                           const Window& inputs, bool stays, const BackwardStep<T>& step, const F& taken) {
    ConvProducts& products = listed_[static_cast<size_t>(i)];
    const Cells<T>& cells = layer.cells[0];
    using Cell = ConvProducts::Cell;
    const auto multiply = [&](size_t, const Cell* begin, const Cell* end) {
      while (begin != end) {
        const Cell* next = std::find_if(begin, end, [&](const Cell& cell) { return cell.y != begin->y; });
        const int64_t y0 = std::max<int64_t>(begin->y, 0),
                      y1 = std::min(begin->y + static_cast<int64_t>(cells.rows.places.size()), inputs.height());
        const Window row{inputs.y0 + y0, inputs.y0 + y1, inputs.x0, inputs.x1};
        whole_panels(cells, begin, next, products, from, row, y0, step);
        taken(row);
        begin = next;
      }
    };
    products.for_cells(layer, from, outputs, inputs, step.alive, nullptr, stays, multiply);
  }

 private:
  static constexpr int64_t L = kLanes<T>;

  void linear(const Layer<T>& layer, const BackwardStep<T>& step, int64_t count) {
    const Panels<T>& panels = layer.backward;
    if (step.needed == nullptr) {
      for (int64_t p = 0; p < panels.count(); ++p)
        engine_kernels<T>().multiply(step.a, fan_in_.data(), count, panels.panel(p), panels.width(p),
                                     step.out + p * kPanel * L, kSideBySide<T>, step.add);
      return;
    }
    at_.resize(static_cast<size_t>(panels.outputs)), columns_.resize(at_.size());
    int64_t needed_count = 0;
    for (int64_t k = 0; k < panels.outputs; ++k) {
      at_[static_cast<size_t>(needed_count)] = k * L, columns_[static_cast<size_t>(needed_count)] = panels.column(k);
      needed_count += step.needed[k] != 0;
    }
    pick(step, fan_in_.data(), count, panels, columns_.data(), at_.data(), needed_count);
  }

  void pick(const BackwardStep<T>& step, const FanIn* fan_in, int64_t count, const Panels<T>& panels,
            const int64_t* columns, const int64_t* at, int64_t needed_count) {
    for (int64_t j = 0; j < needed_count; j += kPanel)
      engine_kernels<T>().multiply_picked(step.a, fan_in, count, panels.w.data(), columns + j,
                                          std::min(kPanel, needed_count - j), step.out, at + j, step.add);
  }

  // Writes to a window that starts `top` rows below the one for which the cells were listed.
  void whole_panels(const Cells<T>& cells, const ConvProducts::Cell* begin, const ConvProducts::Cell* end,
                    const ConvProducts& products, const Shape& from, const Window& to, int64_t top,
                    const BackwardStep<T>& step) {
    const auto groups = static_cast<int64_t>(cells.panels.size());
    const int64_t channels = from.channels / groups, plane = to.height() * to.width();
    // Offsets of the outputs of a cell from its first place.
    at_.clear();
    for (const int64_t y : cells.rows.places)
      for (const int64_t x : cells.columns.places)
        for (int64_t c = 0; c < channels; ++c) at_.push_back((c * plane + y * to.width() + x) * L);
    int64_t g = 0;
    for (const auto* cell = begin; cell != end; ++cell) {
      const int64_t y = cell->y - top, x = cell->x;
      const bool whole = y + cells.rows.places.front() >= 0 && x + cells.columns.places.front() >= 0 &&
                         y + cells.rows.places.back() < to.height() && x + cells.columns.places.back() < to.width();
      const int64_t first = (g * channels * plane + y * to.width() + x) * L;
      if (!whole) clip(cells, y, x, to, channels, first, from.channels * plane * L);
      const Panels<T>& panels = cells.panels[static_cast<size_t>(g)];
      for (int64_t p = 0; p < panels.count(); ++p)
        engine_kernels<T>().multiply(step.a, products.fan_in(*cell), cell->count, panels.panel(p), panels.width(p),
                                     whole ? step.out + first : step.out, (whole ? at_ : clipped_).data() + p * kPanel,
                                     step.add);
      g = g + 1 == groups ? 0 : g + 1;
    }
  }

  // For a cell at `first` that reaches beyond the window, directs the places outside to `spare`.
  void clip(const Cells<T>& cells, int64_t y0, int64_t x0, const Window& to, int64_t channels, int64_t first,
            int64_t spare) {
    clipped_.resize(at_.size());
    size_t j = 0;
    for (const int64_t row : cells.rows.places)
      for (const int64_t column : cells.columns.places) {
        const int64_t y = y0 + row, x = x0 + column;
        const bool inside = y >= 0 && y < to.height() && x >= 0 && x < to.width();
        for (int64_t c = 0; c < channels; ++c, ++j) clipped_[j] = inside ? first + at_[j] : spare;
      }
  }

  std::vector<ConvProducts> listed_;
  std::vector<FanIn> fan_in_;
  std::vector<int64_t> at_, clipped_, columns_;
};

}  // namespace pyrobust::cpu

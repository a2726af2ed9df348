// The products of a convolution's backward step, listed once for all tiles that share them.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/bound_network.h"
#include "cpu/crown_leaves.h"
#include "cpu/tile_window.h"

namespace pyrobust::cpu {

class ConvProducts {
 public:
  // The products of one group of a cell, and the cell's first place, counted from the window's; it can lie before it.
  struct Cell {
    int64_t y, x;
    size_t begin, count;
  };

  // Lists the products from a window of outputs, of which those of `alive` (all where null) can differ from zero, to a
  // window of inputs. Where what alive points to stays as it is, the last list is kept if it fits.
  template <class T>
  void list(const Layer<T>& layer, const Window& outputs, const Window& inputs, const uint8_t* alive, bool stays) {
    if (stays && listed_ && alive_ == alive && outputs_ == outputs && inputs_ == inputs) return;
    listed_ = true, alive_ = alive, outputs_ = outputs, inputs_ = inputs;
    list_living(layer);
    taps_.clear(), cells_.clear(), begin_.clear();
    for (const Cells<T>& kind : layer.cells) {
      begin_.push_back(cells_.size());
      list_cells(layer, kind);
    }
    begin_.push_back(cells_.size());
  }

  // The cells of a kind, each in as many entries as there are groups.
  const Cell* begin(size_t kind) const { return cells_.data() + begin_[kind]; }
  const Cell* end(size_t kind) const { return cells_.data() + begin_[kind + 1]; }
  const Tap* taps(const Cell& cell) const { return taps_.data() + cell.begin; }

 private:
  // The cells of one axis that have a place in [begin, end).
  static void range(const CellAxis& axis, int64_t stride, int64_t pad, int64_t begin, int64_t end, int64_t& first,
                    int64_t& last) {
    const int64_t front = axis.places.front(), back = axis.places.back();
    // stride * m + back - pad >= begin and stride * m + front - pad < end; all numerators are kept positive
    first = (begin + pad + stride - 1 - back) / stride;
    last = (end + pad + stride - 1 - front) / stride;
  }

  template <class T>
  void list_cells(const Layer<T>& layer, const Cells<T>& kind) {
    const ConvSizes& s = layer.conv;
    const int64_t channels = layer.shape.channels / s.groups;
    int64_t y0, y1, x0, x1;
    range(kind.rows, s.stride_h, s.pad_h, inputs_.y0, inputs_.y1, y0, y1);
    range(kind.columns, s.stride_w, s.pad_w, inputs_.x0, inputs_.x1, x0, x1);
    for (int64_t y = y0; y < y1; ++y)
      for (int64_t x = x0; x < x1; ++x)
        for (int64_t g = 0; g < s.groups; ++g) {
          const size_t before = taps_.size();
          int64_t first_tap = 0;
          for (const int64_t row : kind.rows.back)
            for (const int64_t column : kind.columns.back) {
              append(y - row, x - column, g, s.groups, first_tap);
              first_tap += channels;
            }
          cells_.push_back({y * s.stride_h - s.pad_h - inputs_.y0, x * s.stride_w - s.pad_w - inputs_.x0, before,
                            taps_.size() - before});
        }
  }

  // The living channels of the output at (y, x), where it is in the window.
  void append(int64_t y, int64_t x, int64_t group, int64_t groups, int64_t first_tap) {
    if (y < outputs_.y0 || y >= outputs_.y1 || x < outputs_.x0 || x >= outputs_.x1) return;
    const auto list = static_cast<size_t>(((y - outputs_.y0) * outputs_.width() + x - outputs_.x0) * groups + group);
    for (size_t i = living_begin_[list]; i < living_begin_[list + 1]; ++i)
      taps_.push_back({living_[i].offset, living_[i].tap + static_cast<int32_t>(first_tap)});
  }

  // For every place of the outputs' window and every group, the channels that are alive.
  template <class T>
  void list_living(const Layer<T>& layer) {
    const Window& w = outputs_;
    const int64_t plane = w.height() * w.width(), channels = layer.shape.channels / layer.conv.groups;
    living_.clear(), living_begin_.clear();
    for (int64_t y = 0; y < w.height(); ++y)
      for (int64_t x = 0; x < w.width(); ++x)
        for (int64_t g = 0; g < layer.conv.groups; ++g) {
          living_begin_.push_back(living_.size());
          for (int64_t c = 0; c < channels; ++c) {
            const int64_t channel = g * channels + c;
            const int64_t k = channel * layer.shape.plane() + (w.y0 + y) * layer.shape.width + w.x0 + x;
            if (alive_ == nullptr || alive_[k] != 0)
              living_.push_back(
                  {static_cast<int32_t>((channel * plane + y * w.width() + x) * kLanes<T>), static_cast<int32_t>(c)});
          }
        }
    living_begin_.push_back(living_.size());
  }

  bool listed_ = false;
  const uint8_t* alive_ = nullptr;
  Window outputs_, inputs_;
  std::vector<Tap> living_, taps_;
  std::vector<Cell> cells_;
  std::vector<size_t> living_begin_, begin_;
};

}  // namespace pyrobust::cpu

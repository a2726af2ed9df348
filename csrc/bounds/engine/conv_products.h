// Lists of the products in a convolution's backward step: made once for all tiles that share them, else row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "bounds/engine/kernels.h"
#include "bounds/engine/network.h"
#include "bounds/engine/receptive_field.h"

namespace pyrobust::cpu {

class ConvProducts {
 public:
  // The products of one group of a cell, the cell's first place relative to the window's (possibly before it), and its
  // picked outputs.
  struct Cell {
    int64_t y, x, begin, count, first_pick, picks;
  };

  // Lists the products from a window of outputs, of which those of `alive` (all where null) can differ from zero, to a
  // window of inputs, of which only those of `needed` (all where null) are picked, and calls f(kind, begin, end) for
  // cells of one kind at a time, each with as many entries as there are groups. If what alive points to does not
  // change, the part of the last list that fits is kept; else a row of cells is listed in place of the row before.
  template <class T, class F>
  void for_cells(const Layer<T>& layer, const Shape& from, const Window& outputs, const Window& inputs,
                 const uint8_t* alive, const uint8_t* needed, bool stays, const F& f) {
    const bool same = stays && listed_ && alive_ == alive && needed_ == needed;
    if (!same || outputs_ != outputs || inputs_ != inputs) {
      outputs_ = outputs, inputs_ = inputs, needed_ = needed;
      if (!same) list_living(layer, alive, stays ? Window::all(layer.shape) : outputs);
      listed_ = stays, alive_ = alive;
      begin_.clear();
      clear();
      for (size_t kind = 0; kind < layer.cells.size(); ++kind) {
        begin_.push_back(cells_.size());
        const Span rows = rows_of(layer, layer.cells[kind]);
        make_room(layer, layer.cells[kind], stays ? rows.end - rows.begin : 1);
        for (int64_t y = rows.begin; y < rows.end; ++y) {
          list_row(layer, from, layer.cells[kind], y);
          if (stays) continue;
          f(kind, cells_.data(), cells_.data() + cells_.size());
          clear();
        }
      }
      begin_.push_back(cells_.size());
    }
    for (size_t kind = 0; stays && kind < layer.cells.size(); ++kind)
      f(kind, cells_.data() + begin_[kind], cells_.data() + begin_[kind + 1]);
  }

  const FanIn* fan_in(const Cell& cell) const { return fan_in_.data() + cell.begin; }
  // For each picked output: where its weights start, and its offset in the window.
  const int64_t* columns(const Cell& cell) const { return columns_.data() + cell.first_pick; }
  const int64_t* at(const Cell& cell) const { return at_.data() + cell.first_pick; }

 private:
  struct Span {
    int64_t begin, end;
  };

  // Returns the cells of one axis that have a place in [begin, end).
  static Span range(const CellAxis& axis, int64_t stride, int64_t pad, int64_t begin, int64_t end) {
    const int64_t front = axis.places.front(), back = axis.places.back();
    // stride * m + back - pad >= begin and stride * m + front - pad < end
    return {(begin + pad + stride - 1 - back) / stride, (end + pad + stride - 1 - front) / stride};
  }
  template <class T>
  Span rows_of(const Layer<T>& layer, const Cells<T>& kind) const {
    return range(kind.rows, layer.conv.stride_h, layer.conv.pad_h, inputs_.y0, inputs_.y1);
  }
  template <class T>
  Span columns_of(const Layer<T>& layer, const Cells<T>& kind) const {
    return range(kind.columns, layer.conv.stride_w, layer.conv.pad_w, inputs_.x0, inputs_.x1);
  }

  // Reserves room for the products of more rows.
  template <class T>
  void make_room(const Layer<T>& layer, const Cells<T>& kind, int64_t rows) {
    const Span columns = columns_of(layer, kind);
    const auto most = static_cast<int64_t>(kind.rows.back.size() * kind.columns.back.size()) * layer.shape.channels;
    const auto room = static_cast<size_t>(used_ + rows * (columns.end - columns.begin) * most) + kPadding;
    if (fan_in_.size() < room) fan_in_.resize(room);
  }

  void clear() {
    cells_.clear(), columns_.clear(), at_.clear();
    used_ = 0;
  }

  template <class T>
  void list_row(const Layer<T>& layer, const Shape& from, const Cells<T>& kind, int64_t y) {
    const ConvSizes& s = layer.conv;
    const int64_t channels = layer.shape.channels / s.groups;
    const Span columns = columns_of(layer, kind);
    for (int64_t x = columns.begin; x < columns.end; ++x)
      for (int64_t g = 0; g < s.groups; ++g) {
        const int64_t before = used_;
        int64_t first_fan_in = 0;
        for (const int64_t row : kind.rows.back)
          for (const int64_t column : kind.columns.back) {
            append<T>(y - row, x - column, g, channels, s.groups, first_fan_in);
            first_fan_in += channels;
          }
        Cell cell{y * s.stride_h - s.pad_h - inputs_.y0,
                  x * s.stride_w - s.pad_w - inputs_.x0,
                  before,
                  used_ - before,
                  static_cast<int64_t>(at_.size()),
                  0};
        if (needed_ != nullptr) pick(kind, from, from.channels / s.groups, g, cell);
        cells_.push_back(cell);
      }
  }

  // Lists the alive channels of the output at (y, x), if it is in the window.
  template <class T>
  void append(int64_t y, int64_t x, int64_t group, int64_t channels, int64_t groups, int64_t first_fan_in) {
    if (y < outputs_.y0 || y >= outputs_.y1 || x < outputs_.x0 || x >= outputs_.x1) return;
    const auto list = static_cast<size_t>(((y - listing_.y0) * listing_.width() + x - listing_.x0) * groups + group);
    const int64_t plane = outputs_.height() * outputs_.width();
    const int64_t place = group * channels * plane + (y - outputs_.y0) * outputs_.width() + x - outputs_.x0;
    // Copies eight at a time, past the last one too: a branch on their number would be unpredictable.
    const size_t first = living_begin_[list], end = living_begin_[list + 1];
    FanIn* next = fan_in_.data() + used_;
    for (size_t i = first; i < end; i += kPadding, next += kPadding)
      for (size_t j = 0; j < kPadding; ++j)
        next[j] = {static_cast<int32_t>((living_[i + j] * plane + place) * kLanes<T>),
                   static_cast<int32_t>(living_[i + j] + first_fan_in)};
    used_ += static_cast<int64_t>(end - first);
  }

  template <class T>
  void pick(const Cells<T>& kind, const Shape& from, int64_t channels, int64_t group, Cell& cell) {
    int64_t j = 0;
    for (const int64_t row : kind.rows.places)
      for (const int64_t column : kind.columns.places) {
        const int64_t y = cell.y + row, x = cell.x + column;
        const bool inside = y >= 0 && y < inputs_.height() && x >= 0 && x < inputs_.width();
        for (int64_t c = group * channels; c < (group + 1) * channels; ++c, ++j) {
          if (!inside || needed_[c * from.plane() + (inputs_.y0 + y) * from.width + inputs_.x0 + x] == 0) continue;
          columns_.push_back(kind.panels[0].column(j));
          at_.push_back(((c * inputs_.height() + y) * inputs_.width() + x) * kLanes<T>);
        }
      }
    cell.picks = static_cast<int64_t>(at_.size()) - cell.first_pick;
  }

  // Lists the alive channels of every place of the window and every group.
  template <class T>
  void list_living(const Layer<T>& layer, const uint8_t* alive, const Window& window) {
    const int64_t channels = layer.shape.channels / layer.conv.groups;
    listing_ = window;
    living_begin_.clear();
    living_.resize(static_cast<size_t>(window.height() * window.width() * layer.shape.channels) + kPadding);
    size_t next = 0;
    for (int64_t y = window.y0; y < window.y1; ++y)
      for (int64_t x = window.x0; x < window.x1; ++x)
        for (int64_t g = 0; g < layer.conv.groups; ++g) {
          living_begin_.push_back(next);
          for (int64_t c = 0; c < channels; ++c) {
            const int64_t k = (g * channels + c) * layer.shape.plane() + y * layer.shape.width + x;
            living_[next] = static_cast<int32_t>(c);
            next += alive == nullptr || alive[k] != 0;
          }
        }
    living_begin_.push_back(next);
  }

  static constexpr size_t kPadding = 8;
  bool listed_ = false;
  const uint8_t *alive_ = nullptr, *needed_ = nullptr;
  Window outputs_, inputs_, listing_;
  std::vector<int32_t> living_;
  std::vector<FanIn> fan_in_;
  int64_t used_ = 0;  // entries of fan_in_ in use
  std::vector<Cell> cells_;
  std::vector<int64_t> columns_, at_;
  std::vector<size_t> living_begin_, begin_;
};

}  // namespace pyrobust::cpu

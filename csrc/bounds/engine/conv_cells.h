// Weights of a convolution's backward step. The inputs are taken in cells: the places stride * m to stride * m + stride
// - 1, counted from the first padded one, depend on nearly the same outputs. One list of products then serves the whole
// cell, and the pairs (place in the cell, channel) fill panels where there are few channels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bounds/engine/packed_weights.h"

namespace pyrobust::cpu {

struct ConvSizes {
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1,
          groups = 1;

  // Whether no two outputs read the same input, for this number of channels.
  bool reads_once(int64_t channels, int64_t height, int64_t width) const {
    return channels == groups && (height == 1 || stride_h >= (kernel_h - 1) * dilation_h + 1) &&
           (width == 1 || stride_w >= (kernel_w - 1) * dilation_w + 1);
  }
  // Whether each output is a weighted sum over the channels of a group at its own place, so that each input is read
  // once, for this number of channels.
  bool sums_channels(int64_t channels) const {
    return kernel_h == 1 && kernel_w == 1 && stride_h == 1 && stride_w == 1 && pad_h == 0 && pad_w == 0 &&
           channels == groups;
  }
};

// Cells along one axis: cell m holds the inputs stride * m + place - pad, which depend on the outputs m - back.
struct CellAxis {
  std::vector<int64_t> places, back;
};

// The cells of one kind, in panels for each group: outputs [row place][column place][channel], fan-in [row
// back][column back][channel]. An input that is not part of a product has weight 0, and adds no error.
template <class T>
struct Cells {
  CellAxis rows, columns;
  std::vector<Panels<T>> panels;
};

// Kernel element k multiplies the input at stride * (m + q) + r - pad, q = k * dilation / stride, with the output m:
// whole cells, or one kind for each r.
inline std::vector<CellAxis> cell_axes(int64_t kernel, int64_t stride, int64_t dilation, bool whole) {
  std::vector<CellAxis> axes(whole ? 1 : static_cast<size_t>(stride));
  for (int64_t r = 0; r < stride; ++r) axes[whole ? 0 : static_cast<size_t>(r)].places.push_back(r);
  for (int64_t k = 0; k < kernel; ++k) {
    std::vector<int64_t>& back = axes[whole ? 0 : static_cast<size_t>(k * dilation % stride)].back;
    const int64_t q = k * dilation / stride;
    if (std::find(back.begin(), back.end(), q) == back.end()) back.push_back(q);
  }
  return axes;
}

// weight(place in the kernel, output channel, input channel) of group g.
template <class T, class Weight>
std::vector<Cells<T>> backward_cells(const ConvSizes& s, int64_t inputs, int64_t outputs, const Weight& weight) {
  // Use whole cells where they add few products with 0, or where few channels would leave panels narrow.
  const auto products = [](const std::vector<CellAxis>& axes) { return axes[0].places.size() * axes[0].back.size(); };
  const auto limit = static_cast<size_t>(s.kernel_h * s.kernel_w * (inputs < kPanel / 2 ? 2 : 1));
  const bool whole = products(cell_axes(s.kernel_h, s.stride_h, s.dilation_h, true)) *
                         products(cell_axes(s.kernel_w, s.stride_w, s.dilation_w, true)) <=
                     limit;
  // Element of the kernel between a place and an output, or -1.
  const auto element = [](int64_t place, int64_t back, int64_t kernel, int64_t stride, int64_t dilation) {
    const int64_t at = back * stride + place;
    return at % dilation == 0 && at / dilation < kernel ? at / dilation : -1;
  };
  std::vector<Cells<T>> all;
  for (const CellAxis& rows : cell_axes(s.kernel_h, s.stride_h, s.dilation_h, whole))
    for (const CellAxis& columns : cell_axes(s.kernel_w, s.stride_w, s.dilation_w, whole)) {
      Cells<T> cells{rows, columns, {}};
      const auto across = static_cast<int64_t>(columns.places.size()), wide = static_cast<int64_t>(columns.back.size());
      for (int64_t g = 0; g < s.groups; ++g)
        cells.panels.push_back(packed<T>(
            static_cast<int64_t>(rows.places.size()) * across * inputs,
            static_cast<int64_t>(rows.back.size()) * wide * outputs, [&](int64_t fan_in, int64_t output) {
              const auto row = static_cast<size_t>(output / inputs / across),
                         row_back = static_cast<size_t>(fan_in / outputs / wide);
              const auto column = static_cast<size_t>(output / inputs % across),
                         column_back = static_cast<size_t>(fan_in / outputs % wide);
              const int64_t y = element(rows.places[row], rows.back[row_back], s.kernel_h, s.stride_h, s.dilation_h);
              const int64_t x =
                  element(columns.places[column], columns.back[column_back], s.kernel_w, s.stride_w, s.dilation_w);
              return y < 0 || x < 0 ? T(0) : weight(g, y * s.kernel_w + x, fan_in % outputs, output % inputs);
            }));
      all.push_back(std::move(cells));
    }
  return all;
}

}  // namespace pyrobust::cpu

// Receptive field of a tile at a layer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bounds/engine/network.h"

namespace pyrobust::cpu {

// The part of a layer's planes where coefficients can differ from zero: rows [y0, y1), columns [x0, x1).
struct Window {
  int64_t y0 = 0, y1 = 0, x0 = 0, x1 = 0;

  int64_t height() const { return y1 - y0; }
  int64_t width() const { return x1 - x0; }
  bool empty() const { return y0 >= y1 || x0 >= x1; }
  bool operator==(const Window&) const = default;
  void join(const Window& other) {
    if (other.empty()) return;
    if (empty()) {
      *this = other;
      return;
    }
    y0 = std::min(y0, other.y0), y1 = std::max(y1, other.y1);
    x0 = std::min(x0, other.x0), x1 = std::max(x1, other.x1);
  }
  static Window all(const Shape& shape) { return {0, shape.height, 0, shape.width}; }
};

// The place of neuron k of a layer in a window of it.
inline int64_t position_in(const Shape& shape, const Window& window, int64_t k) {
  if (window == Window::all(shape)) return k;
  const int64_t channel = k / shape.plane(), y = k % shape.plane() / shape.width, x = k % shape.width;
  return (channel * window.height() + y - window.y0) * window.width() + x - window.x0;
}

// The places along one axis that a range of a convolution's outputs depends on.
inline void taken(int64_t begin, int64_t end, int64_t stride, int64_t pad, int64_t reach, int64_t size, int64_t& first,
                  int64_t& last) {
  first = std::max<int64_t>(0, begin * stride - pad);
  last = std::min(size, (end - 1) * stride - pad + reach + 1);
  if (first >= last) first = last = 0;
}

// The window of a convolution's inputs that a window of its outputs depends on.
inline Window reached_through(const ConvSizes& s, const Window& outputs, const Shape& inputs) {
  Window window;
  taken(outputs.y0, outputs.y1, s.stride_h, s.pad_h, (s.kernel_h - 1) * s.dilation_h, inputs.height, window.y0,
        window.y1);
  taken(outputs.x0, outputs.x1, s.stride_w, s.pad_w, (s.kernel_w - 1) * s.dilation_w, inputs.width, window.x0,
        window.x1);
  return window;
}

}  // namespace pyrobust::cpu

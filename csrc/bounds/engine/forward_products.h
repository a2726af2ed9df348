// Sums of products for the ranges of a linear layer or a convolution, panel by panel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "bounds/engine/example_state.h"
#include "bounds/engine/kernels.h"
#include "bounds/engine/network.h"
#include "bounds/engine/receptive_field.h"

namespace pyrobust::cpu {

// The products of a convolution's output, mostly the same for neighbouring outputs.
class KernelFanIn {
 public:
  // Lists the products of the output at (y, x), relative to the returned offset of the first input channel.
  template <class T>
  int64_t list(const ConvSizes& s, const Shape& from, int64_t channels, int64_t y, int64_t x) {
    const int64_t iy = y * s.stride_h - s.pad_h, ix = x * s.stride_w - s.pad_w;
    const Window inside{first(iy, s.dilation_h), last(iy, s.dilation_h, from.height, s.kernel_h),
                        first(ix, s.dilation_w), last(ix, s.dilation_w, from.width, s.kernel_w)};
    if (inside.empty()) {
      fan_in_.clear(), inside_ = inside;
      return 0;
    }
    const int64_t corner = (iy + inside.y0 * s.dilation_h) * from.width + ix + inside.x0 * s.dilation_w;
    if (inside == inside_) return corner;
    inside_ = inside;
    fan_in_.clear();
    for (int64_t ky = inside.y0; ky < inside.y1; ++ky)
      for (int64_t kx = inside.x0; kx < inside.x1; ++kx)
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t place =
              c * from.plane() + (ky - inside.y0) * s.dilation_h * from.width + (kx - inside.x0) * s.dilation_w;
          fan_in_.push_back(
              {static_cast<int32_t>(place * kLanes<T>), static_cast<int32_t>((ky * s.kernel_w + kx) * channels + c)});
        }
    return corner;
  }
  const std::vector<FanIn>& fan_in() const { return fan_in_; }

 private:
  // The range of kernel elements, for an output at `start`, that fall on the plane.
  static int64_t first(int64_t start, int64_t dilation) { return start >= 0 ? 0 : (-start + dilation - 1) / dilation; }
  static int64_t last(int64_t start, int64_t dilation, int64_t size, int64_t kernel) {
    return start >= size ? 0 : std::min(kernel, (size - start + dilation - 1) / dilation);
  }

  Window inside_;
  std::vector<FanIn> fan_in_;
};

// The outputs of a group at one place: neurons first, first + apart, ...; `fan_in` lists their products, with inputs from
// `offset` on.
struct ForwardPlace {
  size_t group;
  int64_t first, apart, offset;
  const std::vector<FanIn>& fan_in;
};

// Calls f(place) for all outputs of a linear layer or a convolution of the given sizes, from an input of the shape
// `from` to outputs of the shape `to`: the shapes of the layer, or of windows.
template <class T, class F>
void for_places(const Layer<T>& layer, const ConvSizes& s, const Shape& to, const Shape& from, const F& f) {
  if (layer.kind == Kind::kLinear) {
    std::vector<FanIn> fan_in(static_cast<size_t>(from.size()));
    for (int64_t k = 0; k < from.size(); ++k)
      fan_in[static_cast<size_t>(k)] = {static_cast<int32_t>(k * kLanes<T>), static_cast<int32_t>(k)};
    return f(ForwardPlace{0, 0, 1, 0, fan_in});
  }
  const int64_t channels = from.channels / s.groups, outputs = to.channels / s.groups;
  const int64_t plane = to.plane();
  KernelFanIn fan_in;
  for (int64_t y = 0; y < to.height; ++y)
    for (int64_t x = 0; x < to.width; ++x) {
      const int64_t corner = fan_in.template list<T>(s, from, channels, y, x);
      for (int64_t g = 0; g < s.groups; ++g)
        f(ForwardPlace{static_cast<size_t>(g), g * outputs * plane + y * to.width + x, plane,
                       (g * channels * from.plane() + corner) * kLanes<T>, fan_in.fan_in()});
    }
}

// One panel of these outputs.
struct ForwardPanel {
  size_t group;
  int64_t panel, width, first, apart, offset;
  const std::vector<FanIn>& fan_in;

  // Computes out [width][kLanes], the sums of `lanes` times the weights.
  template <class T>
  void multiply(const T* lanes, const std::vector<Panels<T>>& weights, T* out) const {
    engine_kernels<T>().multiply(lanes + offset, fan_in.data(), static_cast<int64_t>(fan_in.size()),
                                 weights[group].panel(panel), width, out, kSideBySide<T>, false);
  }
};

// Calls f(panel) for all panels, arguments as above.
template <class T, class F>
void for_panels(const Layer<T>& layer, const ConvSizes& s, const Shape& to, const Shape& from, const F& f) {
  for_places(layer, s, to, from, [&](const ForwardPlace& place) {
    const Panels<T>& panels = layer.forward[place.group];
    for (int64_t p = 0; p < panels.count(); ++p)
      f(ForwardPanel{place.group, p, panels.width(p), place.first + p * kPanel * place.apart, place.apart, place.offset,
                     place.fan_in});
  });
}
template <class T, class F>
void for_panels(const Layer<T>& layer, const Shape& from, const F& f) {
  for_panels(layer, layer.conv, layer.shape, from, f);
}

// Sums of products for one example: of inputs [neuron] with the weights or their magnitudes, to out [neuron].
template <class T>
struct SumsOfOne {
  const T* inputs;
  const std::vector<Panels<T>>& weights;
  T* out;
};

// Computes several sums of a layer, with its outputs at one place, not examples, in the lanes.
template <class T>
void multiply_one(const Layer<T>& layer, const Shape& from, std::initializer_list<SumsOfOne<T>> sums) {
  std::vector<T> outputs;
  for_places(layer, layer.conv, layer.shape, from, [&](const ForwardPlace& place) {
    for (const SumsOfOne<T>& sum : sums) {
      const Panels<T>& panels = sum.weights[place.group];
      outputs.resize(static_cast<size_t>(panels.count() * kPanel));
      engine_kernels<T>().multiply_one(sum.inputs + place.offset / kLanes<T>, place.fan_in.data(),
                                       static_cast<int64_t>(place.fan_in.size()), panels.w.data(),
                                       kPanel * panels.fan_in, panels.outputs, outputs.data());
      for (int64_t j = 0; j < panels.outputs; ++j)
        sum.out[place.first + j * place.apart] = outputs[static_cast<size_t>(j)];
    }
  });
}

// Rounding errors of the sums of a layer.
template <class T>
RangeCosts range_costs(const Layer<T>& layer, const BoundOptions& options) {
  const Outward out(options.sound);
  const int64_t fan_in = layer.forward_fan_in;
  const double gamma = out.gamma<T>(roundings_in_block(fan_in) + 1 + blocks_of(fan_in));
  const double deployed = out.gamma(fan_in + 4, options.deployed);
  RangeCosts costs;
  costs.sound = options.sound;
  costs.more = 1 + 3 * gamma;
  costs.tiny = out.underflow<T>(static_cast<double>(fan_in + 4));
  costs.sum = gamma + deployed + (options.sound ? layer.weight_error : 0);
  costs.bias = deployed;
  costs.constant = deployed * kFlushed + (options.sound ? layer.bias_error : 0);
  return costs;
}

}  // namespace pyrobust::cpu

#include "bounds/engine/network.h"

#include <utility>

namespace pyrobust::cpu {
namespace {

template <class T>
Panels<T> magnitude(Panels<T> panels) {
  for (T& w : panels.w) w = std::fabs(w);
  return panels;
}

}  // namespace

template <class T>
int64_t BoundNetwork<T>::add(Layer<T> layer) {
  if (layer.kind == Kind::kGather || layer.kind == Kind::kSum)
    layer.bias.assign(static_cast<size_t>(layer.shape.size()), 0);
  layers_.push_back(std::move(layer));
  return size() - 1;
}

template <class T>
int64_t BoundNetwork<T>::add_linear(int64_t input, int64_t outputs, const T* weight, Layer<T> layer) {
  const int64_t inputs = this->layer(input).shape.size();
  layer.kind = Kind::kLinear;
  layer.shape = {outputs, 1, 1};
  layer.inputs = {input};
  layer.backward = packed<T>(inputs, outputs, [&](int64_t k, int64_t i) { return weight[k * inputs + i]; });
  layer.forward.push_back(packed<T>(outputs, inputs, [&](int64_t i, int64_t k) { return weight[k * inputs + i]; }));
  layer.forward_abs.push_back(magnitude(layer.forward[0]));
  return add(std::move(layer));
}

template <class T>
int64_t BoundNetwork<T>::add_conv(int64_t input, const T* weight, Layer<T> layer) {
  const ConvSizes& s = layer.conv;
  layer.kind = Kind::kConv;
  layer.inputs = {input};
  const int64_t inputs = this->layer(input).shape.channels / s.groups, outputs = layer.shape.channels / s.groups;
  const int64_t kernel = s.kernel_h * s.kernel_w;
  for (int64_t g = 0; g < s.groups; ++g) {
    const T* w = weight + g * outputs * inputs * kernel;
    // fan-in in the order [place in the kernel][channel]
    layer.forward.push_back(packed<T>(outputs, kernel * inputs, [&](int64_t t, int64_t co) {
      return w[(co * inputs + t % inputs) * kernel + t / inputs];
    }));
    layer.forward_abs.push_back(magnitude(layer.forward.back()));
  }
  layer.cells = backward_cells<T>(s, inputs, outputs, [&](int64_t g, int64_t place, int64_t co, int64_t ci) {
    return weight[((g * outputs + co) * inputs + ci) * kernel + place];
  });
  return add(std::move(layer));
}

template <class T>
void BoundNetwork<T>::finish() {
  for (const Layer<T>& layer : layers_) {
    neurons_ += layer.shape.size();
    for (const int64_t input : layer.inputs) ++layers_[static_cast<size_t>(input)].consumers;
  }
  for (const Layer<T>& layer : layers_) {
    for (const int64_t input : layer.inputs) {
      Layer<T>& taken = layers_[static_cast<size_t>(input)];
      const bool products = layer.kind == Kind::kLinear || layer.kind == Kind::kConv;
      int64_t adds = products ? (layer.fan_in() + kBlock - 1) / kBlock : 1;
      if (layer.kind == Kind::kGather || layer.kind == Kind::kMaxPool) {
        // an element may be gathered several times
        std::vector<int64_t> times(static_cast<size_t>(taken.shape.size()));
        int64_t begin = 0;
        for (const int64_t other : layer.inputs) {
          if (other == input) {
            const auto& fan_in = layer.kind == Kind::kGather ? layer.index : layer.windows;
            for (const int64_t i : fan_in)
              if (i >= begin && i < begin + taken.shape.size()) ++times[static_cast<size_t>(i - begin)];
          }
          begin += this->layer(other).shape.size();
        }
        for (const int64_t t : times) adds = std::max(adds, t);
        taken.adds += adds;
      } else if (taken.consumers > 1) {
        taken.adds += adds;
      }
      if (layer.kind == Kind::kActivation && taken.consumers == 1 && taken.affine()) taken.fused = true;
    }
  }
}

template class BoundNetwork<float>;
template class BoundNetwork<double>;

}  // namespace pyrobust::cpu

#include "bounds/engine/network.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace pyrobust::cpu {
namespace {

template <class T>
Panels<T> magnitudes(Panels<T> panels) {
  for (T& w : panels.w) w = std::fabs(w);
  return panels;
}

void expect(bool fits) {
  if (!fits) throw std::invalid_argument("BoundNetwork: expected an analysis of these layers, got another one");
}

// The most reads of a single element of this input by a layer that moves elements, over all places; at least 1.
template <class T>
int64_t count_repeats(const std::vector<Layer<T>>& layers, const Layer<T>& layer, int64_t input) {
  const auto size_of = [&](int64_t i) { return layers[static_cast<size_t>(i)].shape.size(); };
  std::vector<int64_t> times(static_cast<size_t>(size_of(input)));
  int64_t most = 1, begin = 0;
  for (const int64_t source : layer.inputs) {
    const int64_t end = begin + size_of(source);
    if (source == input)
      for (const int64_t i : layer.kind == Kind::kGather ? layer.index : layer.windows)
        if (i >= begin && i < end) most = std::max(most, ++times[static_cast<size_t>(i - begin)]);
    begin = end;
  }
  return most;
}

// Computes weight_size and bias_size of a layer of products.
template <class T>
void measure(Layer<T>& layer) {
  const auto n = static_cast<size_t>(layer.forward_fan_in);
  for (size_t k = 0; n > 0 && k < layer.weight.size(); k += n) {
    double total = 0;
    for (size_t j = k; j < k + n; ++j) total += std::fabs(static_cast<double>(layer.weight[j]));
    layer.weight_size = std::fmax(layer.weight_size, total * (1 + static_cast<double>(n + 2) * 0x1p-52));
  }
  for (const double b : layer.bias) layer.bias_size = std::fmax(layer.bias_size, std::fabs(b));
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
  layer.forward_fan_in = inputs;
  layer.weight.assign(weight, weight + outputs * inputs);
  return add(std::move(layer));
}

template <class T>
int64_t BoundNetwork<T>::add_conv(int64_t input, const T* weight, Layer<T> layer) {
  const ConvSizes& s = layer.conv;
  layer.kind = Kind::kConv;
  layer.inputs = {input};
  layer.forward_fan_in = s.kernel_h * s.kernel_w * (this->layer(input).shape.channels / s.groups);
  layer.weight.assign(weight, weight + layer.shape.channels * layer.forward_fan_in);
  return add(std::move(layer));
}

template <class T>
void BoundNetwork<T>::know(int64_t i, double low, double high) {
  Layer<T>& layer = layers_[static_cast<size_t>(i)];
  layer.known_low = low, layer.known_high = high;
}

template <class T>
void BoundNetwork<T>::relate(int64_t i, std::vector<int64_t> first, std::vector<double> sign) {
  Layer<T>& layer = layers_[static_cast<size_t>(i)];
  layer.first = std::move(first), layer.sign = std::move(sign);
}

template <class T>
void BoundNetwork<T>::pack(int64_t i) const {
  Layer<T>& layer = layers_[static_cast<size_t>(i)];
  if (!layer.products()) return;
  std::call_once(packed_[static_cast<size_t>(i)], [&] {
    if (layer.kind == Kind::kLinear)
      pack_linear(layer);
    else
      pack_conv(layer);
  });
}

template <class T>
void BoundNetwork<T>::pack_linear(Layer<T>& layer) const {
  const T* const weight = layer.weight.data();
  const int64_t inputs = layer.forward_fan_in, outputs = layer.shape.size();
  layer.backward = packed<T>(inputs, outputs, [&](int64_t k, int64_t i) { return weight[k * inputs + i]; });
  layer.forward.push_back(packed<T>(outputs, inputs, [&](int64_t i, int64_t k) { return weight[k * inputs + i]; }));
  layer.forward_abs.push_back(magnitudes(layer.forward[0]));
  measure(layer);
}

template <class T>
void BoundNetwork<T>::pack_conv(Layer<T>& layer) const {
  const ConvSizes& s = layer.conv;
  const T* const weight = layer.weight.data();
  const int64_t inputs = this->layer(layer.inputs[0]).shape.channels / s.groups;
  const int64_t outputs = layer.shape.channels / s.groups, kernel = s.kernel_h * s.kernel_w;
  measure(layer);
  for (int64_t g = 0; g < s.groups; ++g) {
    const T* w = weight + g * outputs * inputs * kernel;
    // fan-in in the order [place in the kernel][channel]
    layer.forward.push_back(packed<T>(outputs, kernel * inputs, [&](int64_t t, int64_t co) {
      return w[(co * inputs + t % inputs) * kernel + t / inputs];
    }));
    layer.forward_abs.push_back(magnitudes(layer.forward.back()));
  }
  layer.cells = backward_cells<T>(s, inputs, outputs, [&](int64_t g, int64_t place, int64_t co, int64_t ci) {
    return weight[((g * outputs + co) * inputs + ci) * kernel + place];
  });
}

template <class T>
void BoundNetwork<T>::finish(const GraphAnalysis& analysis) {
  const size_t n = layers_.size();
  expect(analysis.consumers.size() == n && analysis.fused.size() == n && analysis.affine_in_input.size() == n &&
         analysis.ends_affine_part.size() == n && analysis.repeats.size() == n);
  packed_ = std::vector<std::once_flag>(n);
  // the layers that read each layer; whether one of them is an activation, and whether one is not affine in the input
  std::vector<int64_t> consumers(n, 0);
  std::vector<uint8_t> to_activation(n, 0), to_nonaffine(n, 0);
  to_nonaffine[n - 1] = 1;
  for (size_t i = 0; i < n; ++i) {
    Layer<T>& layer = layers_[i];
    neurons_ += layer.shape.size();
    needs_intervals_ |= layer.needs_intervals();
    bool affine = layer.affine() || layer.kind == Kind::kInput;
    for (const int64_t input : layer.inputs) {
      const auto j = static_cast<size_t>(input);
      ++consumers[j];
      if (layer.kind == Kind::kActivation) to_activation[j] = 1;
      if (analysis.affine_in_input[i] == 0) to_nonaffine[j] = 1;
      affine = affine && analysis.affine_in_input[j] != 0;
    }
    expect((analysis.affine_in_input[i] != 0) == affine);
    layer.affine_in_input = affine;
  }
  for (size_t i = 0; i < n; ++i) {
    Layer<T>& layer = layers_[i];
    layer.consumers = consumers[i];
    layer.fused = layer.affine() && consumers[i] == 1 && to_activation[i] != 0;
    layer.ends_affine_part = i > 0 && layer.affine_in_input && to_nonaffine[i] != 0;
    if (i + 1 < n && layer.kind == Kind::kConv &&
        layer.conv.reads_once(layer.shape.channels, layer.shape.height, layer.shape.width)) {
      auto input = static_cast<size_t>(layer.inputs[0]);
      const auto moves_once = [&](size_t j) {
        return layers_[j].kind == Kind::kGather && layers_[j].inputs.size() == 1 && analysis.repeats[j][0] == 1;
      };
      while (consumers[input] == 1 && moves_once(input)) input = static_cast<size_t>(layers_[input].inputs[0]);
      layer.separate = layers_[input].nonlinear() && consumers[input] == 1;
    }
    expect(analysis.consumers[i] == consumers[i] && (analysis.fused[i] != 0) == layer.fused &&
           (analysis.ends_affine_part[i] != 0) == layer.ends_affine_part);
    const bool moves = layer.kind == Kind::kGather || layer.kind == Kind::kMaxPool;
    expect(analysis.repeats[i].size() == layer.inputs.size());
    for (size_t k = 0; k < layer.inputs.size(); ++k) {
      const int64_t repeats = analysis.repeats[i][k];
      // Too small a count would make the bounds too tight.
      expect(repeats == (moves ? count_repeats(layers_, layer, layer.inputs[k]) : 1));
      Layer<T>& source = layers_[static_cast<size_t>(layer.inputs[k])];
      if (moves || consumers[static_cast<size_t>(layer.inputs[k])] > 1)
        source.adds += layer.products() ? blocks_of(layer.fan_in()) : repeats;
    }
  }
}

template class BoundNetwork<float>;
template class BoundNetwork<double>;

}  // namespace pyrobust::cpu

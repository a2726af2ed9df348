// Ranges of neurons, layer by layer: center and radius of sums of products, up to kLanes examples at once.
#include <algorithm>

#include "cpu/bound_state.h"
#include "cpu/crown_leaves.h"
#include "cpu/simd.h"

namespace pyrobust::cpu {
namespace {

template <class T>
const CrownLeaves<T>& leaves() {
  if constexpr (sizeof(T) == 4)
    return PYROBUST_LEAVES(kCrownFloat);
  else
    return PYROBUST_LEAVES(kCrownDouble);
}

// The inputs of a group as [neuron][lane]: a point c of each range, how far its ends are away, the largest |z| and |c|.
template <class T>
struct Lanes {
  std::vector<T> center, radius, magnitude;
};

template <class T>
Lanes<T> lanes_of(int64_t layer, int64_t n, ExampleState<T>* const* group, int64_t count, const BoundOptions& options) {
  constexpr int64_t L = kLanes<T>;
  const double flushed = options.deployed > 0 ? kFlushed : 0;
  Lanes<T> lanes;
  for (auto* part : {&lanes.center, &lanes.radius, &lanes.magnitude}) part->assign(static_cast<size_t>(n * L), T(0));
  for (int64_t e = 0; e < count; ++e) {
    const LayerState<T>& state = (*group[e])[layer];
    leaves<T>().spread(state.lower.data(), state.upper.data(), n, e, flushed, options.sound, lanes.center.data(),
                       lanes.radius.data(), lanes.magnitude.data());
  }
  return lanes;
}

// The sums of products of one channel block at one place: out [kPanel][kLanes].
template <class T>
struct Sums {
  T center[kPanel * kLanes<T>], radius[kPanel * kLanes<T>], magnitude[kPanel * kLanes<T>];
};

template <class T>
class Products {
 public:
  Products(const Layer<T>& layer, const Lanes<T>& lanes) : layer_(layer), lanes_(lanes) {}

  // Panel p of group g from taps at places (first place in `lanes`, first tap); all have the same channels.
  void run(int64_t g, int64_t p, const std::vector<std::pair<int64_t, int64_t>>& places, const std::vector<Tap>& taps,
           Sums<T>& sums) {
    const auto group = static_cast<size_t>(g);
    sum(lanes_.center, places, taps, layer_.forward[group], p, sums.center);
    sum(lanes_.radius, places, taps, layer_.forward_abs[group], p, sums.radius);
    sum(lanes_.magnitude, places, taps, layer_.forward_abs[group], p, sums.magnitude);
  }

 private:
  void sum(const std::vector<T>& from, const std::vector<std::pair<int64_t, int64_t>>& places,
           const std::vector<Tap>& taps, const Panels<T>& panels, int64_t p, T* out) {
    segments_.clear();
    for (const auto& [place, tap] : places)
      segments_.push_back({taps.data(), static_cast<int64_t>(taps.size()), place * kLanes<T>, tap});
    leaves<T>().multiply(from.data(), segments_.data(), static_cast<int64_t>(segments_.size()), panels.panel(p),
                         panels.width(p), out, kLanes<T>, false);
  }

  const Layer<T>& layer_;
  const Lanes<T>& lanes_;
  std::vector<Segment> segments_;
};

// Turns the sums at one neuron into a range, outward.
template <class T>
class Ranges {
 public:
  Ranges(const Layer<T>& layer, const BoundOptions& options) : layer_(layer), out_(options.sound) {
    const int64_t taps = layer.forward[0].taps;
    gamma_ = out_.template gamma<T>(std::min(taps, kBlock) + 2 + (taps + kBlock - 1) / kBlock);
    tiny_ = out_.template underflow<T>(static_cast<double>(taps + 4));
    more_ = 1 + 3 * gamma_;
    deployed_ = out_.gamma(taps + 4, options.deployed);
    flushed_ = deployed_ * kFlushed;
    weights_ = out_.sound() ? layer.weight_error : 0;
    biases_ = out_.sound() ? layer.bias_error : 0;  // absolute
  }

  void store(LayerState<T>& state, int64_t k, T center, T radius, T magnitude) const {
    const double bias = layer_.bias[static_cast<size_t>(k)];
    const double size = std::fabs(bias), middle = static_cast<double>(center);
    // What is computed of a sum of positive products may be too small by its own rounding; all terms are positive, so
    // one factor at the end pays for those of float64.
    const double m = static_cast<double>(magnitude) * more_ + tiny_, r = static_cast<double>(radius) * more_ + tiny_;
    double error = r + (gamma_ + weights_ + deployed_) * m + deployed_ * size + flushed_ + biases_;
    error += out_.template few<T>(error + std::fabs(middle) + size);
    const auto at = static_cast<size_t>(k);
    state.sum[at] = m;
    state.lower[at] = middle + bias - error;
    state.upper[at] = middle + bias + error;
  }

 private:
  const Layer<T>& layer_;
  Outward out_;
  double gamma_, tiny_, more_, deployed_, flushed_, weights_, biases_;
};

template <class T>
void store_panel(const Ranges<T>& ranges, int64_t layer, ExampleState<T>* const* group, int64_t count,
                 const Sums<T>& sums, int64_t first, int64_t width, int64_t plane) {
  for (int64_t e = 0; e < count; ++e)
    for (int64_t j = 0; j < width; ++j) {
      const int64_t at = j * kLanes<T> + e;
      ranges.store((*group[e])[layer], first + j * plane, sums.center[at], sums.radius[at], sums.magnitude[at]);
    }
}

template <class T>
void linear(const BoundNetwork<T>& network, int64_t i, ExampleState<T>* const* group, int64_t count,
            const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const int64_t input = layer.inputs[0], n = network.layer(input).shape.size();
  const Lanes<T> lanes = lanes_of(input, n, group, count, options);
  std::vector<Tap> taps(static_cast<size_t>(n));
  for (int64_t k = 0; k < n; ++k)
    taps[static_cast<size_t>(k)] = {static_cast<int32_t>(k * kLanes<T>), static_cast<int32_t>(k)};
  Products<T> products(layer, lanes);
  const Ranges<T> ranges(layer, options);
  Sums<T> sums;
  for (int64_t p = 0; p < layer.forward[0].count(); ++p) {
    products.run(0, p, {{0, 0}}, taps, sums);
    store_panel(ranges, i, group, count, sums, p * kPanel, layer.forward[0].width(p), 1);
  }
}

template <class T>
void convolution(const BoundNetwork<T>& network, int64_t i, ExampleState<T>* const* group, int64_t count,
                 const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const ConvSizes& s = layer.conv;
  const int64_t input = layer.inputs[0];
  const Shape& from = network.layer(input).shape;
  const int64_t channels = from.channels / s.groups, outputs = layer.shape.channels / s.groups;
  const Lanes<T> lanes = lanes_of(input, from.size(), group, count, options);
  std::vector<Tap> taps(static_cast<size_t>(channels));
  for (int64_t c = 0; c < channels; ++c)
    taps[static_cast<size_t>(c)] = {static_cast<int32_t>(c * from.plane() * kLanes<T>), static_cast<int32_t>(c)};
  Products<T> products(layer, lanes);
  const Ranges<T> ranges(layer, options);
  Sums<T> sums;
  std::vector<std::pair<int64_t, int64_t>> places, shifted;
  for (int64_t y = 0; y < layer.shape.height; ++y)
    for (int64_t x = 0; x < layer.shape.width; ++x) {
      places.clear();
      for (int64_t ky = 0; ky < s.kernel_h; ++ky)
        for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
          const int64_t iy = y * s.stride_h - s.pad_h + ky * s.dilation_h;
          const int64_t ix = x * s.stride_w - s.pad_w + kx * s.dilation_w;
          if (iy >= 0 && iy < from.height && ix >= 0 && ix < from.width)
            places.emplace_back(iy * from.width + ix, (ky * s.kernel_w + kx) * channels);
        }
      for (int64_t g = 0; g < s.groups; ++g) {
        shifted = places;
        for (auto& place : shifted) place.first += g * channels * from.plane();
        for (int64_t p = 0; p < layer.forward[static_cast<size_t>(g)].count(); ++p) {
          products.run(g, p, shifted, taps, sums);
          const int64_t channel = g * outputs + p * kPanel;
          store_panel(ranges, i, group, count, sums, channel * layer.shape.plane() + y * layer.shape.width + x,
                      layer.forward[static_cast<size_t>(g)].width(p), layer.shape.plane());
        }
      }
    }
}

// The other affine layers and the functions, one example at a time, in float64.
template <class T>
void elementwise(const BoundNetwork<T>& network, int64_t i, ExampleState<T>& example, const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const Outward out(options.sound);
  LayerState<T>& state = example[i];
  const LayerState<T>& first = example[layer.inputs[0]];
  const auto n = static_cast<size_t>(layer.shape.size());
  const double share = out.gamma(layer.roundings, options.deployed);
  const auto widen = [&](size_t k, double error) {
    state.lower[k] = out.add_down(state.lower[k], -error);
    state.upper[k] = out.add_up(state.upper[k], error);
  };
  switch (layer.kind) {
    case Kind::kScale:
      for (size_t k = 0; k < n; ++k) {
        const auto s = static_cast<double>(layer.scale[k]);
        const double l = first.lower[k], u = first.upper[k], m = magnitude(l, u), t = layer.shift[k];
        state.sum[k] = out.mul_up(std::fabs(s), m);
        state.lower[k] = out.add_down(out.mul_down(s, s >= 0 ? l : u), t);
        state.upper[k] = out.add_up(out.mul_up(s, s >= 0 ? u : l), t);
        if (!out.sound()) continue;
        double error = out.add_up(out.mul_up(layer.scale_error[k], m), layer.shift_error[k]);
        error = out.add_up(error, out.mul_up(share, state.sum[k] + std::fabs(t) + kFlushed));
        widen(k, error);
      }
      break;
    case Kind::kGather:
      for (size_t k = 0; k < n; ++k) {
        int64_t from = layer.index[k];
        state.lower[k] = state.upper[k] = state.sum[k] = 0;
        for (const int64_t input : layer.inputs) {
          const int64_t size = network.layer(input).shape.size();
          if (from >= 0 && from < size) {
            const LayerState<T>& source = example[input];
            state.lower[k] = source.lower[static_cast<size_t>(from)];
            state.upper[k] = source.upper[static_cast<size_t>(from)];
            state.sum[k] = magnitude(state.lower[k], state.upper[k]);
          }
          from -= size;
          if (from < 0) break;
        }
      }
      break;
    case Kind::kSum:
      for (size_t k = 0; k < n; ++k) {
        double lower = 0, upper = 0, sum = 0;
        for (size_t j = 0; j < layer.inputs.size(); ++j) {
          const LayerState<T>& source = example[layer.inputs[j]];
          const double l = layer.signs[j] * source.lower[k], u = layer.signs[j] * source.upper[k];
          lower = out.add_down(lower, std::fmin(l, u));
          upper = out.add_up(upper, std::fmax(l, u));
          sum = out.add_up(sum, magnitude(l, u));
        }
        state.lower[k] = lower, state.upper[k] = upper, state.sum[k] = sum;
        if (share > 0) widen(k, out.mul_up(share, sum + kFlushed));
      }
      break;
    case Kind::kActivation:
      if (layer.function == Function::kRule) {
        std::vector<double> lines(4 * n);
        layer.rule(static_cast<int64_t>(n), first.lower.data(), first.upper.data(), lines.data(), lines.data() + n,
                   lines.data() + 2 * n, lines.data() + 3 * n, state.lower.data(), state.upper.data());
        break;
      }
      for (size_t k = 0; k < n; ++k) {
        const double l = first.lower[k], u = first.upper[k];
        if (layer.function == Function::kClamp) {
          state.lower[k] = std::isnan(l) ? l : std::fmin(std::fmax(l, layer.low), layer.high);
          state.upper[k] = std::isnan(u) ? u : std::fmin(std::fmax(u, layer.low), layer.high);
        } else {
          state.lower[k] = l >= 0 ? l : layer.slope == 0 ? 0 : out.mul_down(layer.slope, l);
          state.upper[k] = u >= 0 ? u : layer.slope == 0 ? 0 : out.mul_up(layer.slope, u);
        }
      }
      break;
    case Kind::kMaxPool:
      for (size_t k = 0; k < n; ++k) {
        double lower = -INFINITY, upper = -INFINITY;
        for (int64_t j = 0; j < layer.window; ++j) {
          const int64_t from = layer.windows[k * static_cast<size_t>(layer.window) + static_cast<size_t>(j)];
          if (from < 0) continue;
          const double l = first.lower[static_cast<size_t>(from)], u = first.upper[static_cast<size_t>(from)];
          lower = std::isnan(l) || l > lower ? l : lower;
          upper = std::isnan(u) || u > upper ? u : upper;
        }
        state.lower[k] = lower, state.upper[k] = upper;
      }
      break;
    default:
      break;
  }
}

}  // namespace

template <class T>
void propagate_intervals(const BoundNetwork<T>& network, int64_t i, ExampleState<T>* const* group, int64_t count,
                         const BoundOptions& options) {
  const Layer<T>& layer = network.layer(i);
  const auto n = static_cast<size_t>(layer.shape.size());
  for (int64_t e = 0; e < count; ++e) {
    LayerState<T>& state = (*group[e])[i];
    state.lower.resize(n), state.upper.resize(n);
    if (layer.affine()) state.sum.resize(n);
  }
  if (layer.kind == Kind::kLinear)
    linear(network, i, group, count, options);
  else if (layer.kind == Kind::kConv)
    convolution(network, i, group, count, options);
  else
    for (int64_t e = 0; e < count; ++e) elementwise(network, i, *group[e], options);
  const double share = layer.kind == Kind::kActivation ? Outward(true).gamma(layer.roundings, options.deployed) : 0;
  // Where something overflowed, or may overflow where it is deployed, nothing is known.
  const double most = options.deployed > 0 ? options.deployed_max : INFINITY;
  for (int64_t e = 0; e < count; ++e) {
    LayerState<T>& state = (*group[e])[i];
    for (size_t k = 0; k < n; ++k) {
      if (share > 0) {
        const double error = deployed_error(layer, state.lower[k], state.upper[k], share);
        state.lower[k] -= error, state.upper[k] += error;
      }
      const bool large = layer.affine() && state.sum[k] > most;
      if (!(state.lower[k] <= state.upper[k]) || state.lower[k] < -most || state.upper[k] > most || large)
        state.lower[k] = -INFINITY, state.upper[k] = INFINITY;
    }
  }
}

template void propagate_intervals<float>(const BoundNetwork<float>&, int64_t, ExampleState<float>* const*, int64_t,
                                         const BoundOptions&);
template void propagate_intervals<double>(const BoundNetwork<double>&, int64_t, ExampleState<double>* const*, int64_t,
                                          const BoundOptions&);

}  // namespace pyrobust::cpu

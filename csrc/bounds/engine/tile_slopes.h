// Lower slopes that each row of a tile chooses for itself, and their gradient (alpha-CROWN; Xu et al., 2021).
//
// A bound is the sum, over all neurons, of a coefficient a times the relaxation that its sign takes, at the row's
// minimiser: the input where the row's linear bound is smallest. Its derivative by the lower slope of a neuron with
// a > 0 is a times the neuron's value at the minimiser, which goes forward through the same relaxations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "bounds/engine/concretize.h"
#include "bounds/engine/forward_products.h"
#include "bounds/engine/kernels.h"
#include "bounds/engine/receptive_field.h"
#include "bounds/engine/tile_arena.h"

namespace pyrobust::cpu {

template <class T>
class TileSlopes {
 public:
  TileSlopes(const BoundNetwork<T>& network, const BoundOptions& options)
      : network_(network), options_(options), layers_(static_cast<size_t>(network.size())) {}

  // Starts a tile whose coefficients have these windows, empty for the layers that it does not reach, at the slopes of
  // CROWN.
  void begin(const ExampleState<T>& example, const std::vector<Window>& windows) {
    example_ = &example, windows_ = windows, last_ = 0;
    for (int64_t i = 1; i < network_.size(); ++i) {
      Choice& choice = layers_[static_cast<size_t>(i)];
      choice.slots.clear();
      if (!network_.layer(i).nonlinear() || window(i).empty()) continue;
      if (network_.layer(i).kind == Kind::kProduct) {
        choice.a.resize(static_cast<size_t>(size_of(i) * L));
        continue;
      }
      list_slots(i, choice);
      const auto n = choice.slots.size() * static_cast<size_t>(L);
      choice.a.assign(n, T(0)), choice.mean.assign(n, T(0)), choice.square.assign(n, T(0)), choice.slope.resize(n);
      for (size_t s = 0; s < choice.slots.size(); ++s) {
        const int64_t free = choice.slots[s].free;
        const T slope = free < 0 ? T(0) : state(i).free[static_cast<size_t>(free)].slope;
        std::fill_n(choice.slope.data() + s * static_cast<size_t>(L), L, slope);
        if (free >= 0) last_ = std::max(last_, network_.layer(i).inputs[0]);
      }
    }
    point_.resize(static_cast<size_t>(network_.layer(0).shape.size() * L));
    clear_input();
  }

  // Whether any slope can be chosen.
  bool any() const { return last_ > 0; }

  // Keeps the coefficients a of layer i before the relaxations of the example change them.
  void take(int64_t i, const T* a) {
    Choice& choice = layers_[static_cast<size_t>(i)];
    if (network_.layer(i).kind == Kind::kProduct) {
      std::memcpy(choice.a.data(), a, choice.a.size() * sizeof(T));
      return;
    }
    for (size_t s = 0; s < choice.slots.size(); ++s)
      std::memcpy(choice.at(choice.a, s), a + choice.slots[s].position * L, static_cast<size_t>(L) * sizeof(T));
  }

  // Relaxes the neurons of layer i whose slopes are chosen, which the relaxations of the example leave out.
  void relax(int64_t i, T* a, double* bias) const {
    const Choice& choice = layers_[static_cast<size_t>(i)];
    for (size_t s = 0; s < choice.slots.size(); ++s) {
      const Slot& slot = choice.slots[s];
      if (slot.free < 0) continue;
      const FreeSlope<T>& free = state(i).free[static_cast<size_t>(slot.free)];
      const T *const from = choice.at(choice.a, s), *const slope = choice.at(choice.slope, s);
      T* const to = a + slot.position * L;
      for (int64_t lane = 0; lane < L; ++lane) {
        const bool chosen = (from[lane] < 0) == free.above;
        to[lane] = from[lane] * (chosen ? slope[lane] : free.fixed_slope);
        bias[lane] += static_cast<double>(from[lane]) * (chosen ? intercept(free, slope[lane]) : free.fixed_intercept);
      }
    }
  }

  // Takes the coefficients a [n][kLanes] of the inputs from k on.
  void take_input(const T* a, int64_t n, int64_t k) {
    std::memcpy(point_.data() + k * L, a, static_cast<size_t>(n * L) * sizeof(T));
  }

  // Moves every slope along its gradient: step `step`, from 1 on, of Adam (Kingma and Ba, 2015).
  void climb(int64_t step, double epsilon, TileMemory<T>& memory) {
    minimise(epsilon);
    values_.assign(static_cast<size_t>(network_.size()), nullptr);
    values_[0] = point_.data();
    for (int64_t i = 1; i <= last_; ++i)
      if (!window(i).empty()) values_[static_cast<size_t>(i)] = forward(i, memory);
    const SlopeSearch& search = *options_.search;
    const auto steps = static_cast<double>(step);
    const auto first = static_cast<T>(search.first), second = static_cast<T>(search.second);
    const double corrected = std::sqrt(1 - std::pow(search.second, steps)) / (1 - std::pow(search.first, steps));
    const auto rate = static_cast<T>(search.rate * std::pow(search.decay, steps - 1) * corrected);
    for (int64_t i = 1; i < network_.size(); ++i) {
      Choice& choice = layers_[static_cast<size_t>(i)];
      for (size_t s = 0; s < choice.slots.size(); ++s) {
        const Slot& slot = choice.slots[s];
        if (slot.free < 0) continue;
        const FreeSlope<T>& free = state(i).free[static_cast<size_t>(slot.free)];
        const T* const z = values_[static_cast<size_t>(network_.layer(i).inputs[0])] + slot.source * L;
        const T* const a = choice.at(choice.a, s);
        T *const slope = choice.at(choice.slope, s), *const mean = choice.at(choice.mean, s),
                 *const square = choice.at(choice.square, s);
        const auto pull = static_cast<T>(free.pull);
        for (int64_t lane = 0; lane < L; ++lane) {
          const T bounded = free.above ? std::min(a[lane], T(0)) : std::max(a[lane], T(0));
          T gradient = bounded * (z[lane] + pull);
          gradient = std::fabs(gradient) <= kLargest ? gradient : T(0);
          mean[lane] = first * mean[lane] + (1 - first) * gradient;
          square[lane] = second * square[lane] + (1 - second) * gradient * gradient;
          const T moved = slope[lane] + rate * mean[lane] / (std::sqrt(square[lane]) + kSmallest);
          // Only slopes in this interval bound the function; NaN becomes the smallest one.
          slope[lane] = moved >= free.least ? std::min(moved, free.most) : free.least;
        }
      }
    }
    for (int64_t i = 1; i <= last_; ++i)
      if (values_[static_cast<size_t>(i)] != nullptr) memory.give_back(values_[static_cast<size_t>(i)]);
    clear_input();
  }

 private:
  static constexpr int64_t L = kLanes<T>;
  // Squares of larger gradients may overflow; a gradient of zero moves nothing.
  static constexpr T kLargest = sizeof(T) == 4 ? T(1e18) : T(1e150), kSmallest = std::numeric_limits<T>::min();

  // A neuron with two lines: its place in the window, the place of what it reads in the window there, its number, and
  // its place among the example's free slopes, or -1 if both lines are the example's.
  struct Slot {
    int64_t position, source, neuron, free;
  };
  struct Choice {
    std::vector<Slot> slots;
    std::vector<T> slope, mean, square, a;  // [slots][kLanes]; for a product, a of every neuron in the window
    static T* at(std::vector<T>& part, size_t s) { return part.data() + s * static_cast<size_t>(L); }
    static const T* at(const std::vector<T>& part, size_t s) { return part.data() + s * static_cast<size_t>(L); }
  };

  // For the line of a chosen slope.
  static double intercept(const FreeSlope<T>& free, T slope) {
    const auto s = static_cast<double>(slope);
    return s * (s < 0 ? free.pull_negative : free.pull) - free.push;
  }

  const Window& window(int64_t i) const { return windows_[static_cast<size_t>(i)]; }
  const LayerState<T>& state(int64_t i) const { return (*example_)[i]; }
  int64_t size_of(int64_t i) const { return network_.layer(i).shape.channels * window(i).height() * window(i).width(); }
  // The part of a layer in its window, as a layer.
  Shape inside(int64_t i) const { return {network_.layer(i).shape.channels, window(i).height(), window(i).width()}; }
  // Where the row of a window begins, at (channel, y, x) of the layer. The input's coefficients are kept for the whole
  // layer.
  int64_t place(int64_t i, int64_t c, int64_t y, int64_t x) const {
    const Window w = i == 0 ? Window::all(network_.layer(0).shape) : window(i);
    return (c * w.height() + y - w.y0) * w.width() + x - w.x0;
  }

  // Calls f(position, neuron, c, y) for the rows of the window of layer i.
  template <class F>
  void for_rows(int64_t i, const F& f) const {
    const Shape& shape = network_.layer(i).shape;
    const Window& w = window(i);
    int64_t position = 0;
    for (int64_t c = 0; c < shape.channels; ++c)
      for (int64_t y = w.y0; y < w.y1; ++y, position += w.width())
        f(position, c * shape.plane() + y * shape.width + w.x0, c, y);
  }

  void clear_input() {
    for_rows(0, [&](int64_t, int64_t k, int64_t, int64_t) {
      std::fill_n(point_.data() + k * L, window(0).width() * L, T(0));
    });
  }

  void list_slots(int64_t i, Choice& choice) const {
    const LayerState<T>& own = state(i);
    const int64_t input = network_.layer(i).inputs[0], width = window(i).width();
    const bool pools = network_.layer(i).kind == Kind::kMaxPool;
    size_t free = 0;
    for_rows(i, [&](int64_t position, int64_t neuron, int64_t c, int64_t y) {
      const int64_t source = pools ? 0 : place(input, c, y, window(i).x0);
      if (!own.stable_but_free) {
        for (int64_t x = 0; x < width; ++x)
          choice.slots.push_back(
              {position + x, pools ? own.picked[static_cast<size_t>(neuron + x)] : source + x, neuron + x, -1});
        return;
      }
      const auto before = [](const FreeSlope<T>& slope, int64_t k) { return slope.neuron < k; };
      free = static_cast<size_t>(std::lower_bound(own.free.begin(), own.free.end(), neuron, before) - own.free.begin());
      for (; free < own.free.size() && own.free[free].neuron < neuron + width; ++free) {
        const int64_t x = own.free[free].neuron - neuron;
        choice.slots.push_back({position + x, source + x, neuron + x, static_cast<int64_t>(free)});
      }
    });
  }

  // Turns the input's coefficients into the point of the input set where the row is smallest.
  void minimise(double epsilon) {
    const LayerState<T>& input = state(0);
    double box[L] = {}, ball[L] = {}, squares[L] = {}, largest[L] = {};
    int64_t farthest[L] = {};
    const bool boxes = options_.norm == Norm::kLinf;
    const auto center = [&](int64_t k) {
      return (static_cast<double>(input.center_low[static_cast<size_t>(k)]) +
              static_cast<double>(input.center_high[static_cast<size_t>(k)])) /
             2;
    };
    const auto corner = [&](int64_t k, T a) { return (a >= 0 ? input.low : input.high)[static_cast<size_t>(k)]; };
    const auto for_coefficients = [&](const auto& f) {
      for_rows(0, [&](int64_t, int64_t first, int64_t, int64_t) {
        for (int64_t k = first; k < first + window(0).width(); ++k)
          for (int64_t lane = 0; lane < L; ++lane) f(k, lane, point_[static_cast<size_t>(k * L + lane)]);
      });
    };
    if (boxes) return for_coefficients([&](int64_t k, int64_t, T& a) { a = corner(k, a); });
    for_coefficients([&](int64_t k, int64_t lane, const T& a) {
      const auto coefficient = static_cast<double>(a);
      box[lane] += coefficient * static_cast<double>(corner(k, a)), ball[lane] += coefficient * center(k);
      squares[lane] += coefficient * coefficient;
      if (std::fabs(coefficient) > largest[lane]) largest[lane] = std::fabs(coefficient), farthest[lane] = k;
    });
    for_coefficients([&](int64_t k, int64_t lane, T& a) {
      const double dual = options_.norm == Norm::kL1 ? largest[lane] : std::sqrt(squares[lane]);
      double step = dual > 0 ? static_cast<double>(a) / dual : 0;
      if (options_.norm == Norm::kL1) step = k == farthest[lane] ? std::copysign(1.0, step) : 0;
      // the bound is the better of the two
      a = box[lane] >= ball[lane] - epsilon * dual ? corner(k, a) : static_cast<T>(center(k) - epsilon * step);
    });
  }

  // The values of layer i in its window, in memory that the caller gives back.
  T* forward(int64_t i, TileMemory<T>& memory) {
    const Layer<T>& layer = network_.layer(i);
    T* const out = memory.take(size_of(i) * L);
    const T* const z = values_[static_cast<size_t>(layer.inputs[0])];
    switch (layer.kind) {
      case Kind::kLinear:
      case Kind::kConv:
        multiply(i, z, out);
        break;
      case Kind::kScale:
      case Kind::kSum:
        combine(i, out);
        break;
      case Kind::kGather:
        gather(i, out);
        break;
      case Kind::kActivation:
      case Kind::kMaxPool:
        apply(i, z, out);
        return out;
      case Kind::kProduct:
        multiply_factors(i, out);
        return out;
      case Kind::kInput:
        break;
    }
    // The constants of a fused layer are in the relaxation above it.
    if (!layer.fused)
      for_rows(i, [&](int64_t position, int64_t neuron, int64_t, int64_t) {
        for (int64_t x = 0; x < window(i).width(); ++x) {
          const auto k = static_cast<size_t>(neuron + x);
          const T middle = state(i).low[k] / 2 + state(i).high[k] / 2;
          for (int64_t lane = 0; lane < L; ++lane) out[(position + x) * L + lane] += middle;
        }
      });
    return out;
  }

  void multiply(int64_t i, const T* z, T* out) const {
    const Layer<T>& layer = network_.layer(i);
    const int64_t input = layer.inputs[0];
    const Window from = input == 0 ? Window::all(network_.layer(0).shape) : window(input);
    const Shape shape = inside(i);
    // The window of the outputs as a whole: its first output reads where the padding of the window of inputs begins.
    ConvSizes sizes = layer.conv;
    sizes.pad_h += from.y0 - window(i).y0 * sizes.stride_h, sizes.pad_w += from.x0 - window(i).x0 * sizes.stride_w;
    if (from.empty()) return std::fill(out, out + size_of(i) * L, T(0)), void();
    const Shape read{network_.layer(input).shape.channels, from.height(), from.width()};
    for_panels(layer, sizes, shape, read, [&](const ForwardPanel& panel) {
      int64_t at[kPanel];
      for (int64_t j = 0; j < kPanel; ++j) at[j] = j * panel.apart * L;
      engine_kernels<T>().multiply(z + panel.offset, panel.fan_in.data(), static_cast<int64_t>(panel.fan_in.size()),
                                   layer.forward[panel.group].panel(panel.panel), panel.width, out + panel.first * L,
                                   at, false);
    });
  }

  // A scale, or a sum with signs.
  void combine(int64_t i, T* out) const {
    const Layer<T>& layer = network_.layer(i);
    for_rows(i, [&](int64_t position, int64_t neuron, int64_t c, int64_t y) {
      T* const to = out + position * L;
      for (size_t j = 0; j < layer.inputs.size(); ++j) {
        const T* const z =
            values_[static_cast<size_t>(layer.inputs[j])] + place(layer.inputs[j], c, y, window(i).x0) * L;
        const T sign = layer.kind == Kind::kScale ? T(1) : static_cast<T>(layer.signs[j]);
        const T* const factor = layer.kind == Kind::kScale ? layer.scale.data() + neuron : &sign;
        engine_kernels<T>().scale(z, window(i).width(), factor, layer.kind == Kind::kScale ? 1 : 0, to, j > 0);
      }
    });
  }

  void gather(int64_t i, T* out) const {
    const Layer<T>& layer = network_.layer(i);
    for_rows(i, [&](int64_t position, int64_t neuron, int64_t, int64_t) {
      for (int64_t x = 0; x < window(i).width(); ++x) {
        T* const to = out + (position + x) * L;
        std::fill_n(to, L, T(0));
        int64_t from = layer.index[static_cast<size_t>(neuron + x)];
        for (const int64_t input : layer.inputs) {
          const Shape& shape = network_.layer(input).shape;
          const int64_t size = shape.size();
          if (from >= 0 && from < size) {
            const int64_t at = input == 0 ? from : position_in(shape, window(input), from);
            std::memcpy(to, values_[static_cast<size_t>(input)] + at * L, static_cast<size_t>(L) * sizeof(T));
          }
          from -= size;
          if (from < 0) break;
        }
      }
    });
  }

  // The plane of a product that the row uses.
  void multiply_factors(int64_t i, T* out) const {
    const LayerState<T>& own = state(i);
    const auto& inputs = network_.layer(i).inputs;
    const std::vector<T>& a = layers_[static_cast<size_t>(i)].a;
    for_rows(i, [&](int64_t position, int64_t neuron, int64_t c, int64_t y) {
      const T* const first = values_[static_cast<size_t>(inputs[0])] + place(inputs[0], c, y, window(i).x0) * L;
      const T* const second = values_[static_cast<size_t>(inputs[1])] + place(inputs[1], c, y, window(i).x0) * L;
      for (int64_t x = 0; x < window(i).width(); ++x) {
        const auto k = static_cast<size_t>(neuron + x);
        for (int64_t lane = 0; lane < L; ++lane) {
          const bool above = a[static_cast<size_t>((position + x) * L + lane)] < 0;
          const T p = above ? own.upper_slope[k] : own.lower_slope[k];
          const T q = above ? own.second_upper_slope[k] : own.second_lower_slope[k];
          const T constant = above ? own.upper_intercept[k] : own.lower_intercept[k];
          out[(position + x) * L + lane] = p * first[x * L + lane] + q * second[x * L + lane] + constant;
        }
      }
    });
  }

  // The relaxation of an activation or a maximum that the row uses.
  void apply(int64_t i, const T* z, T* out) const {
    const LayerState<T>& own = state(i);
    const Choice& choice = layers_[static_cast<size_t>(i)];
    const int64_t input = network_.layer(i).inputs[0];
    if (own.stable_but_free)
      for_rows(i, [&](int64_t position, int64_t neuron, int64_t c, int64_t y) {
        const T* const from = z + place(input, c, y, window(i).x0) * L;
        for (int64_t x = 0; x < window(i).width(); ++x) {
          const auto k = static_cast<size_t>(neuron + x);
          const T middle = own.lower_intercept[k] / 2 + own.upper_intercept[k] / 2;
          for (int64_t lane = 0; lane < L; ++lane)
            out[(position + x) * L + lane] = own.lower_slope[k] * from[x * L + lane] + middle;
        }
      });
    for (size_t s = 0; s < choice.slots.size(); ++s) {
      const Slot& slot = choice.slots[s];
      const T *const a = choice.at(choice.a, s), *const chosen = choice.at(choice.slope, s);
      const auto k = static_cast<size_t>(slot.neuron);
      const FreeSlope<T>* const free = slot.free < 0 ? nullptr : &own.free[static_cast<size_t>(slot.free)];
      for (int64_t lane = 0; lane < L; ++lane) {
        const bool above = a[lane] < 0;
        T slope = above ? own.upper_slope[k] : own.lower_slope[k];
        T constant = above ? own.upper_intercept[k] : own.lower_intercept[k];
        if (free != nullptr) {
          const bool choice_made = above == free->above;
          slope = choice_made ? chosen[lane] : free->fixed_slope;
          constant = static_cast<T>(choice_made ? intercept(*free, slope) : free->fixed_intercept);
        }
        out[slot.position * L + lane] = slope * z[slot.source * L + lane] + constant;
      }
    }
  }

  const BoundNetwork<T>& network_;
  BoundOptions options_;
  const ExampleState<T>* example_ = nullptr;
  std::vector<Window> windows_;
  std::vector<Choice> layers_;
  std::vector<T> point_;  // for the whole input: coefficients, then the minimiser
  std::vector<T*> values_;
  int64_t last_ = 0;  // the last layer whose values are needed
};

}  // namespace pyrobust::cpu

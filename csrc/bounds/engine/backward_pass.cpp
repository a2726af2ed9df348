#include "bounds/engine/backward_pass.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "bounds/engine/backward_products.h"
#include "bounds/engine/concretize.h"
#include "bounds/engine/kernels.h"
#include "bounds/engine/receptive_field.h"
#include "bounds/engine/schedule.h"
#include "bounds/engine/tile_arena.h"
#include "bounds/engine/tile_slopes.h"

namespace pyrobust::cpu {
namespace {

// The coefficients of a tile at one layer: [channels][window height][window width][kLanes].
template <class T>
struct Part {
  Window window;
  int64_t consumers = 0;           // layers that write to this one
  T* a = nullptr;                  // null until the first layer writes
  const uint8_t* alive = nullptr;  // [size of the layer]: neurons whose coefficients can differ from zero
};

}  // namespace

template <class T>
class BackwardPass<T>::Impl {
 public:
  Impl(const BoundNetwork<T>& network, const BoundOptions& options, bool stop, bool single)
      : network_(network),
        options_(options),
        stop_(stop),
        single_(single),
        sole_stop_(stop ? -1 : sole_stop(network)),
        part_(static_cast<size_t>(network.size())),
        concretization_(options),
        products_(single ? 1 : network.size()) {
    if (options.search && !stop) slopes_.emplace(network, options);
  }

  void run(const Tile<T>& tile, const ExampleState<T>& example, double* bounds, double* intervals) {
    tile_ = &tile, example_ = &example, intervals_ = intervals;
    if (!slopes_) return propagate(bounds);
    slopes_->begin(example, windows());
    propagate(bounds);
    intervals_ = nullptr;
    if (slopes_->any()) search(bounds);
  }

 private:
  static constexpr int64_t L = kLanes<T>;

  // Writes to bounds[lane] a lower bound of the function, with the slopes that the rows have now.
  void propagate(double* bounds) {
    const Tile<T>& tile = *tile_;
    const ExampleState<T>& example = *example_;
    std::fill(bias_, bias_ + L, 0.0);
    std::fill(start_, start_ + L, 0.0);
    concretization_.clear();
    place_windows();
    start();
    for (int64_t i = tile.layer; i >= 0; --i)
      if (part(i).consumers > 0) visit(i);
    concretization_.finish(example.epsilon, size_of(0), bias_);
    store(bias_, bounds);
    std::fill(part_.begin(), part_.end(), Part<T>());
    for (const int64_t k : marked_) alive_[static_cast<size_t>(k)] = 0;
    marked_.clear();
  }

  // The bounds of the tile's functions whose terms add up to these numbers.
  void store(const double* sums, double* bounds) const {
    const Outward out(options_.sound);
    for (int64_t lane = 0; lane < tile_->count; ++lane) {
      const double total = out.down(out.add_down(sums[lane], start_[lane]) - example_->underflow_error);
      bounds[lane] = std::isfinite(total) ? total : -INFINITY;
    }
  }

  // Improves the bounds by better slopes; each step uses the gradient at the last slopes.
  void search(double* bounds) {
    const SlopeSearch& search = *options_.search;
    const bool neurons = tile_->paired, decides = neurons || search.decides;
    int64_t idle[L] = {};  // steps since the last gain
    double next[L];
    for (int64_t step = 1; step <= search.iterations; ++step) {
      bool ended = true;
      for (int64_t lane = 0; lane < tile_->count; ++lane) {
        // A neuron that is known to be stable needs no further improvement of either bound.
        const bool decided = decides && (bounds[lane] > 0 || (neurons && bounds[lane ^ 1] > 0));
        ended &= decided || idle[lane] >= search.patience;
      }
      if (ended || std::chrono::steady_clock::now() >= search.deadline) return;
      slopes_->climb(step, example_->epsilon, memory_);
      propagate(next);
      for (int64_t lane = 0; lane < tile_->count; ++lane) {
        idle[lane] = next[lane] > bounds[lane] + search.least_gain * (1 + std::fabs(bounds[lane])) ? 0 : idle[lane] + 1;
        if (next[lane] > bounds[lane]) bounds[lane] = next[lane];
      }
    }
  }

  // The windows of the tile's coefficients, empty for layers that it does not reach.
  std::vector<Window> windows() {
    place_windows();
    std::vector<Window> result(part_.size());
    for (size_t i = 0; i < part_.size(); ++i)
      if (part_[i].consumers > 0) result[i] = part_[i].window;
    std::fill(part_.begin(), part_.end(), Part<T>());
    return result;
  }

  Part<T>& part(int64_t i) { return part_[static_cast<size_t>(i)]; }
  bool stops(const Layer<T>& layer) const { return stop_ && layer.stops_intervals(); }

  // Computes the window of every layer below that the tile depends on, and how many layers write to each.
  void place_windows() {
    const Layer<T>& first = network_.layer(tile_->layer);
    Part<T>& start = part(tile_->layer);
    start.consumers = 1;
    start.window = Window::all(first.shape);
    if (tile_->paired) {
      start.window = {};
      for (int64_t lane = 0; lane < tile_->count; ++lane) {
        const int64_t place = tile_->neuron[lane] % first.shape.plane();
        const int64_t y = place / first.shape.width, x = place % first.shape.width;
        start.window.join({y, y + 1, x, x + 1});
      }
    }
    for (int64_t i = tile_->layer; i > 0; --i) {
      const Layer<T>& layer = network_.layer(i);
      if (part(i).consumers == 0 || stops(layer)) continue;
      const Window window = part(i).window;
      if (window.empty()) {  // only padding
        part(i).consumers = 0;
        continue;
      }
      for (const int64_t input : layer.inputs) {
        const Shape& shape = network_.layer(input).shape;
        Window reached = window;
        if (layer.kind == Kind::kConv) {
          reached = reached_through(layer.conv, window, shape);
        } else if (layer.kind == Kind::kLinear || layer.kind == Kind::kGather || layer.kind == Kind::kMaxPool) {
          reached = Window::all(shape);
        }
        if (layer.kind != Kind::kGather || window == Window::all(layer.shape)) part(input).window.join(reached);
        ++part(input).consumers;
      }
      if (layer.kind == Kind::kGather && !(window == Window::all(layer.shape)))
        for_gathered(i, [&](int64_t, int64_t input, int64_t from) {
          const Shape& shape = network_.layer(input).shape;
          const int64_t y = from % shape.plane() / shape.width, x = from % shape.width;
          part(input).window.join({y, y + 1, x, x + 1});
        });
    }
  }

  int64_t size_of(int64_t i) {
    return network_.layer(i).shape.channels * part(i).window.height() * part(i).window.width();
  }

  // Returns the memory of layer i's part, zeroed if several layers write to it or one layer writes only some of it.
  T* memory(int64_t i, bool zeros) {
    Part<T>& p = part(i);
    if (p.a == nullptr) {
      p.a = memory_.take((size_of(i) + 1) * L);  // a spare neuron after the last one
      if (zeros || p.consumers > 1) std::memset(p.a, 0, static_cast<size_t>(size_of(i) * L) * sizeof(T));
    }
    return p.a;
  }

  void start() {
    const int64_t i = tile_->layer, plane = network_.layer(i).shape.plane(), width = network_.layer(i).shape.width;
    outputs_.clear();
    if (tile_->rows == nullptr && network_.layer(i).kind == Kind::kLinear) return start_at_outputs(i);
    T* const a = memory(i, true);
    const Window& window = part(i).window;
    if (tile_->rows != nullptr) {
      const int64_t n = size_of(i);
      for (int64_t lane = 0; lane < tile_->count; ++lane) {
        const T* const row = tile_->rows + tile_->neuron[lane] * n;
        for (int64_t k = 0; k < n; ++k) a[k * L + lane] = tile_->sign[lane] * row[k];
        add_origins(row, n, lane);
      }
      return;
    }
    alive_.resize(std::max(alive_.size(), static_cast<size_t>(network_.layer(i).shape.size())));
    for (int64_t lane = 0; lane < tile_->count; ++lane) {
      const auto put = [&](int64_t k, T value) {
        const int64_t channel = k / plane, y = k % plane / width, x = k % width;
        const int64_t position = (channel * window.height() + y - window.y0) * window.width() + x - window.x0;
        a[position * L + lane] = value;
        alive_[static_cast<size_t>(k)] = 1;
        marked_.push_back(k);
      };
      start_lane(i, lane, put);
    }
    part(i).alive = alive_.data();
  }

  // Keeps only the coefficients of those outputs of a linear layer that occur in the tile; the layer may have many
  // others.
  void start_at_outputs(int64_t i) {
    for (int64_t lane = 0; lane < tile_->count; ++lane)
      outputs_.push_back(other_neuron(tile_->neuron[lane], tile_->label));
    if (tile_->label >= 0) outputs_.push_back(tile_->label);
    std::sort(outputs_.begin(), outputs_.end());
    outputs_.erase(std::unique(outputs_.begin(), outputs_.end()), outputs_.end());
    const auto n = static_cast<int64_t>(outputs_.size()) * L;
    T* const a = part(i).a = memory_.take(n);
    std::fill_n(a, n, T(0));
    for (int64_t lane = 0; lane < tile_->count; ++lane)
      start_lane(i, lane, [&](int64_t k, T value) {
        a[(std::lower_bound(outputs_.begin(), outputs_.end(), k) - outputs_.begin()) * L + lane] = value;
      });
  }

  // Calls put(neuron, coefficient) for the neurons of a lane, and adds the lane's value at their origins.
  template <class F>
  void start_lane(int64_t i, int64_t lane, const F& put) {
    const T sign = tile_->sign[lane];
    const int64_t label = tile_->label, k = other_neuron(tile_->neuron[lane], label);
    put(k, label < 0 ? sign : -sign);
    const double origin = origin_of(state(i), static_cast<size_t>(k));
    if (label < 0) {
      start_[lane] = static_cast<double>(sign) * origin;
      return;
    }
    put(label, sign);
    const double own = origin_of(state(i), static_cast<size_t>(label));
    if (origins_of(state(i)) != nullptr)
      add_origins(own - origin, std::fabs(own) + std::fabs(origin), network_.layer(i).shape.size(), lane);
  }

  // Computes a lower bound of a row's value at the origins of the tile's layer.
  void add_origins(const T* row, int64_t n, int64_t lane) {
    const std::vector<double>& origin = state(tile_->layer).origin;
    if (origin.empty()) return;
    double value = 0, size = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double product = static_cast<double>(row[k]) * origin[static_cast<size_t>(k)];
      value += product, size += std::fabs(product);
    }
    add_origins(value, size, n, lane);
  }
  // The same for a sum of n products, computed in float64, whose magnitudes add up to `size`.
  void add_origins(double value, double size, int64_t n, int64_t lane) {
    const Outward out(options_.sound);
    start_[lane] = out.add_down(static_cast<double>(tile_->sign[lane]) * value,
                                -out.mul_up(out.gamma(2 * n + 2, Unit<double>::kRoundoff), size));
  }

  void visit(int64_t i) {
    const Layer<T>& layer = network_.layer(i);
    Part<T>& p = part(i);
    if (p.a == nullptr) memory(i, true);
    if (i == tile_->layer && !outputs_.empty()) {
      low_.resize(outputs_.size()), high_.resize(outputs_.size());
      for (size_t j = 0; j < outputs_.size(); ++j) {
        const auto k = static_cast<size_t>(outputs_[j]);
        low_[j] = state(i).low[k], high_[j] = state(i).high[k];
      }
      engine_kernels<T>().dot(p.a, static_cast<int64_t>(low_.size()), low_.data(), high_.data(), bias_);
      products_.linear(layer, step(i, true), outputs_);
      memory_.give_back(p.a);
      return;
    }
    if (layer.kind == Kind::kInput) {
      if (!concretization_.any()) take_in(i);
      memory_.give_back(p.a);
      return;
    }
    if (stops(layer)) {
      add_range(i, bias_);
      memory_.give_back(p.a);
      return;
    }
    if (i == sole_stop_ && intervals_ != nullptr) {
      double sums[L];
      std::copy(bias_, bias_ + L, sums);
      add_range(i, sums);
      store(sums, intervals_);
    }
    if (layer.affine() && (!layer.fused || i == tile_->layer))
      for_runs(i, [&](T* a, int64_t n, int64_t k) {
        engine_kernels<T>().dot(a, n, state(i).low.data() + k, state(i).high.data() + k, bias_);
      });
    switch (layer.kind) {
      case Kind::kLinear:
        products_.linear(layer, step(i, true));
        break;
      case Kind::kConv:
        convolution(i);
        break;
      case Kind::kScale:
        for_runs(i, [&](T* a, int64_t n, int64_t k) {
          engine_kernels<T>().scale(a, n, layer.scale.data() + k, 1, a, false);
        });
        hand_over(i, layer.inputs[0]);
        return;
      case Kind::kSum:
        sum(i);
        return;
      case Kind::kActivation:
        if (slopes_) slopes_->take(i, p.a);
        for_runs(i, [&](T* a, int64_t n, int64_t k) {
          const LayerState<T>& s = state(i);
          engine_kernels<T>().relax(a, n, s.lower_slope.data() + k, s.upper_slope.data() + k,
                                    s.lower_intercept.data() + k, s.upper_intercept.data() + k, bias_);
        });
        if (slopes_) slopes_->relax(i, p.a, bias_);
        p.alive = state(i).alive.data();
        hand_over(i, layer.inputs[0]);
        return;
      case Kind::kGather:
        gather(i);
        break;
      case Kind::kMaxPool:
        if (slopes_) slopes_->take(i, p.a);
        maximum(i);
        break;
      case Kind::kProduct:
        if (slopes_) slopes_->take(i, p.a);
        product(i);
        return;
      default:
        break;
    }
    memory_.give_back(p.a);
  }

  const LayerState<T>& state(int64_t i) const { return (*example_)[i]; }

  // Calls f(tile, n, k) for runs of neurons k .. k + n - 1 of the layer that are contiguous in the part.
  template <class F>
  void for_runs(int64_t i, const F& f) {
    const Shape& shape = network_.layer(i).shape;
    const Window& w = part(i).window;
    T* a = part(i).a;
    if (w.height() == shape.height && w.width() == shape.width) return f(a, shape.size(), 0);
    const int64_t rows = w.width() == shape.width ? 1 : w.height(),
                  run = w.width() == shape.width ? w.height() * w.width() : w.width();
    for (int64_t c = 0; c < shape.channels; ++c)
      for (int64_t y = 0; y < rows; ++y, a += run * L) f(a, run, c * shape.plane() + (w.y0 + y) * shape.width + w.x0);
  }

  // Moves the coefficients of layer i to its input, whose window covers the same neurons.
  void hand_over(int64_t i, int64_t input) {
    Part<T>&from = part(i), &to = part(input);
    if (to.consumers == 1) {
      to.a = from.a, to.alive = from.alive;
      return;
    }
    add(i, input, T(1));
    memory_.give_back(from.a);
  }

  // Adds sign times the part of layer i to the input's.
  void add(int64_t i, int64_t input, T sign) { add(i, part(i).a, input, sign); }
  // The same for coefficients a in the window of layer i.
  void add(int64_t i, const T* a, int64_t input, T sign) {
    const Window &from = part(i).window, &to = part(input).window;
    T* const target = memory(input, true);
    for (int64_t c = 0; c < network_.layer(i).shape.channels; ++c)
      for (int64_t y = from.y0; y < from.y1; ++y, a += from.width() * L) {
        T* const out = target + ((c * to.height() + y - to.y0) * to.width() + from.x0 - to.x0) * L;
        engine_kernels<T>().scale(a, from.width(), &sign, 0, out, true);
      }
  }

  bool whole(int64_t i) { return part(i).window == Window::all(network_.layer(i).shape); }

  // Whether coefficients of layer i can pass its input in the same step: a gather that only this layer reads.
  bool passes(int64_t i, int64_t input) {
    const Layer<T>& layer = network_.layer(input);
    return layer.kind == Kind::kGather && layer.inputs.size() == 1 && part(input).consumers == 1 && whole(i) &&
           whole(input) && whole(layer.inputs[0]);
  }
  void route(int64_t i, int64_t input, Route<T> way) {
    const Layer<T>& layer = network_.layer(input);
    way.low = state(input).low.data(), way.high = state(input).high.data(), way.index = layer.index.data();
    engine_kernels<T>().route(part(i).a, size_of(i), way, memory(layer.inputs[0], true), bias_);
    part(input).consumers = 0;
  }

  void sum(int64_t i) {
    const Layer<T>& layer = network_.layer(i);
    // The last input takes over the memory, the others get copies.
    int64_t heir = -1;
    for (size_t j = 0; j < layer.inputs.size(); ++j) {
      const int64_t input = layer.inputs[j];
      const auto sign = static_cast<T>(layer.signs[j]);
      if (passes(i, input))
        route(i, input, {.sign = sign});
      else if (heir < 0 && part(input).consumers == 1 && layer.signs[j] == 1)
        heir = input;
      else
        add(i, input, sign);
    }
    if (heir >= 0)
      hand_over(i, heir);
    else
      memory_.give_back(part(i).a);
    for (const int64_t input : layer.inputs)
      if (part(input).consumers == 1) part(input).alive = part(i).alive;
  }

  // Multiplies layer i's coefficients by its weights, for all inputs or, with pick, only for the needed ones:
  // coefficients that the function below maps to zero are left at zero.
  BackwardStep<T> step(int64_t i, bool pick) {
    const int64_t input = network_.layer(i).inputs[0];
    pick &= network_.layer(input).kind == Kind::kActivation && !state(input).all_needed;
    return {part(i).a, part(i).alive, pick ? state(input).needed.data() : nullptr, memory(input, pick),
            part(input).consumers > 1};
  }

  void convolution(int64_t i) {
    const Layer<T>& layer = network_.layer(i);
    const int64_t input = layer.inputs[0];
    if (part(input).window.empty()) return;  // only padding
    if (layer.conv.sums_channels(layer.shape.channels) && part(i).window == part(input).window) {
      const BackwardStep<T> whole = step(i, false);
      const int64_t n = part(i).window.height() * part(i).window.width();
      const int64_t channels = network_.layer(input).shape.channels, each = channels / layer.conv.groups;
      for (int64_t c = 0; c < channels; ++c)
        engine_kernels<T>().scale(whole.a + c / each * n * L, n, layer.weight.data() + c, 0, whole.out + c * n * L,
                                  whole.add);
      return;
    }
    // The flags of a single tile change with the next tile, while an example's own flags stay.
    const bool stays = part(i).alive != alive_.data();
    const int64_t list = single_ ? 0 : i;
    const Shape& from = network_.layer(input).shape;
    Part<T>& to = part(input);
    if (network_.layer(input).kind == Kind::kInput && to.consumers == 1 && layer.cells.size() == 1) {
      // The input is the largest layer, and its coefficients are read only once: process one row of cells at a time, in
      // the cache.
      const Window inputs = to.window;
      const auto rows = static_cast<int64_t>(layer.cells[0].rows.places.size());
      to.a = memory_.take((from.channels * rows * inputs.width() + 1) * L);
      products_.convolution_by_rows(list, layer, from, part(i).window, inputs, stays && !single_, step(i, false),
                                    [&](const Window& row) {
                                      to.window = row;
                                      take_in(input);
                                    });
      to.window = inputs;
      return;
    }
    // Picking is worth making its list only if the next tiles of the example reuse the list.
    const bool pick = stays && part(i).window == Window::all(layer.shape);
    products_.convolution(list, layer, from, part(i).window, to.window, stays && !single_, step(i, pick));
  }

  // Calls f(position, input, neuron of the input) for the gathered neurons in the window of layer i.
  template <class F>
  void for_gathered(int64_t i, const F& f) {
    const Layer<T>& layer = network_.layer(i);
    const Window& w = part(i).window;
    int64_t position = 0;
    for (int64_t c = 0; c < layer.shape.channels; ++c)
      for (int64_t y = w.y0; y < w.y1; ++y) {
        const int64_t k = c * layer.shape.plane() + y * layer.shape.width;
        for (int64_t x = w.x0; x < w.x1; ++x, ++position) {
          int64_t from = layer.index[static_cast<size_t>(k + x)];
          for (size_t j = 0; from >= 0 && j < layer.inputs.size(); ++j) {
            const int64_t size = network_.layer(layer.inputs[j]).shape.size();
            if (from < size) f(position, layer.inputs[j], from);
            from -= size;
          }
        }
      }
  }

  void gather(int64_t i) {
    const Layer<T>& layer = network_.layer(i);
    const EngineKernels<T>& kernels = engine_kernels<T>();
    const T* const a = part(i).a;
    if (whole(i) &&
        std::all_of(layer.inputs.begin(), layer.inputs.end(), [this](int64_t input) { return whole(input); })) {
      int64_t begin = 0;
      for (const int64_t input : layer.inputs) {
        const int64_t end = begin + network_.layer(input).shape.size();
        kernels.scatter(a, size_of(i), layer.index.data(), begin, end, memory(input, true));
        begin = end;
      }
      return;
    }
    const T factor = 1;
    for_gathered(i, [&](int64_t position, int64_t input, int64_t from) {
      T* const to = memory(input, true);
      const int64_t place = position_in(network_.layer(input).shape, part(input).window, from);
      kernels.scale(a + position * L, 1, &factor, 0, to + place * L, true);
    });
  }

  // Splits the coefficients of a product between its factors.
  void product(int64_t i) {
    const LayerState<T>& s = state(i);
    const auto& inputs = network_.layer(i).inputs;
    T* const first = part(i).a;
    if (passes(i, inputs[1])) {
      route(i, inputs[1], {.lower_slope = s.second_lower_slope.data(), .upper_slope = s.second_upper_slope.data()});
    } else {
      const int64_t n = size_of(i);
      zeros_.resize(std::max(zeros_.size(), s.lower_slope.size()), T(0));
      T* const second = memory_.take((n + 1) * L);
      std::memcpy(second, first, static_cast<size_t>(n * L) * sizeof(T));
      for_runs(i, [&](T* a, int64_t count, int64_t k) {
        engine_kernels<T>().relax(second + (a - first), count, s.second_lower_slope.data() + k,
                                  s.second_upper_slope.data() + k, zeros_.data(), zeros_.data(), bias_);
      });
      add(i, second, inputs[1], T(1));
      memory_.give_back(second);
    }
    if (passes(i, inputs[0])) {
      route(i, inputs[0],
            {.lower_slope = s.lower_slope.data(),
             .upper_slope = s.upper_slope.data(),
             .lower_intercept = s.lower_intercept.data(),
             .upper_intercept = s.upper_intercept.data()});
      return memory_.give_back(first);
    }
    for_runs(i, [&](T* a, int64_t count, int64_t k) {
      engine_kernels<T>().relax(a, count, s.lower_slope.data() + k, s.upper_slope.data() + k,
                                s.lower_intercept.data() + k, s.upper_intercept.data() + k, bias_);
    });
    part(i).alive = s.alive.data();
    hand_over(i, inputs[0]);
  }

  void maximum(int64_t i) {
    const LayerState<T>& s = state(i);
    const T factor = 1;
    T* const out = memory(network_.layer(i).inputs[0], true);
    for_runs(i, [&](T* a, int64_t n, int64_t k) {
      engine_kernels<T>().relax(a, n, s.lower_slope.data() + k, s.upper_slope.data() + k, s.lower_intercept.data() + k,
                                s.upper_intercept.data() + k, bias_);
      for (int64_t j = 0; j < n; ++j)
        engine_kernels<T>().scale(a + j * L, 1, &factor, 0, out + s.picked[static_cast<size_t>(k + j)] * L, true);
    });
  }

  // Adds the smallest values of the rows on the range of layer i.
  void add_range(int64_t i, double* sums) {
    range_factors(network_, options_, state(i), low_, high_);
    for_runs(
        i, [&](T* a, int64_t n, int64_t k) { engine_kernels<T>().dot(a, n, low_.data() + k, high_.data() + k, sums); });
  }

  // The part of the window inside the input's.
  void take_in(int64_t i) {
    for_runs(i, [&](const T* a, int64_t n, int64_t k) {
      concretization_.add(a, n, state(i), k);
      if (slopes_) slopes_->take_input(a, n, k);
    });
  }

  const BoundNetwork<T>& network_;
  BoundOptions options_;
  bool stop_, single_;
  int64_t sole_stop_;
  double* intervals_ = nullptr;
  const Tile<T>* tile_ = nullptr;
  const ExampleState<T>* example_ = nullptr;
  std::vector<Part<T>> part_;
  InputConcretization<T> concretization_;
  TileMemory<T> memory_;
  BackwardProducts<T> products_;
  std::optional<TileSlopes<T>> slopes_;
  std::vector<int64_t> marked_;
  std::vector<uint8_t> alive_;
  std::vector<T> zeros_;
  std::vector<int64_t> outputs_;  // neurons of the tile's layer whose coefficients alone are kept; empty for all
  std::vector<T> low_, high_;     // of these neurons, or of a layer's range
  double bias_[L];
  double start_[L];  // the rows at the origins of their layer
};

template <class T>
BackwardPass<T>::BackwardPass(const BoundNetwork<T>& network, const BoundOptions& options, bool stop, bool single)
    : impl_(std::make_unique<Impl>(network, options, stop, single)) {}
template <class T>
BackwardPass<T>::~BackwardPass() = default;
template <class T>
void BackwardPass<T>::run(const Tile<T>& tile, const ExampleState<T>& example, double* bounds, double* intervals) {
  impl_->run(tile, example, bounds, intervals);
}

template class BackwardPass<float>;
template class BackwardPass<double>;

}  // namespace pyrobust::cpu

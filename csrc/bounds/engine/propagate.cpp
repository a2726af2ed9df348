#include "bounds/engine/propagate.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <utility>

#include "bounds/engine/backward_pass.h"
#include "bounds/engine/batched_ibp.h"
#include "bounds/engine/schedule.h"
#include "bounds/engine/unstable_neurons.h"
#include "bounds/engine/wide/backward.h"
#include "bounds/engine/wide/intervals.h"
#include "bounds/engine/wide/library_products.h"

namespace pyrobust::cpu {
namespace {

// Whether the intervals of the output are the bounds, unless there are rows.
bool ends_with_intervals(const BoundOptions& options) { return !options.to_input && options.norm == Norm::kLinf; }
// Whether bounds by backward passes are intersected with those by intervals. Plain floating-point bounds are compared
// with those of other programs, method by method.
template <class T>
bool intersects(const BoundNetwork<T>& network, const BoundOptions& options) {
  return options.to_input && (options.sound || network.needs_intervals());
}
template <class T>
std::vector<uint8_t> list_reached(const BoundNetwork<T>& network, const BoundOptions& options, bool library,
                                  bool rows) {
  if (library && !rows && ends_with_intervals(options))
    return std::vector<uint8_t>(static_cast<size_t>(network.size()), 0);
  return list_reached(network, options);
}
template <class T>
std::vector<std::vector<int64_t>> list_read_last(const BoundNetwork<T>& network, const BoundOptions& options,
                                                 const std::vector<uint8_t>& reached) {
  if (!options.to_input) return list_read_last(network, reached);
  return list_read_last(
      network, intersects(network, options) ? list_affine_in_output(network) : std::vector<uint8_t>(reached.size(), 0));
}

template <class T>
class Propagation {
 public:
  Propagation(const BoundNetwork<T>& network, const BoundOptions& options, int threads, const ParallelFor& parallel_for,
              const LibraryProduct<T>& product, bool rows)
      : network_(network),
        options_(options),
        threads_(threads),
        parallel_for_(parallel_for),
        reached_(list_reached(network, options, static_cast<bool>(product), rows)),
        read_last_(list_read_last(network, options, reached_)),
        rooms_(list_rooms(network)),
        lanes_(network, reached_, options),
        product_(product) {
    if (product_) wide_.emplace(network, reached_, options, product_, parallel_for);
    // Rows of neurons always go through the kernels, many to a tile.
    if (!product_ || packed()) network.pack();
    for (int64_t i = 0; i < network.size(); ++i) {
      const Layer<T>& layer = network.layer(i);
      // Inputs of activations and products: their ranges decide the linear relaxation, so they are worth a backward
      // pass. The range of a monotone function follows from that of its input.
      for (const int64_t input : layer.inputs) {
        const Layer<T>& source = network.layer(input);
        if (layer.nonlinear() && bounded_by_rows(source)) refined_.push_back({input, i, -1});
        // A maximum over values of an order-preserving function makes its choice by the function's inputs.
        if (layer.kind == Kind::kMaxPool && monotone(source) && bounded_by_rows(network.layer(source.inputs[0])))
          refined_.push_back({source.inputs[0], i, input});
      }
    }
  }

  void run(const InputSet& inputs, int64_t first, int64_t count, const Specification& spec, const BoundSide& lower,
           const BoundSide& upper) {
    begin(inputs, first, count);
    if (!wide_ && !options_.refines && options_.norm == Norm::kLinf) {
      // One example group after the other, so that its ranges stay in the cache.
      for_groups([&](ExampleState<T>* const* group, int64_t from, int64_t group_size) {
        Room<T> room(rooms_);
        if (lanes_.does_any()) lanes_.begin(inputs, first + from, group_size);
        for (int64_t i = 0; i < network_.size(); ++i) {
          intervals(i, group, group_size, room);
          for (int64_t e = 0; e < group_size; ++e) {
            if (reached_[static_cast<size_t>(i)] != 0) prepare(network_, i, *group[e], options_);
            forget(i, *group[e]);
          }
        }
      });
      finish(spec, first, count, lower, upper);
      return forget_undefined(spec, first, lower, upper);
    }
    if (wide_) wide_->begin(inputs, first, count);
    for (int64_t i = 0; i < network_.size(); ++i) {
      if (wide_)
        wide_->run(i, examples_);
      else
        for_groups([&](ExampleState<T>* const* group, int64_t, int64_t group_size) {
          Room<T> room(rooms_);
          intervals(i, group, group_size, room);
        });
      if (reached_[static_cast<size_t>(i)] != 0)
        in_parallel(count, [&](int64_t e) { prepare(network_, i, examples_[static_cast<size_t>(e)], options_); });
      // Intervals only see the ball's box: while the network is still affine, a backward pass uses the dual norm.
      if (options_.norm != Norm::kLinf && network_.layer(i).ends_affine_part && (!options_.refines || intersects()))
        refine_all(i);
      else if (options_.refines)
        refine(i);
      for (ExampleState<T>& example : examples_) forget(i, example);
    }
    finish(spec, first, count, lower, upper);
    forget_undefined(spec, first, lower, upper);
  }

 private:
  static constexpr int64_t L = kLanes<T>, kFew = 3;
  // A layer whose ranges decide the relaxation of a function, itself or through a monotone layer (-1 for none).
  struct Refined {
    int64_t layer, function, through;
  };

  template <class F>
  void in_parallel(int64_t count, const F& f) const {
    parallel_for_(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i);
    });
  }

  // Frees ranges that no layer after j reads: keeping all of them would double an example's memory.
  void forget(int64_t j, ExampleState<T>& example) const {
    for (const int64_t i : read_last_[static_cast<size_t>(j)])
      for (auto* part : {&example[i].lower, &example[i].upper, &example[i].sum, &example[i].origin, &example[i].offset,
                         &example[i].weight_error})
        std::vector<double>().swap(*part);
  }

  void begin(const InputSet& inputs, int64_t first, int64_t count) {
    const Outward out(options_.sound);
    const auto n = static_cast<size_t>(network_.layer(0).shape.size());
    const double share = dot_error(network_, out);
    examples_.resize(static_cast<size_t>(count));
    in_parallel(count, [&](int64_t e) {
      ExampleState<T>& example = examples_[static_cast<size_t>(e)];
      example.layer.resize(static_cast<size_t>(network_.size()));
      example.underflow_error = out.underflow<T>(static_cast<double>(16 * network_.neurons()));
      example.undefined = false;
      example.epsilon = options_.norm == Norm::kLinf ? 0 : inputs.epsilon[first + e];
      LayerState<T>& state = example[0];
      if (wide_ ? wide_->hands_out(0) : lanes_.asked(0) || reached_[0] != 0) {
        inputs.lower.read(first + e, static_cast<int64_t>(n), state.lower);
        inputs.upper.read(first + e, static_cast<int64_t>(n), state.upper);
      }
      if (centered<T>(options_)) choose_origins(state);
      if (options_.norm == Norm::kLinf) return;
      const double* const c = inputs.center + static_cast<size_t>(first + e) * n;
      state.center_low.resize(n), state.center_high.resize(n);
      for (size_t k = 0; k < n; ++k) {
        const double center = c[k] - origin_of(state, k), size = std::fabs(center);
        const double error = out.add_up(out.mul_up(share, size), state.origin.empty() ? 0 : out.up(size) - size);
        state.center_low[k] = out.down_to<T>(out.add_down(center, -error));
        state.center_high[k] = out.up_to<T>(out.add_up(center, error));
      }
    });
  }

  // Calls f(examples, number of the first, count) for groups of at most kLanes examples, smaller where threads would
  // idle. A few examples take less time one by one, each with neurons in the lanes.
  template <class F>
  void for_groups(const F& f) {
    const auto count = static_cast<int64_t>(examples_.size());
    const int64_t even = std::clamp<int64_t>((count + threads_ - 1) / threads_, 1, L), size = even <= kFew ? 1 : even;
    in_parallel((count + size - 1) / size, [&](int64_t g) {
      ExampleState<T>* group[L];
      const int64_t group_size = std::min(size, count - g * size);
      for (int64_t e = 0; e < group_size; ++e) group[e] = &examples_[static_cast<size_t>(g * size + e)];
      f(group, g * size, group_size);
    });
  }
  void intervals(int64_t i, ExampleState<T>* const* group, int64_t count, Room<T>& room) const {
    if (lanes_.does(i))
      lanes_.run(i, group, count);
    else if (i > 0)
      propagate_intervals(network_, i, group, count, options_, room);
  }

  static bool bounded_by_rows(const Layer<T>& layer) { return layer.affine() || layer.kind == Kind::kProduct; }
  // Whether ranges keep their order through a layer; slopes of leaky functions are in [0, 1].
  static bool monotone(const Layer<T>& layer) {
    return layer.kind == Kind::kActivation &&
           (layer.function == Function::kLeakyRelu || layer.function == Function::kClamp);
  }

  // Runs backward passes for the neurons that are unstable for some function of layer i, example by example.
  void refine(int64_t i) {
    const auto takes = [i](const Refined& refined) { return refined.layer == i; };
    if (std::none_of(refined_.begin(), refined_.end(), takes)) return;
    refine_neurons(i, [&](const ExampleState<T>& example, std::vector<uint8_t>& wanted) {
      for (const Refined& refined : refined_)
        if (takes(refined)) want_unstable(refined, example[i], wanted);
    });
  }
  void want_unstable(const Refined& refined, const LayerState<T>& state, std::vector<uint8_t>& wanted) const {
    const Layer<T>& function = network_.layer(refined.function);
    if (function.kind == Kind::kMaxPool) {
      const Layer<T>* const through = refined.through < 0 ? nullptr : &network_.layer(refined.through);
      return want_unstable_windows(function, through, state, wanted);
    }
    for (size_t k = 0; k < wanted.size(); ++k)
      if (curved(function) ? state.lower[k] < state.upper[k] : unstable(function, state.lower[k], state.upper[k]))
        wanted[k] = 1;
  }
  void refine_all(int64_t i) {
    refine_neurons(i, [](const ExampleState<T>&, std::vector<uint8_t>& wanted) {
      std::fill(wanted.begin(), wanted.end(), uint8_t{1});
    });
  }
  // Whether every neuron whose range is more than a point is unstable for a function.
  static bool curved(const Layer<T>& layer) {
    return layer.kind == Kind::kProduct || (layer.kind == Kind::kActivation && layer.function == Function::kRule);
  }
  // Replaces the ranges of the wanted neurons of layer i by those of the backward pass.
  template <class Want>
  void refine_neurons(int64_t i, const Want& want) {
    if (ended()) return;
    const Shape& shape = network_.layer(i).shape;
    const auto count = static_cast<int64_t>(examples_.size());
    std::vector<std::vector<Tile<T>>> tiles(static_cast<size_t>(count));
    in_parallel(count, [&](int64_t e) {
      std::vector<uint8_t> wanted(static_cast<size_t>(shape.size()), 0);
      want(examples_[static_cast<size_t>(e)], wanted);
      represent(i, wanted);
      list_tiles(e, i, shape, wanted, tiles[static_cast<size_t>(e)]);
    });
    std::vector<Tile<T>> all;
    for (const auto& list : tiles) all.insert(all.end(), list.begin(), list.end());
    if (options_.watch != nullptr) {
      int64_t rows = 0;
      for (const Tile<T>& tile : all) rows += tile.count;
      options_.watch->spare_rows(i, 2 * count * shape.size() - rows);
    }
    std::vector<double> bounds(all.size() * static_cast<size_t>(L), -INFINITY);
    backward_pass(all, false, bounds.data(), options_.watch);
    for (size_t t = 0; t < all.size(); ++t) {
      LayerState<T>& state = examples_[static_cast<size_t>(all[t].example)][i];
      for (int64_t lane = 0; lane < all[t].count; lane += 2) {
        const auto k = static_cast<size_t>(all[t].neuron[lane]);
        const double l = bounds[t * static_cast<size_t>(L) + static_cast<size_t>(lane)];
        const double u = -bounds[t * static_cast<size_t>(L) + static_cast<size_t>(lane) + 1];
        if (!std::isfinite(l) || !std::isfinite(u)) continue;  // no bound was proved
        // Where the deployed pass may overflow, nothing is known.
        if (options_.deployed > 0 && state.lower[k] == -INFINITY && state.upper[k] == INFINITY) continue;
        const double below = intersects() ? std::max(l, state.lower[k]) : l;
        const double above = intersects() ? std::min(u, state.upper[k]) : u;
        if (below <= above) state.lower[k] = below, state.upper[k] = above;
      }
    }
    for (ExampleState<T>& example : examples_) relate(network_.layer(i), example[i]);
    if (wide_) wide_->take(i, examples_);
  }

  // Wants, in place of equal or opposite neurons, only the first of them.
  void represent(int64_t i, std::vector<uint8_t>& wanted) const {
    const std::vector<int64_t>& first = network_.layer(i).first;
    for (size_t k = 0; k < first.size(); ++k)
      if (wanted[k] != 0 && std::cmp_not_equal(first[k], k)) wanted[k] = 0, wanted[static_cast<size_t>(first[k])] = 1;
  }
  // Gives every neuron the bounds proved for the first neuron that equals it or its negative.
  void relate(const Layer<T>& layer, LayerState<T>& state) const {
    for (size_t k = 0; k < layer.first.size(); ++k) {
      if (options_.deployed > 0 && state.lower[k] == -INFINITY && state.upper[k] == INFINITY) continue;
      const auto j = static_cast<size_t>(layer.first[k]);
      const bool equal = layer.sign[k] > 0;
      const double low = std::max(state.lower[k], equal ? state.lower[j] : -state.upper[j]);
      const double high = std::min(state.upper[k], equal ? state.upper[j] : -state.lower[j]);
      if (low <= high) state.lower[k] = low, state.upper[k] = high;
    }
  }

  bool ended() const { return options_.watch != nullptr && options_.watch->ended(); }

  // Runs all tiles, or those that the watch leaves time for; each thread takes the next one.
  void backward_pass(const std::vector<Tile<T>>& tiles, bool stop, double* bounds, Watch* watch,
                     double* intervals = nullptr) {
    std::atomic<size_t> next{0};
    const auto workers = std::min<int64_t>(threads_, static_cast<int64_t>(tiles.size()));
    if (workers == 0) return;
    // A search repeats each tile.
    const bool single =
        !options_.search && std::adjacent_find(tiles.begin(), tiles.end(), [](const Tile<T>& a, const Tile<T>& b) {
                              return a.example == b.example;
                            }) == tiles.end();
    parallel_for_(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        BackwardPass<T> backward_pass(network_, options_, stop, single);
        for (size_t t = next++; t < tiles.size(); t = next++) {
          if (watch != nullptr && watch->ended()) break;
          const size_t first = t * static_cast<size_t>(L);
          backward_pass.run(tiles[t], examples_[static_cast<size_t>(tiles[t].example)], bounds + first,
                            intervals == nullptr ? nullptr : intervals + first);
          if (watch != nullptr) watch->add_rows(tiles[t].layer, tiles[t].count);
        }
      }
    });
  }

  // The rows of a specification in T, and the error of rounding them to T.
  struct Rows {
    std::vector<T> rows;
    std::vector<double> error;  // [count][spec.count]
  };

  bool intersects() const { return cpu::intersects(network_, options_); }
  bool packed() const { return options_.refines || options_.norm != Norm::kLinf; }

  void finish(const Specification& spec, int64_t first, int64_t count, const BoundSide& lower, const BoundSide& upper) {
    if (options_.watch != nullptr) options_.watch->add_examples(count);
    const int64_t output = network_.output(), n = network_.layer(output).shape.size();
    if (spec.rows == nullptr && spec.labels == nullptr && !options_.to_input) {
      if (wide_) return wide_->store_output(lower.values + first * n, spec.upper ? upper.values + first * n : nullptr);
      for (int64_t e = 0; e < count; ++e) {
        const LayerState<T>& state = examples_[static_cast<size_t>(e)][output];
        std::copy(state.lower.begin(), state.lower.end(), lower.values + (first + e) * n);
        if (spec.upper) std::copy(state.upper.begin(), state.upper.end(), upper.values + (first + e) * n);
      }
      return;
    }
    const Rows rows = rounded(spec, first, count, n);
    if (wide_ && !packed()) return finish_wide(rows, spec, first, count, lower, upper);
    std::vector<Tile<T>> tiles;
    for (int64_t e = 0; e < count; ++e) {
      Tile<T> tile;
      tile.example = e, tile.layer = output;
      if (spec.rows != nullptr) tile.rows = rows.rows.data() + (spec.per_example ? e * spec.count * n : 0);
      if (spec.labels != nullptr) tile.label = spec.labels[first + e];
      for (const int sign : {1, -1}) {
        if (sign < 0 && !spec.upper) break;
        for (int64_t s = 0; s < spec.count; ++s) {
          tile.neuron[tile.count] = s;
          tile.sign[tile.count++] = static_cast<T>(sign);
          if (tile.count == L) tiles.push_back(tile), tile.count = 0;
        }
      }
      if (tile.count > 0) tiles.push_back(tile);
    }
    std::vector<double> bounds(tiles.size() * static_cast<size_t>(L), -INFINITY);
    std::vector<double> intervals(bounds.size(), -INFINITY);
    const bool on_the_way = intersects() && sole_stop(network_) >= 0;
    backward_pass(tiles, !options_.to_input, bounds.data(), options_.watch, on_the_way ? intervals.data() : nullptr);
    if (intersects()) {
      if (!on_the_way || ended()) backward_pass(tiles, true, intervals.data(), nullptr);
      if (spec.rows == nullptr && spec.labels == nullptr) take_output_ranges(tiles, intervals);
    }
    for (size_t t = 0; t < tiles.size(); ++t)
      for (int64_t lane = 0; lane < tiles[t].count; ++lane) {
        const size_t k = t * static_cast<size_t>(L) + static_cast<size_t>(lane);
        store(rows, spec, first, tiles[t].example, tiles[t].neuron[lane], tiles[t].sign[lane] > 0, bounds[k],
              intervals[k], lower, upper);
      }
  }

  // Intersects bounds of the outputs themselves with their ranges, which known bounds of the layer may have narrowed.
  void take_output_ranges(const std::vector<Tile<T>>& tiles, std::vector<double>& bounds) const {
    for (size_t t = 0; t < tiles.size(); ++t) {
      const LayerState<T>& state = examples_[static_cast<size_t>(tiles[t].example)][network_.output()];
      for (int64_t lane = 0; lane < tiles[t].count; ++lane) {
        const auto k = static_cast<size_t>(tiles[t].neuron[lane]);
        double& bound = bounds[t * static_cast<size_t>(L) + static_cast<size_t>(lane)];
        bound = std::max(bound, tiles[t].sign[lane] > 0 ? state.lower[k] : -state.upper[k]);
      }
    }
  }

  // If a function may have no value, nothing is known of the example, whatever follows that function.
  void forget_undefined(const Specification& spec, int64_t first, const BoundSide& lower,
                        const BoundSide& upper) const {
    for (size_t e = 0; e < examples_.size(); ++e) {
      if (!examples_[e].undefined) continue;
      const int64_t from = (first + static_cast<int64_t>(e)) * spec.count;
      std::fill_n(lower.values + from, spec.count, -INFINITY);
      if (spec.upper) std::fill_n(upper.values + from, spec.count, INFINITY);
    }
  }

  // Bounds of row s of the specification for an example, or minus the bound of minus the row.
  struct RowOf {
    int64_t example, row;
    bool positive;
  };
  void finish_wide(const Rows& rows, const Specification& spec, int64_t first, int64_t count, const BoundSide& lower,
                   const BoundSide& upper) {
    const int64_t n = network_.layer(network_.output()).shape.size();
    WideBackward<T> backward(network_, options_, product_, parallel_for_);
    BoundOptions stopping = options_;
    stopping.to_input = false;
    WideBackward<T> by_intervals(network_, stopping, product_, parallel_for_);
    std::vector<RowOf> wanted;
    for (int64_t e = 0; e < count; ++e)
      for (const bool positive : {true, false})
        for (int64_t s = 0; s < (positive || spec.upper ? spec.count : 0); ++s) wanted.push_back({e, s, positive});
    const auto most = static_cast<size_t>(backward.most_rows(spec.rows != nullptr));
    std::vector<T> a;
    std::vector<OutputRow> output_rows;
    std::vector<int64_t> example;
    std::vector<double> bounds, intervals;
    for (size_t begin = 0; begin < wanted.size(); begin += most) {
      const size_t end = std::min(wanted.size(), begin + most);
      a.clear(), output_rows.clear(), example.clear(), bounds.resize(end - begin);
      for (size_t r = begin; r < end; ++r) {
        if (spec.rows != nullptr) {
          const T sign = wanted[r].positive ? 1 : -1;
          const T* const row =
              rows.rows.data() + ((spec.per_example ? wanted[r].example * spec.count : 0) + wanted[r].row) * n;
          for (int64_t k = 0; k < n; ++k) a.push_back(sign * row[k]);
        } else {
          const int64_t label = spec.labels == nullptr ? -1 : spec.labels[first + wanted[r].example];
          output_rows.push_back({other_neuron(wanted[r].row, label), label, wanted[r].positive});
        }
        example.push_back(wanted[r].example);
      }
      const T* const given = spec.rows != nullptr ? a.data() : nullptr;
      if (ended())
        std::fill(bounds.begin(), bounds.end(), -INFINITY);
      else
        backward.run(examples_, example, given, output_rows, bounds.data());
      if (options_.watch != nullptr) options_.watch->add_rows(network_.output(), static_cast<int64_t>(end - begin));
      intervals.assign(bounds.size(), -INFINITY);
      if (intersects()) by_intervals.run(examples_, example, given, output_rows, intervals.data());
      for (size_t r = begin; r < end; ++r)
        store(rows, spec, first, wanted[r].example, wanted[r].row, wanted[r].positive, bounds[r - begin],
              intervals[r - begin], lower, upper);
    }
  }

  // Stores the better bound of a row, less the error of rounding the row to T.
  void store(const Rows& rows, const Specification& spec, int64_t first, int64_t example, int64_t row, bool positive,
             double bound, double intervals, const BoundSide& lower, const BoundSide& upper) const {
    const BoundSide& side = positive ? lower : upper;
    const int64_t target = (first + example) * spec.count + row;
    side.by_intervals[target] = intervals > bound;
    bound = std::max(bound, intervals);
    if (!rows.error.empty()) {
      const double error = rows.error[static_cast<size_t>(example * spec.count + row)];
      if (error > 0) bound = Outward(options_.sound).down(bound - error);
      if (std::isnan(bound)) bound = -INFINITY;
    }
    side.values[target] = positive ? bound : -bound;
  }

  Rows rounded(const Specification& spec, int64_t first, int64_t count, int64_t n) {
    Rows rows;
    if (spec.rows == nullptr) return rows;
    const int64_t sets = spec.per_example ? count : 1, length = spec.count * n;
    rows.rows.resize(static_cast<size_t>(sets * length));
    const double* const from = spec.rows + (spec.per_example ? first * length : 0);
    bool exact = true;
    for (int64_t k = 0; k < sets * length; ++k) {
      const double c = from[k];
      rows.rows[static_cast<size_t>(k)] = static_cast<T>(c);
      exact &= static_cast<double>(static_cast<T>(c)) == c;
    }
    if (exact || !options_.sound) return rows;
    const Outward out(true);
    rows.error.assign(static_cast<size_t>(count * spec.count), 0);
    for (int64_t e = 0; e < count; ++e) {
      const LayerState<T>& state = examples_[static_cast<size_t>(e)][network_.output()];
      const int64_t set = spec.per_example ? e * length : 0;
      for (int64_t k = 0; k < length; ++k) {
        const double c = from[set + k], difference = c - static_cast<double>(static_cast<T>(c));
        const auto neuron = static_cast<size_t>(k % n);
        if (difference == 0) continue;
        double& error = rows.error[static_cast<size_t>(e * spec.count + k / n)];
        error = out.add_up(
            error, out.mul_up(out.up(std::fabs(difference)), magnitude(state.lower[neuron], state.upper[neuron])));
      }
    }
    return rows;
  }

  const BoundNetwork<T>& network_;
  BoundOptions options_;
  int threads_;
  const ParallelFor& parallel_for_;
  std::vector<Refined> refined_;
  std::vector<uint8_t> reached_;
  std::vector<std::vector<int64_t>> read_last_;
  std::vector<int64_t> rooms_;
  LaneIntervals<T> lanes_;
  const LibraryProduct<T>& product_;
  std::optional<WideIntervals<T>> wide_;
  std::vector<ExampleState<T>> examples_;
};

}  // namespace

template <class T>
void propagate(const BoundNetwork<T>& network, const InputSet& inputs, int64_t batch, const Specification& spec,
               const BoundOptions& options, int64_t chunk, int threads, const ParallelFor& parallel_for,
               const LibraryProduct<T>& product, const BoundSide& lower, const BoundSide& upper) {
  if (product && network.needs_intervals())
    throw std::invalid_argument("BoundNetwork: product: not for networks with products of layers or known ranges");
  const bool rows = spec.rows != nullptr || spec.labels != nullptr;
  Propagation<T> propagation(network, options, threads, parallel_for, product, rows);
  for (int64_t first = 0; first < batch; first += chunk) {
    if (options.watch != nullptr && options.watch->ended()) {
      std::fill(lower.values + first * spec.count, lower.values + batch * spec.count, -INFINITY);
      if (spec.upper) std::fill(upper.values + first * spec.count, upper.values + batch * spec.count, INFINITY);
      return;
    }
    const int64_t count = std::min(chunk, batch - first);
    propagation.run(inputs, first, count, spec, lower, upper);
  }
}

template <class T>
Memory memory_of(const BoundNetwork<T>& network, const BoundOptions& options, bool rows) {
  const std::vector<uint8_t> reached = list_reached(network, options, options.library, rows);
  const std::vector<std::vector<int64_t>> read_last = list_read_last(network, options, reached);
  std::vector<uint8_t> handed_out = reached;  // layers whose ranges each example has, where a library computes products
  for (int64_t i = 0; i < network.size(); ++i)
    for (const int64_t input : network.layer(i).inputs)
      handed_out[static_cast<size_t>(input)] |= reached[static_cast<size_t>(i)];
  constexpr int64_t item = sizeof(T), range = sizeof(double);
  const bool has_origins = centered<T>(options);
  std::vector<int64_t> ranges(reached.size());
  int64_t live = 0;
  Memory memory;
  for (int64_t i = 0; i < network.size(); ++i) {
    const auto at = static_cast<size_t>(i);
    const Layer<T>& layer = network.layer(i);
    const int64_t n = layer.shape.size();
    const bool affine = layer.affine() || i == 0;
    // lower, upper and origin; sum, offset and weight_error
    ranges[at] = (2 + (has_origins ? 1 : 0) + (affine ? (has_origins ? 3 : 1) : 0)) * range * n;
    if (options.library && handed_out[at] == 0) ranges[at] = 0;
    live += ranges[at];
    // while a layer is prepared: errors and wanted neurons; for other functions and products also their arguments
    int64_t scratch = (range + 1) * n;
    if (!affine) {
      const bool simple =
          layer.kind == Kind::kMaxPool || (layer.kind == Kind::kActivation && layer.function == Function::kLeakyRelu);
      if (!simple) scratch += 8 * range * n;
    }
    if (reached[at] != 0) {  // low and high, and for a ball the center; slopes, intercepts, flags and a picked element
      live += (affine ? (i == 0 ? 4 : 2) * item : (layer.kind == Kind::kProduct ? 6 : 4) * item + 2) * n;
      if (layer.kind == Kind::kMaxPool) live += static_cast<int64_t>(sizeof(int64_t)) * n;
    }
    memory.example = std::max(memory.example, live + scratch);
    for (const int64_t j : read_last[at]) live -= ranges[static_cast<size_t>(j)];
    if (layer.kind == Kind::kConv) {
      // a forward product copies weights if they are fewer than its inputs; for other layers the first call's copy
      // stays
      const auto whole = static_cast<int64_t>(layer.weight.size());
      const int64_t copied = reached[at] != 0 ? whole : std::min(whole, network.layer(layer.inputs[0]).shape.size());
      memory.weights = std::max(memory.weights, 2 * item * copied);
    }
  }
  return memory;
}

template void propagate<float>(const BoundNetwork<float>&, const InputSet&, int64_t, const Specification&,
                               const BoundOptions&, int64_t, int, const ParallelFor&, const LibraryProduct<float>&,
                               const BoundSide&, const BoundSide&);
template void propagate<double>(const BoundNetwork<double>&, const InputSet&, int64_t, const Specification&,
                                const BoundOptions&, int64_t, int, const ParallelFor&, const LibraryProduct<double>&,
                                const BoundSide&, const BoundSide&);
template Memory memory_of<float>(const BoundNetwork<float>&, const BoundOptions&, bool);
template Memory memory_of<double>(const BoundNetwork<double>&, const BoundOptions&, bool);

}  // namespace pyrobust::cpu

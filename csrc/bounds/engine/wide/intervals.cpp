#include "bounds/engine/wide/intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bounds/engine/wide/batch_first_kernels.h"

namespace pyrobust::cpu {
namespace {

// Number of neurons of a piece of work: their constants stay in the cache during the loop over the examples.
constexpr int64_t kBlockSize = 4096;

}  // namespace

template <class T>
WideIntervals<T>::WideIntervals(const BoundNetwork<T>& network, const std::vector<uint8_t>& reached,
                                const BoundOptions& options, const LibraryProduct<T>& product,
                                const ParallelFor& parallel_for)
    : network_(network),
      reached_(reached),
      options_(options),
      product_(product),
      parallel_for_(parallel_for),
      largest_(options.deployed > 0 ? options.deployed_max : INFINITY),
      sums_(static_cast<size_t>(network.size()), 0),
      handed_out_(static_cast<size_t>(network.size()), 0),
      freed_(static_cast<size_t>(network.size())),
      ranges_(static_cast<size_t>(network.size())) {
  std::vector<int64_t> last(static_cast<size_t>(network.size()), network.output());
  for (int64_t i = 0; i < network.size(); ++i) {
    const auto at = static_cast<size_t>(i);
    // A deployed pass may overflow within a sum.
    sums_[at] = network.layer(i).affine() && (is_reached(i) || options.deployed > 0);
    handed_out_[at] |= is_reached(i);
    for (const int64_t input : network.layer(i).inputs) {
      last[static_cast<size_t>(input)] = i;
      handed_out_[static_cast<size_t>(input)] |= is_reached(i);
      if (input == 0) input_multiplied_ &= library(network.layer(i));
    }
  }
  for (int64_t i = 0; i < network.output(); ++i) freed_[static_cast<size_t>(last[static_cast<size_t>(i)])].push_back(i);
}

template <class T>
typename WideIntervals<T>::Ranges& WideIntervals<T>::make(int64_t i) {
  Ranges& made = ranges(i);
  const int64_t n = count_ * size_of(i);
  made.lower = pool_.take(n), made.upper = pool_.take(n);
  if (sums_[static_cast<size_t>(i)] != 0) made.sum = pool_.take(n);
  return made;
}

// Calls f(first, size, offset) for pieces of n neurons of every example: neurons first .. first + size - 1, at `offset`.
template <class T>
template <class F>
void WideIntervals<T>::for_blocks(int64_t n, const F& f) const {
  const int64_t blocks = (n + kBlockSize - 1) / kBlockSize;
  parallel_for_(0, blocks * count_, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = k / count_ * kBlockSize;
      f(first, std::min(kBlockSize, n - first), k % count_ * n + first);
    }
  });
}

template <class T>
void WideIntervals<T>::begin(const InputSet& inputs, int64_t first, int64_t count) {
  count_ = count, first_ = first;
  const Outward out(options_.sound);
  const int64_t n = size_of(0);
  const Corners &low = inputs.lower, &high = inputs.upper;
  // Float32 corners are numbers of this arithmetic; a library never computes in another.
  const bool narrow = low.narrow != nullptr && sizeof(T) == sizeof(float);
  given_ = narrow && input_multiplied_ ? &inputs : nullptr;
  if (given_ != nullptr) return;
  Ranges& input = make(0);
  if (narrow) {
    for_blocks(n, [&](int64_t at, int64_t size, int64_t to) {
      const int64_t e = first + to / n;
      T *const lower = input.lower.get() + to, *const upper = input.upper.get() + to;
      if (low.radius != nullptr) {
        batch_first_kernels<T>().around(low.narrow + e * n + at, size, low.radius[e], low.low, low.high, options_.sound,
                                        lower, upper);
      } else {
        std::copy_n(low.narrow + e * n + at, size, lower), std::copy_n(high.narrow + e * n + at, size, upper);
      }
    });
    return;
  }
  parallel_for_(0, count, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> lower, upper;
    for (int64_t e = begin; e < end; ++e) {
      low.read(first + e, n, lower), high.read(first + e, n, upper);
      for (int64_t k = 0; k < n; ++k) {
        input.lower.get()[e * n + k] = out.down_to<T>(lower[static_cast<size_t>(k)]);
        input.upper.get()[e * n + k] = out.up_to<T>(upper[static_cast<size_t>(k)]);
      }
    }
  });
}

template <class T>
void WideIntervals<T>::store_output(double* lower, double* upper) {
  const Ranges& from = ranges(network_.output());
  const int64_t n = count_ * size_of(network_.output());
  std::copy(from.lower.get(), from.lower.get() + n, lower);
  if (upper != nullptr) std::copy(from.upper.get(), from.upper.get() + n, upper);
}

template <class T>
void WideIntervals<T>::run(int64_t i, std::vector<ExampleState<T>>& examples) {
  const Layer<T>& layer = network_.layer(i);
  switch (layer.kind) {
    case Kind::kInput:
      break;
    case Kind::kLinear:
    case Kind::kConv:
      if (library(layer))
        products(i);
      else
        other(i);
      break;
    case Kind::kScale:
      scale(i);
      break;
    case Kind::kSum:
      sum(i);
      break;
    case Kind::kGather:
      gather(i);
      break;
    case Kind::kMaxPool:
      maximum(i);
      break;
    default:
      if (layer.kind == Kind::kActivation && layer.function == Function::kLeakyRelu && layer.slope == 0) {
        const Ranges& from = ranges(layer.inputs[0]);
        Ranges& to = make(i);
        for_blocks(layer.shape.size(), [&](int64_t, int64_t n, int64_t at) {
          batch_first_kernels<T>().relu(from.lower.get() + at, from.upper.get() + at, n, to.lower.get() + at,
                                        to.upper.get() + at);
        });
      } else {
        other(i);
      }
  }
  if (hands_out(i) && i > 0) hand_out(i, examples);
  for (const int64_t j : freed_[static_cast<size_t>(i)])
    for (Buffer<T>* const ends : {&ranges(j).lower, &ranges(j).upper, &ranges(j).sum}) pool_.give_back(*ends);
}

// With z = c + d, |d| <= r, w z differs from the computed w c by at most
//   sum |w| r + s sum |w| m,  m >= |z| and |c|, s the share of gamma and of weights that are not exact,
// and as |c| + r is such an m, that is at most sum |w| (r + s (|c| + r)): where nothing else reads sum |w| m, two
// products are enough.
template <class T>
void WideIntervals<T>::products(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  const int64_t input = layer.inputs[0], n = size_of(input), outputs = layer.shape.size();
  const bool with_sum = sums_[static_cast<size_t>(i)] != 0;
  const RangeCosts costs = library_costs(layer, options_);
  const double flushed = options_.sound ? kFlushedOperand + (options_.deployed > 0 ? kFlushed : 0) : 0;
  Buffer<T> center = pool_.take(count_ * n), radius = pool_.take((with_sum ? 2 : 1) * count_ * n);
  T* const magnitude = with_sum ? radius.get() + count_ * n : nullptr;
  spread(input, with_sum ? 0 : costs.sum, flushed, center.get(), radius.get(), magnitude);
  const LibraryResult<T> centers = multiply(i, Product::kForward, count_, center.get());
  pool_.give_back(center);
  const LibraryResult<T> radii = multiply(i, Product::kMagnitude, (with_sum ? 2 : 1) * count_, radius.get());
  pool_.give_back(radius);
  const T* const magnitudes = with_sum ? radii.data + count_ * outputs : nullptr;
  Ranges& to = make(i);
  for_blocks(outputs, [&](int64_t first, int64_t size, int64_t at) {
    T* const sums = with_sum ? to.sum.get() + at : nullptr;
    batch_first_kernels<T>().range(centers.data + at, radii.data + at, with_sum ? magnitudes + at : nullptr,
                                   layer.bias.data() + first, size, costs, to.lower.get() + at, to.upper.get() + at,
                                   sums);
    batch_first_kernels<T>().check(size, 0, 0, largest_, sums, to.lower.get() + at, to.upper.get() + at);
  });
}

// A product in blocks of channels.
template <class T>
LibraryResult<T> WideIntervals<T>::multiply(int64_t i, Product product, int64_t batch, const T* in) const {
  const SumBlocks<T> blocks(network_.layer(i), options_);
  if (blocks.count() == 1) return product_(i, product, batch, in, nullptr);
  const int64_t size = batch * size_of(i), pieces = (size + kBlockSize - 1) / kBlockSize;
  LibraryResult<T> total;
  for (int64_t first = 0; first < blocks.channels; first += blocks.each) {
    const Channels channels{first, std::min(first + blocks.each, blocks.channels)};
    LibraryResult<T> part = product_(i, product, batch, in, &channels);
    if (first == 0) {
      total = std::move(part);
      continue;
    }
    parallel_for_(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin * kBlockSize; k < std::min(end * kBlockSize, size); ++k) total.data[k] += part.data[k];
    });
  }
  return total;
}

template <class T>
void WideIntervals<T>::spread(int64_t i, double share, double more, T* center, T* radius, T* magnitude) const {
  const int64_t n = size_of(i);
  for_blocks(n, [&](int64_t first, int64_t size, int64_t at) {
    T *const c = center + at, *const r = radius + at, *const m = magnitude == nullptr ? nullptr : magnitude + at;
    const T *lower = nullptr, *upper = nullptr;
    if (i > 0 || given_ == nullptr) {
      lower = ranges(i).lower.get() + at, upper = ranges(i).upper.get() + at;
    } else if constexpr (sizeof(T) == sizeof(float)) {
      const Corners& low = given_->lower;
      const int64_t begin = first_ * n + at;
      if (low.radius != nullptr)
        return batch_first_kernels<T>().spread_around(low.narrow + begin, size, low.radius[first_ + (at - first) / n],
                                                      low.low, low.high, share, more, options_.sound, c, r, m);
      lower = low.narrow + begin, upper = given_->upper.narrow + begin;
    }
    batch_first_kernels<T>().spread(lower, upper, size, share, more, options_.sound, c, r, m);
  });
}

template <class T>
void WideIntervals<T>::scale(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  const Ranges& from = ranges(layer.inputs[0]);
  Ranges& to = make(i);
  const Outward out(options_.sound);
  const ScaleCosts costs{out.gamma(layer.roundings, options_.deployed), options_.deployed > 0 ? kFlushed : 0,
                         options_.sound};
  for_blocks(layer.shape.size(), [&](int64_t first, int64_t n, int64_t at) {
    T* const sums = to.sum ? to.sum.get() + at : nullptr;
    batch_first_kernels<T>().scale(from.lower.get() + at, from.upper.get() + at, n, layer.scale.data() + first,
                                   layer.shift.data() + first, layer.scale_error.data() + first,
                                   layer.shift_error.data() + first,
                                   layer.shift_excess.empty() ? nullptr : layer.shift_excess.data() + first, costs,
                                   to.lower.get() + at, to.upper.get() + at, sums);
    batch_first_kernels<T>().check(n, 0, 0, largest_, sums, to.lower.get() + at, to.upper.get() + at);
  });
}

template <class T>
void WideIntervals<T>::sum(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  Ranges& to = make(i);
  const Outward out(options_.sound);
  const double share = out.gamma(layer.roundings, options_.deployed);
  for_blocks(layer.shape.size(), [&](int64_t, int64_t n, int64_t at) {
    T *const lower = to.lower.get() + at, *const upper = to.upper.get() + at;
    T* const sums = to.sum ? to.sum.get() + at : nullptr;
    std::fill(lower, lower + n, T(0)), std::fill(upper, upper + n, T(0));
    if (sums != nullptr) std::fill(sums, sums + n, T(0));
    for (size_t j = 0; j < layer.inputs.size(); ++j) {
      const Ranges& from = ranges(layer.inputs[j]);
      batch_first_kernels<T>().add(from.lower.get() + at, from.upper.get() + at, n, layer.signs[j], options_.sound,
                                   lower, upper, sums);
    }
    if (share > 0)  // relative to the sum of magnitudes, which no intermediate result exceeds
      for (int64_t k = 0; k < n; ++k) {
        const double error = out.mul_up(share, static_cast<double>(sums[k]) + kFlushed);
        lower[k] = out.down_to<T>(out.add_down(lower[k], -error)), upper[k] = out.up_to<T>(out.add_up(upper[k], error));
      }
    batch_first_kernels<T>().check(n, 0, 0, largest_, sums, lower, upper);
  });
}

template <class T>
void WideIntervals<T>::gather(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  Ranges& to = make(i);
  for_blocks(layer.shape.size(), [&](int64_t first, int64_t n, int64_t at) {
    const int64_t example = at / layer.shape.size();
    for (int64_t k = 0; k < n; ++k) {
      int64_t from = layer.index[static_cast<size_t>(first + k)];
      T lower = 0, upper = 0;
      for (const int64_t input : layer.inputs) {
        const int64_t size = size_of(input);
        if (from >= 0 && from < size) {
          const auto place = static_cast<size_t>(example * size + from);
          lower = ranges(input).lower.get()[place], upper = ranges(input).upper.get()[place];
        }
        from -= size;
        if (from < 0) break;
      }
      const auto place = static_cast<size_t>(at + k);
      to.lower.get()[place] = lower, to.upper.get()[place] = upper;
      if (to.sum) to.sum.get()[place] = std::max(std::fabs(lower), std::fabs(upper));
    }
  });
}

template <class T>
void WideIntervals<T>::maximum(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  const Ranges& from = ranges(layer.inputs[0]);
  Ranges& to = make(i);
  const int64_t size = size_of(layer.inputs[0]);
  for_blocks(layer.shape.size(), [&](int64_t first, int64_t n, int64_t at) {
    const int64_t example = at / layer.shape.size();
    const T *const lowers = from.lower.get() + example * size, *const uppers = from.upper.get() + example * size;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t* const window = layer.windows.data() + (first + k) * layer.window;
      T lower = -std::numeric_limits<T>::infinity(), upper = lower;
      for (int64_t j = 0; j < layer.window; ++j) {
        if (window[j] < 0) continue;
        lower = std::max(lower, lowers[window[j]]), upper = std::max(upper, uppers[window[j]]);
      }
      to.lower.get()[at + k] = lower, to.upper.get()[at + k] = upper;
    }
    batch_first_kernels<T>().check(n, 0, 0, largest_, nullptr, to.lower.get() + at, to.upper.get() + at);
  });
}

// All other layers, by the interval pass of examples; products for as many examples as its lanes hold.
template <class T>
void WideIntervals<T>::other(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  Ranges& to = make(i);
  const Outward out(options_.sound);
  const int64_t n = layer.shape.size(), most = layer.products() ? kLanes<T> : 1;
  network_.pack(i);
  std::vector<int64_t> rooms(static_cast<size_t>(network_.size()), 0);
  if (layer.products()) rooms[static_cast<size_t>(i)] = 3 * kLanes<T> * size_of(layer.inputs[0]);
  parallel_for_(0, (count_ + most - 1) / most, 1, [&](int64_t begin, int64_t end) {
    Room<T> room(rooms);
    std::vector<ExampleState<T>> examples(static_cast<size_t>(std::min(most, count_)));
    std::vector<ExampleState<T>*> group;
    for (ExampleState<T>& example : examples) {
      example.layer.resize(static_cast<size_t>(network_.size()));
      group.push_back(&example);
    }
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * most, size = std::min(most, count_ - first);
      for (int64_t e = 0; e < size; ++e)
        for (const int64_t input : layer.inputs) {
          const auto at = static_cast<size_t>((first + e) * size_of(input)),
                     next = at + static_cast<size_t>(size_of(input));
          const Ranges& from = ranges(input);
          LayerState<T>& state = examples[static_cast<size_t>(e)][input];
          state.lower.assign(from.lower.get() + at, from.lower.get() + next);
          state.upper.assign(from.upper.get() + at, from.upper.get() + next);
        }
      propagate_intervals(network_, i, group.data(), size, options_, room);
      for (int64_t e = 0; e < size; ++e) {
        const LayerState<T>& state = examples[static_cast<size_t>(e)][i];
        for (int64_t k = 0; k < n; ++k) {
          const auto from = static_cast<size_t>(k), at = static_cast<size_t>((first + e) * n + k);
          to.lower.get()[at] = out.down_to<T>(state.lower[from]);
          to.upper.get()[at] = out.up_to<T>(state.upper[from]);
          if (to.sum) to.sum.get()[at] = out.up_to<T>(state.sum[from]);
        }
      }
    }
  });
}

template <class T>
void WideIntervals<T>::hand_out(int64_t i, std::vector<ExampleState<T>>& examples) {
  const Ranges& from = ranges(i);
  const auto n = static_cast<size_t>(size_of(i));
  parallel_for_(0, count_, 1, [&](int64_t begin, int64_t end) {
    for (auto e = static_cast<size_t>(begin); e < static_cast<size_t>(end); ++e) {
      LayerState<T>& state = examples[e][i];
      const auto copy = [&](const Buffer<T>& ends, std::vector<double>& out) {
        out.assign(ends.get() + e * n, ends.get() + (e + 1) * n);
      };
      copy(from.lower, state.lower), copy(from.upper, state.upper);
      if (from.sum) copy(from.sum, state.sum);
    }
  });
}

template <class T>
void WideIntervals<T>::take(int64_t i, const std::vector<ExampleState<T>>& examples) {
  Ranges& to = ranges(i);
  if (!to.lower) return;  // no later layer reads it
  const Outward out(options_.sound);
  const auto n = static_cast<size_t>(size_of(i));
  parallel_for_(0, count_, 1, [&](int64_t begin, int64_t end) {
    for (auto e = static_cast<size_t>(begin); e < static_cast<size_t>(end); ++e) {
      const LayerState<T>& state = examples[e][i];
      for (size_t k = 0; k < n; ++k) {
        to.lower.get()[e * n + k] = out.down_to<T>(state.lower[k]);
        to.upper.get()[e * n + k] = out.up_to<T>(state.upper[k]);
      }
    }
  });
}

template class WideIntervals<float>;
template class WideIntervals<double>;

}  // namespace pyrobust::cpu

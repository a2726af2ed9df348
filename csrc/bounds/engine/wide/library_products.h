// Products that the machine's matrix and convolution routines compute, for layers wide enough to be worth a call. Their
// sums are direct and in T, in any order: a sum of n products is correct up to gamma(n) relative to the sum of magnitudes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "bounds/engine/example_state.h"
#include "bounds/engine/kernels.h"

namespace pyrobust::cpu {

// w z, |w| z, or the transposed product of coefficients.
enum class Product { kForward, kMagnitude, kBackward };

template <class T>
struct LibraryResult {
  std::shared_ptr<void> owner;
  T* data = nullptr;  // [batch][outputs]
};

// Channels of a convolution's input, or inputs of a linear layer.
struct Channels {
  int64_t first = 0, last = 0;
};

// (layer, product, batch, in [batch][inputs], channels) -> the products with all inputs or, unless that is null, with
// those of these channels; called from the thread that started the computation.
template <class T>
using LibraryProduct = std::function<LibraryResult<T>(int64_t layer, Product product, int64_t batch, const T* in,
                                                      const Channels* channels)>;

// For CROWN-IBP, forward sums of many products are taken in a few blocks of channels, added up one after the other: the
// error of a sum in any order is proportional to its length. IBP's margins lose more elsewhere, so this is not worth
// its time for them.
template <class T>
struct SumBlocks {
  int64_t channels = 0, each = 0, kernel = 1;

  SumBlocks(const Layer<T>& layer, const BoundOptions& options) {
    if (layer.kind == Kind::kConv) kernel = layer.conv.kernel_h * layer.conv.kernel_w;
    channels = std::max<int64_t>(1, layer.forward_fan_in / kernel);
    const bool whole = !options.to_input || !options.sound || (layer.kind == Kind::kConv && layer.conv.groups > 1);
    const int64_t most = whole ? 1 : std::clamp<int64_t>(layer.forward_fan_in / kLeast, 1, kMost);
    each = (channels + most - 1) / most;
  }
  int64_t count() const { return (channels + each - 1) / each; }
  // Roundings of a term of the sum, from the product to the last addition.
  int64_t roundings() const { return each * kernel + count() - 1; }

 private:
  static constexpr int64_t kLeast = 576, kMost = 8;  // products of a block, and blocks
};

// The smallest normal number; a library may treat smaller operands and results as zero.
template <class T>
inline constexpr double kSmallestNormal = sizeof(T) == sizeof(double) ? 0x1p-1022 : 0x1p-126;

// Added to the magnitudes that rounding errors are proportional to, so that they cover operands flushed to zero: its
// share of a sum of at least five roundings exceeds twice the smallest normal number.
inline constexpr double kFlushedOperand = 0x1p-100;

// Rounding errors of the sums of a layer of products computed by a library.
template <class T>
RangeCosts library_costs(const Layer<T>& layer, const BoundOptions& options) {
  const Outward out(options.sound);
  const int64_t fan_in = layer.forward_fan_in;
  const double gamma = out.gamma<T>(SumBlocks<T>(layer, options).roundings() + 5),
               deployed = out.gamma(fan_in + 4, options.deployed);
  RangeCosts costs;
  costs.sound = options.sound;
  costs.more = 1 + 3 * gamma;
  costs.tiny = options.sound ? static_cast<double>(4 * fan_in + 8) * kSmallestNormal<T> : 0;
  costs.sum = gamma + deployed + (options.sound ? layer.weight_error : 0);
  costs.bias = deployed;
  costs.constant = deployed * kFlushed + (options.sound ? layer.bias_error : 0);
  return costs;
}

}  // namespace pyrobust::cpu

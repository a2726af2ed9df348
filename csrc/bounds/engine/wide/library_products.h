// Products that the machine's matrix and convolution routines compute, for layers wide enough to be worth a call. Their
// sums are direct and in T, in any order: a sum of n products is right up to gamma(n) relative to the sum of magnitudes.
#pragma once

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

// (layer, product, batch, in [batch][inputs]) -> the products; called from the thread that started the computation.
template <class T>
using LibraryProduct = std::function<LibraryResult<T>(int64_t layer, Product product, int64_t batch, const T* in)>;

// The smallest normal number, which a library may take for zero, as an operand or as a result.
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
  const double gamma = out.gamma<T>(fan_in + 5), deployed = out.gamma(fan_in + 4, options.deployed);
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

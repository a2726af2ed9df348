#include "bounds/engine/wide/backward.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bounds/engine/concretize.h"
#include "bounds/engine/schedule.h"
#include "bounds/engine/wide/batch_first_kernels.h"

namespace pyrobust::cpu {
namespace {

// Largest number of elements of a layer's coefficients in one pass.
constexpr int64_t kElements = int64_t{1} << 21;

// Whether a gather keeps every element in its place.
template <class T>
bool keeps_all(const Layer<T>& layer, int64_t size) {
  if (layer.inputs.size() != 1 || layer.shape.size() != size) return false;
  for (int64_t k = 0; k < size; ++k)
    if (layer.index[static_cast<size_t>(k)] != k) return false;
  return true;
}

}  // namespace

template <class T>
WideBackward<T>::WideBackward(const BoundNetwork<T>& network, const BoundOptions& options,
                              const LibraryProduct<T>& product, const ParallelFor& parallel_for)
    : network_(network),
      options_(options),
      product_(product),
      parallel_for_(parallel_for),
      parts_(static_cast<size_t>(network.size())) {}

template <class T>
int64_t WideBackward<T>::most_rows(bool dense) const {
  int64_t largest = 1;
  const std::vector<uint8_t> affine = list_affine_in_output(network_);
  for (int64_t i = 0; i < network_.size(); ++i) {
    // A pass that stops holds the layers that the output is affine in, and those that they read.
    const bool visited = options_.to_input || affine[static_cast<size_t>(i)] != 0;
    if (!visited) continue;
    for (const int64_t input : network_.layer(i).inputs) largest = std::max(largest, size_of(input));
    if (i == network_.output() && (dense || network_.layer(i).kind != Kind::kLinear))
      largest = std::max(largest, size_of(i));
  }
  return std::max<int64_t>(1, kElements / largest);
}

template <class T>
void WideBackward<T>::run(const std::vector<ExampleState<T>>& examples, const std::vector<int64_t>& example,
                          const T* rows, const std::vector<OutputRow>& output_rows, double* bounds) {
  examples_ = &examples, example_ = &example;
  const int64_t output = network_.output();
  const auto count = static_cast<int64_t>(example.size());
  bias_.assign(example.size(), 0.0);
  if (rows != nullptr) {
    Part first;
    first.own = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(count * size_of(output)));
    first.a = first.own.get();
    std::copy(rows, rows + count * size_of(output), first.a);
    put(output, std::move(first));
  } else {
    start(output_rows);
  }
  for (int64_t i = output; i >= 0; --i)
    if (part(i).a != nullptr) visit(i);
  const Outward out(options_.sound);
  for (int64_t r = 0; r < count; ++r) {
    const auto at = static_cast<size_t>(r);
    const double total = out.down(bias_[at] - examples[static_cast<size_t>(example[at])].underflow_error);
    bounds[r] = std::isfinite(total) ? total : -INFINITY;
  }
}

// Puts rows of one or two outputs; rows of a linear layer begin at the weights, which are few compared to all outputs.
template <class T>
void WideBackward<T>::start(const std::vector<OutputRow>& rows) {
  const int64_t output = network_.output();
  const Layer<T>& layer = network_.layer(output);
  if (layer.kind != Kind::kLinear) {
    T* const a = zeros(output);
    for (size_t r = 0; r < rows.size(); ++r) {
      T* const row = a + static_cast<int64_t>(r) * size_of(output);
      row[rows[r].output] = (rows[r].label < 0) == rows[r].positive ? T(1) : T(-1);
      if (rows[r].label >= 0) row[rows[r].label] = rows[r].positive ? T(1) : T(-1);
    }
    return;
  }
  const int64_t n = size_of(layer.inputs[0]);
  Part below;
  below.own = std::make_unique_for_overwrite<T[]>(rows.size() * static_cast<size_t>(n));
  below.a = below.own.get();
  for_blocks(n, [&](int64_t r) {
    const OutputRow& row = rows[static_cast<size_t>(r)];
    const LayerState<T>& s = state(output, r);
    const T sign = row.positive ? 1 : -1;
    const bool margin = row.label >= 0;
    const auto own = static_cast<size_t>(margin ? row.label : row.output), other = static_cast<size_t>(row.output);
    const T a[2] = {sign, -sign}, low[2] = {s.low[own], s.low[other]}, high[2] = {s.high[own], s.high[other]};
    bias_[static_cast<size_t>(r)] += batch_first_kernels<T>().dot_row(a, margin ? 2 : 1, low, high);
    const T *const w = layer.weight.data() + own * static_cast<size_t>(n), *const v = layer.weight.data() +
                                                                                      other * static_cast<size_t>(n);
    T* const to = below.a + r * n;
    for (int64_t k = 0; k < n; ++k) to[k] = sign * (margin ? w[k] - v[k] : w[k]);
  });
  put(layer.inputs[0], std::move(below));
}

// Calls f(row, a) for every row of layer coefficients a [rows][n].
template <class T>
template <class F>
void WideBackward<T>::for_blocks(int64_t n, const F& f) {
  const auto rows = static_cast<int64_t>(bias_.size());
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(1, n));
  parallel_for_(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

// The coefficients of layer i, zero where nothing has been written.
template <class T>
T* WideBackward<T>::zeros(int64_t i) {
  Part& p = part(i);
  if (p.a == nullptr) {
    p.own = std::make_unique<T[]>(bias_.size() * static_cast<size_t>(size_of(i)));
    p.a = p.own.get();
  }
  return p.a;
}

// Adds coefficients to those of layer i; takes over their memory if the layer has none yet.
template <class T>
void WideBackward<T>::put(int64_t i, Part&& coefficients) {
  Part& p = part(i);
  if (p.a == nullptr) {
    p = std::move(coefficients);
    return;
  }
  const int64_t n = size_of(i);
  for_blocks(n, [&](int64_t r) {
    batch_first_kernels<T>().scale_row(coefficients.a + r * n, n, nullptr, T(1), true, p.a + r * n);
  });
}

template <class T>
void WideBackward<T>::visit(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  if (layer.kind == Kind::kInput || stops(layer)) {
    if (layer.kind == Kind::kInput)
      take_in();
    else
      take_range(i);
    part(i) = {};
    return;
  }
  elementwise(i);
  Part a = std::move(part(i));
  part(i) = {};
  switch (layer.kind) {
    case Kind::kLinear:
    case Kind::kConv: {
      LibraryResult<T> result = product_(i, Product::kBackward, static_cast<int64_t>(bias_.size()), a.a, nullptr);
      Part below;
      below.shared = std::move(result.owner), below.a = result.data;
      a = {};
      put(layer.inputs[0], std::move(below));
      break;
    }
    case Kind::kScale:
    case Kind::kActivation:
      put(layer.inputs[0], std::move(a));
      break;
    case Kind::kSum:
      part(i) = std::move(a);
      sum(i);
      break;
    case Kind::kGather:
      if (keeps_all(layer, size_of(layer.inputs[0]))) {
        put(layer.inputs[0], std::move(a));
        break;
      }
      part(i) = std::move(a);
      gather(i);
      break;
    default:
      part(i) = std::move(a);
      maximum(i);
  }
  if (layer.kind != Kind::kInput) part(i) = {};
}

// Adds the constants of layer i; multiplies by the slopes of a function and by a scale.
template <class T>
void WideBackward<T>::elementwise(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  const int64_t n = size_of(i);
  T* const a = part(i).a;
  const bool affine = layer.affine() && (!layer.fused || i == network_.output());
  const bool scales =
      layer.kind == Kind::kScale && !std::all_of(layer.scale.begin(), layer.scale.end(), [](T s) { return s == T(1); });
  if (!affine && !scales && !layer.nonlinear()) return;
  for_blocks(n, [&](int64_t r) {
    const LayerState<T>& s = state(i, r);
    T* const row = a + r * n;
    double& total = bias_[static_cast<size_t>(r)];
    if (layer.nonlinear())
      total += batch_first_kernels<T>().relax_row(row, n, s.lower_slope.data(), s.upper_slope.data(),
                                                  s.lower_intercept.data(), s.upper_intercept.data());
    if (affine) total += batch_first_kernels<T>().dot_row(row, n, s.low.data(), s.high.data());
    if (scales) batch_first_kernels<T>().scale_row(row, n, layer.scale.data(), T(1), false, row);
  });
}

template <class T>
void WideBackward<T>::sum(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  const int64_t n = size_of(i);
  Part from = std::move(part(i));
  part(i) = {};
  // The last input takes over the memory, the others get copies.
  for (size_t j = 0; j < layer.inputs.size(); ++j) {
    const int64_t input = layer.inputs[j];
    const auto sign = static_cast<T>(layer.signs[j]);
    if (j + 1 == layer.inputs.size() && sign == T(1)) {
      put(input, std::move(from));
      break;
    }
    const bool add = part(input).a != nullptr;
    if (!add) {
      Part copy;
      copy.own = std::make_unique_for_overwrite<T[]>(bias_.size() * static_cast<size_t>(n));
      copy.a = copy.own.get();
      part(input) = std::move(copy);
    }
    T* const to = part(input).a;
    for_blocks(
        n, [&](int64_t r) { batch_first_kernels<T>().scale_row(from.a + r * n, n, nullptr, sign, add, to + r * n); });
  }
}

template <class T>
void WideBackward<T>::gather(int64_t i) {
  const Layer<T>& layer = network_.layer(i);
  const int64_t n = size_of(i);
  std::vector<T*> to;
  for (const int64_t input : layer.inputs) to.push_back(zeros(input));
  const T* const a = part(i).a;
  for_blocks(n, [&](int64_t r) {
    for (int64_t k = 0; k < n; ++k) {
      int64_t from = layer.index[static_cast<size_t>(k)];
      if (from < 0) continue;
      for (size_t j = 0; j < layer.inputs.size(); ++j) {
        const int64_t size = size_of(layer.inputs[j]);
        if (from < size) {
          to[j][r * size + from] += a[r * n + k];
          break;
        }
        from -= size;
      }
    }
  });
}

template <class T>
void WideBackward<T>::maximum(int64_t i) {
  const int64_t n = size_of(i), input = network_.layer(i).inputs[0], size = size_of(input);
  T* const to = zeros(input);
  const T* const a = part(i).a;
  for_blocks(n, [&](int64_t r) {
    const std::vector<int64_t>& picked = state(i, r).picked;
    for (int64_t k = 0; k < n; ++k) to[r * size + picked[static_cast<size_t>(k)]] += a[r * n + k];
  });
}

// Concretizes the rows on the ranges of layer i.
template <class T>
void WideBackward<T>::take_range(int64_t i) {
  const int64_t n = size_of(i);
  const T* const a = part(i).a;
  std::vector<T> low(static_cast<size_t>(n)), high(low.size());
  int64_t of = -1;  // the example whose range low and high hold
  for (int64_t r = 0; r < static_cast<int64_t>(bias_.size()); ++r) {
    const int64_t example = (*example_)[static_cast<size_t>(r)];
    if (example != of) range_factors(network_, options_, state(i, r), low, high);
    of = example;
    bias_[static_cast<size_t>(r)] += batch_first_kernels<T>().dot_row(a + r * n, n, low.data(), high.data());
  }
}

template <class T>
void WideBackward<T>::take_in() {
  const int64_t n = size_of(0);
  const T* const a = part(0).a;
  for_blocks(n, [&](int64_t r) {
    const LayerState<T>& input = state(0, r);
    const T* const row = a + r * n;
    double& total = bias_[static_cast<size_t>(r)];
    const double box = total + batch_first_kernels<T>().dot_row(row, n, input.low.data(), input.high.data());
    if (options_.norm == Norm::kLinf) {
      total = box;
      return;
    }
    const double ball =
        total + batch_first_kernels<T>().dot_row(row, n, input.center_low.data(), input.center_high.data());
    double squares = 0, largest = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double c = std::fabs(static_cast<double>(row[k]));
      squares += c * c;
      largest = c < largest ? largest : c;
    }
    const double epsilon = (*examples_)[static_cast<size_t>((*example_)[static_cast<size_t>(r)])].epsilon;
    total = better_bound(options_, box, ball, epsilon, dual_norm(options_, squares, largest, n));
  });
}

template class WideBackward<float>;
template class WideBackward<double>;

}  // namespace pyrobust::cpu

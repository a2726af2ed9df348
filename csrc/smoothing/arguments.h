// Argument checks and element types that the noise ops share.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/half.h"
#include "smoothing/noise.h"

namespace pyrobust {

inline constexpr int64_t kNoiseWords = int64_t{1} << 32;

// Strides of [N, C, H, W] with the channels innermost. A dimension of size 1 may have any stride.
inline bool is_channels_last(const Tensor& t) {
  if (t.dim() != 4) return false;
  const int64_t order[4] = {1, 3, 2, 0};
  int64_t expected = 1;
  for (int64_t d : order) {
    if (t.size(d) != 1 && t.stride(d) != expected) return false;
    expected *= t.size(d);
  }
  return true;
}

// The type that a batch is computed in before it is rounded to its own.
inline ScalarType real_of(const Tensor& out) {
  return out.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

struct NoiseCall {
  uint32_t domain;
  std::vector<NoiseRun> runs;
  NoiseShape shape;
  bool empty;
};

// The batch that an op fills, [N, ...], from images [M, ...] of the same trailing shape, which the op calls `name`.
struct NoiseBatch {
  const char* op;
  const char* name;
  const Tensor& out;
  const Tensor& x;
};

inline void check_batch(const NoiseBatch& batch) {
  const auto& [op, name, out, x] = batch;
  check(x.dim() >= 1 && out.dim() == x.dim(), op, ": out: expected the dimensions of ", name, ", ", shape_of(x),
        ", got ", shape_of(out));
  for (int64_t d = 1; d < x.dim(); ++d)
    check(x.size(d) == out.size(d), op, ": out: expected the shape of ", name, " after dimension 0, ", shape_of(x),
          ", got ", shape_of(out));
  check_same_device(op, name, x, out);
  check(x.is_contiguous(), op, ": ", name, ": expected a contiguous tensor");
  check(out.is_contiguous() || is_channels_last(out), op, ": out: expected a contiguous or channels_last tensor");
  const auto* x_begin = static_cast<const char*>(x.const_data_ptr());
  const auto* out_begin = static_cast<const char*>(out.const_data_ptr());
  check(x_begin + x.numel() * x.element_size() <= out_begin || out_begin + out.numel() * out.element_size() <= x_begin,
        op, ": out: expected memory of its own, got some of that of ", name);
}

// Returns the number of elements of an image, which its counter words must be able to count.
inline int64_t image_size(const NoiseBatch& batch) {
  const auto& [op, name, out, x] = batch;
  int64_t size = 1;
  for (int64_t d = 1; d < x.dim(); ++d)
    check(!__builtin_mul_overflow(size, x.size(d), &size), op, ": ", name,
          ": expected at most 2**34 elements an image, got ", shape_of(x));
  check((size + 3) / 4 <= kNoiseWords, op, ": ", name, ": expected at most 2**34 elements an image, got ", size);
  return size;
}

// mean, std: [C], both or neither. Values are checked on the CPU only: on a GPU the check would wait for the device.
inline void check_normalization(const NoiseBatch& batch, const std::optional<Tensor>& mean,
                                const std::optional<Tensor>& std) {
  const auto& [op, name, out, x] = batch;
  check(mean.has_value() == std.has_value(), op, ": mean, std: expected both or neither");
  if (!std.has_value()) return;
  check(x.dim() >= 2, op, ": mean, std: expected ", name, " of at least 2 dimensions, got ", shape_of(x));
  const ScalarType real = real_of(out);
  for (const auto& [statistic, t] : {std::pair<const char*, const Tensor*>{"mean", &*mean}, {"std", &*std}}) {
    check(t->dim() == 1 && t->size(0) == x.size(1) && t->scalar_type() == real && t->is_contiguous(), op, ": ",
          statistic, ": expected a contiguous [", x.size(1), "] of the dtype computed in, got ", shape_of(*t));
    check_same_device(op, statistic, *t, out);
  }
  if (!std->is_cpu()) return;
  const auto value = [&](const Tensor& t, int64_t c) -> double {
    return real == ScalarType::Double ? static_cast<const double*>(t.const_data_ptr())[c]
                                      : static_cast<const float*>(t.const_data_ptr())[c];
  };
  for (int64_t c = 0; c < x.size(1); ++c) {
    check(std::isfinite(value(*mean, c)), op, ": normalize: expected a finite mean, got ", value(*mean, c),
          " for channel ", c);
    check(std::isfinite(value(*std, c)) && value(*std, c) > 0, op, ": normalize: expected a positive std, got ",
          value(*std, c), " for channel ", c);
  }
}

// runs: (row, image, first, count) times R; keys: the Philox key of each run, or none for the seed. Runs without samples
// are left out; together they fill the rows of out.
inline std::vector<NoiseRun> noise_runs(const NoiseBatch& batch, const std::vector<int64_t>& runs, int64_t seed,
                                        const std::vector<int64_t>& keys) {
  const auto& [op, name, out, x] = batch;
  check(runs.size() % 4 == 0, op, ": runs: expected (row, image, first, count) for each, got ", runs.size(),
        " numbers");
  check(keys.empty() || keys.size() == runs.size() / 4, op, ": keys: expected one for each of the ", runs.size() / 4,
        " runs, or none, got ", keys.size());
  std::vector<NoiseRun> filled;
  int64_t samples = 0;
  for (size_t r = 0; r < runs.size(); r += 4) {
    const int64_t row = runs[r], image = runs[r + 1], first = runs[r + 2], count = runs[r + 3];
    check(row >= 0 && row < x.size(0), op, ": runs: row: expected 0 to ", x.size(0) - 1, ", got ", row);
    check(image >= 0 && image < kNoiseWords, op, ": runs: image: expected an index below 2**32, got ", image);
    check(count >= 0 && first >= 0 && first <= kNoiseWords && count <= kNoiseWords - first, op,
          ": runs: first, count: expected sample indices below 2**32, got ", first, ", ", count);
    if (count == 0) continue;
    const int64_t key = keys.empty() ? seed : keys[r / 4];
    filled.push_back(
        {row, static_cast<uint64_t>(key), static_cast<uint32_t>(image), static_cast<uint32_t>(first), samples});
    check(count <= out.size(0) - samples, op, ": out: expected as many rows as the runs have samples, got ",
          out.size(0));
    samples += count;
  }
  check(samples == out.size(0), op, ": out: expected ", samples, " rows, one a sample, got ", out.size(0));
  return filled;
}

inline NoiseCall check_noise(const NoiseBatch& batch, const std::vector<int64_t>& runs, int64_t seed, int64_t domain,
                             const std::optional<Tensor>& mean, const std::optional<Tensor>& std,
                             const std::vector<int64_t>& keys) {
  check_batch(batch);
  const int64_t size = image_size(batch);
  check_normalization(batch, mean, std);
  const Tensor& out = batch.out;
  const bool channels_last = !out.is_contiguous(), empty = out.numel() == 0;
  const int64_t channels = std.has_value() || channels_last ? batch.x.size(1) : 1;
  const int64_t plane = empty ? 0 : size / channels;
  return {static_cast<uint32_t>(domain),
          noise_runs(batch, runs, seed, keys),
          {out.size(0), channels, plane, channels_last},
          empty};
}

template <class Real>
const Real* data_or_null(const std::optional<Tensor>& t) {
  return t.has_value() ? static_cast<const Real*>(t->const_data_ptr()) : nullptr;
}

// Calls the launcher for the element type of out: fn(static_cast<Out*>(nullptr), static_cast<Real*>(nullptr)).
template <class Fn>
void for_noise_dtype(const char* op, const Tensor& out, const Fn& fn) {
  switch (out.scalar_type()) {
    case ScalarType::Float:
      return fn(static_cast<float*>(nullptr), static_cast<float*>(nullptr));
    case ScalarType::Double:
      return fn(static_cast<double*>(nullptr), static_cast<double*>(nullptr));
    case ScalarType::Half:
      return fn(static_cast<Half*>(nullptr), static_cast<float*>(nullptr));
    case ScalarType::BFloat16:
      return fn(static_cast<BFloat16*>(nullptr), static_cast<float*>(nullptr));
    default:
      check(false, op, ": out: expected float32, float64, float16 or bfloat16");
  }
}

}  // namespace pyrobust

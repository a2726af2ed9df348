// pyrobust::sample_noise: the schema, the checks, the choice of device and dtype.
#include <cmath>
#include <optional>
#include <vector>

#include "check.h"
#include "cpu/sample_noise.h"
#include "cuda/sample_noise.h"
#include "cuda/stream.h"
#include "threads.h"

namespace pyrobust {
namespace {

constexpr const char* kOp = "sample_noise";
constexpr int64_t kWords = int64_t{1} << 32;

// Strides of [N, C, H, W] with the channels innermost. A dimension of size 1 may have any stride.
bool is_channels_last(const Tensor& t) {
  if (t.dim() != 4) return false;
  const int64_t order[4] = {1, 3, 2, 0};
  int64_t expected = 1;
  for (int64_t d : order) {
    if (t.size(d) != 1 && t.stride(d) != expected) return false;
    expected *= t.size(d);
  }
  return true;
}

struct Call {
  NoiseKey key;
  std::vector<NoiseRun> runs;
  NoiseShape shape;
  bool empty;
};

// out: [N, ...] and x: [M, ...] of one trailing shape; runs: (row, image, first, count) times R; mean, std: [C].
Call checked(const Tensor& out, const Tensor& x, const std::vector<int64_t>& runs, int64_t seed, double sigma,
             int64_t domain, const std::optional<Tensor>& mean, const std::optional<Tensor>& std) {
  check(x.dim() >= 1 && out.dim() == x.dim(), kOp, ": out: expected the dimensions of x, ", shape_of(x), ", got ",
        shape_of(out));
  for (int64_t d = 1; d < x.dim(); ++d)
    check(x.size(d) == out.size(d), kOp, ": out: expected x's shape after dimension 0, ", shape_of(x), ", got ",
          shape_of(out));
  check_same_device(kOp, "x", x, out);
  check(x.is_contiguous(), kOp, ": x: expected a contiguous tensor");
  const bool contiguous = out.is_contiguous();
  check(contiguous || is_channels_last(out), kOp, ": out: expected a contiguous or channels_last tensor");
  const auto* x_begin = static_cast<const char*>(x.const_data_ptr());
  const auto* out_begin = static_cast<const char*>(out.const_data_ptr());
  check(x_begin + x.numel() * x.element_size() <= out_begin || out_begin + out.numel() * out.element_size() <= x_begin,
        kOp, ": out: expected memory of its own, got some of x's");
  const ScalarType real = out.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
  check(x.scalar_type() == real, kOp, ": x: expected float64 for a float64 out and float32 for any other");
  check(std::isfinite(sigma) && sigma > 0, kOp, ": sigma: expected a positive number, got ", sigma);
  check(domain >= 0 && domain < kWords && (domain & 0xff) < kFamilies, kOp,
        ": domain: expected stage * 256 + family with a family below ", kFamilies, ", got ", domain);
  check(mean.has_value() == std.has_value(), kOp, ": mean, std: expected both or neither");

  int64_t row = 1;
  for (int64_t d = 1; d < x.dim(); ++d)
    check(!__builtin_mul_overflow(row, x.size(d), &row), kOp, ": x: expected at most 2**34 elements an image, got ",
          shape_of(x));
  check((row + 3) / 4 <= kWords, kOp, ": x: expected at most 2**34 elements an image, got ", row);
  int64_t channels = 1;
  if (std.has_value()) {
    check(x.dim() >= 2, kOp, ": mean, std: expected x of at least 2 dimensions, got ", shape_of(x));
    channels = x.size(1);
    for (const auto& [name, t] : {std::pair<const char*, const Tensor*>{"mean", &*mean}, {"std", &*std}}) {
      check(t->dim() == 1 && t->size(0) == channels && t->scalar_type() == real && t->is_contiguous(), kOp, ": ", name,
            ": expected a contiguous [", channels, "] of x's dtype, got ", shape_of(*t));
      check_same_device(kOp, name, *t, out);
    }
    if (std->is_cpu()) {  // on a GPU looking would wait for the device
      const auto value = [&](const Tensor& t, int64_t c) -> double {
        return real == ScalarType::Double ? static_cast<const double*>(t.const_data_ptr())[c]
                                          : static_cast<const float*>(t.const_data_ptr())[c];
      };
      for (int64_t c = 0; c < channels; ++c) {
        check(std::isfinite(value(*mean, c)), kOp, ": normalize: expected a finite mean, got ", value(*mean, c),
              " for channel ", c);
        check(std::isfinite(value(*std, c)) && value(*std, c) > 0, kOp, ": normalize: expected a positive std, got ",
              value(*std, c), " for channel ", c);
      }
    }
  }
  if (!contiguous) channels = x.size(1);

  check(runs.size() % 4 == 0, kOp, ": runs: expected (row, image, first, count) for each, got ", runs.size(),
        " numbers");
  Call call{{static_cast<uint64_t>(seed), static_cast<uint32_t>(domain)}, {}, {0, channels, 0, !contiguous}, false};
  for (size_t r = 0; r < runs.size(); r += 4) {
    const int64_t image_row = runs[r], image = runs[r + 1], first = runs[r + 2], count = runs[r + 3];
    check(image_row >= 0 && image_row < x.size(0), kOp, ": runs: row: expected 0 to ", x.size(0) - 1, ", got ",
          image_row);
    check(image >= 0 && image < kWords, kOp, ": runs: image: expected an index below 2**32, got ", image);
    check(count >= 0 && first >= 0 && first <= kWords && count <= kWords - first, kOp,
          ": runs: first, count: expected sample indices below 2**32, got ", first, ", ", count);
    if (count == 0) continue;
    call.runs.push_back({image_row, static_cast<uint32_t>(image), static_cast<uint32_t>(first), call.shape.samples});
    check(count <= out.size(0) - call.shape.samples, kOp, ": out: expected as many rows as the runs have samples, got ",
          out.size(0));
    call.shape.samples += count;
  }
  check(call.shape.samples == out.size(0), kOp, ": out: expected ", call.shape.samples, " rows, one a sample, got ",
        out.size(0));
  call.empty = out.numel() == 0;
  if (!call.empty) call.shape.plane = row / channels;
  return call;
}

template <class Real>
const Real* data_or_null(const std::optional<Tensor>& t) {
  return t.has_value() ? static_cast<const Real*>(t->const_data_ptr()) : nullptr;
}

// One launch for the element type of out: fn(static_cast<Out*>(nullptr), static_cast<Real*>(nullptr)).
template <class Fn>
void for_dtype(const Tensor& out, const Fn& fn) {
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
      check(false, kOp, ": out: expected float32, float64, float16 or bfloat16");
  }
}

void sample_noise_cpu(Tensor out, Tensor x, std::vector<int64_t> runs, int64_t seed, double sigma, int64_t domain,
                      std::optional<Tensor> mean, std::optional<Tensor> std) {
  const Call call = checked(out, x, runs, seed, sigma, domain, mean, std);
  if (call.empty) return;
  for_dtype(out, [&](auto* out_tag, auto* real_tag) {
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    using Real = std::remove_pointer_t<decltype(real_tag)>;
    cpu::sample_noise<Out, Real>(call.key, call.runs.data(), static_cast<int64_t>(call.runs.size()), call.shape,
                                 static_cast<const Real*>(x.const_data_ptr()), static_cast<Real>(sigma),
                                 data_or_null<Real>(mean), data_or_null<Real>(std),
                                 static_cast<Out*>(out.mutable_data_ptr()), kParallelFor);
  });
}

#ifdef PYROBUST_WITH_CUDA
void sample_noise_cuda(Tensor out, Tensor x, std::vector<int64_t> runs, int64_t seed, double sigma, int64_t domain,
                       std::optional<Tensor> mean, std::optional<Tensor> std) {
  const Call call = checked(out, x, runs, seed, sigma, domain, mean, std);
  if (call.empty) return;
  const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
  const cudaStream_t stream = current_stream(kOp, out);
  for_dtype(out, [&](auto* out_tag, auto* real_tag) {
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    using Real = std::remove_pointer_t<decltype(real_tag)>;
    check_launch(
        kOp, cuda::sample_noise<Out, Real>(call.key, call.runs.data(), static_cast<int64_t>(call.runs.size()),
                                           call.shape, static_cast<const Real*>(x.const_data_ptr()),
                                           static_cast<Real>(sigma), data_or_null<Real>(mean), data_or_null<Real>(std),
                                           static_cast<Out*>(out.mutable_data_ptr()), stream));
  });
}
#endif

}  // namespace
}  // namespace pyrobust

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def(
      "sample_noise(Tensor(a!) out, Tensor x, int[] runs, int seed, float sigma, int domain, Tensor? mean, Tensor? "
      "std) "
      "-> ()");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) { m.impl("sample_noise", TORCH_BOX(&pyrobust::sample_noise_cpu)); }
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) { m.impl("sample_noise", TORCH_BOX(&pyrobust::sample_noise_cuda)); }
#endif

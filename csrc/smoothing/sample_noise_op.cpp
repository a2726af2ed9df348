// pyrobust::sample_noise: the schema, the checks, the choice of device and dtype.
#include <cmath>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/cuda_stream.h"
#include "common/threads.h"
#include "smoothing/arguments.h"
#include "smoothing/cpu/sample_noise.h"
#include "smoothing/cuda/sample_noise.h"

namespace pyrobust::sample_noise_op {
namespace {

constexpr const char* kOp = "sample_noise";

// Checks what check_noise does, and x's dtype, sigma and the family.
NoiseCall checked(const Tensor& out, const Tensor& x, const std::vector<int64_t>& runs, int64_t seed, double sigma,
                  int64_t domain, const std::optional<Tensor>& mean, const std::optional<Tensor>& std,
                  const std::vector<int64_t>& keys) {
  const ScalarType real = real_of(out);
  check(x.scalar_type() == real, kOp, ": x: expected float64 for a float64 out and float32 for any other");
  check(std::isfinite(sigma) && sigma > 0, kOp, ": sigma: expected a positive number, got ", sigma);
  check(domain >= 0 && domain < kNoiseWords && (domain & 0xff) < kFamilies, kOp,
        ": domain: expected stage * 256 + family with a family below ", kFamilies, ", got ", domain);
  return check_noise({kOp, "x", out, x}, runs, seed, domain, mean, std, keys);
}

void sample_noise_cpu(Tensor out, Tensor x, std::vector<int64_t> runs, int64_t seed, double sigma, int64_t domain,
                      std::optional<Tensor> mean, std::optional<Tensor> std, std::vector<int64_t> keys) {
  const NoiseCall call = checked(out, x, runs, seed, sigma, domain, mean, std, keys);
  if (call.empty) return;
  for_noise_dtype(kOp, out, [&](auto* out_tag, auto* real_tag) {
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    using Real = std::remove_pointer_t<decltype(real_tag)>;
    cpu::sample_noise<Out, Real>(call.domain, call.runs.data(), static_cast<int64_t>(call.runs.size()), call.shape,
                                 static_cast<const Real*>(x.const_data_ptr()), static_cast<Real>(sigma),
                                 data_or_null<Real>(mean), data_or_null<Real>(std),
                                 static_cast<Out*>(out.mutable_data_ptr()), kParallelFor);
  });
}

#ifdef PYROBUST_WITH_CUDA
void sample_noise_cuda(Tensor out, Tensor x, std::vector<int64_t> runs, int64_t seed, double sigma, int64_t domain,
                       std::optional<Tensor> mean, std::optional<Tensor> std, std::vector<int64_t> keys) {
  const NoiseCall call = checked(out, x, runs, seed, sigma, domain, mean, std, keys);
  if (call.empty) return;
  const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
  const cudaStream_t stream = current_stream(kOp, out);
  for_noise_dtype(kOp, out, [&](auto* out_tag, auto* real_tag) {
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    using Real = std::remove_pointer_t<decltype(real_tag)>;
    check_launch(
        kOp, cuda::sample_noise<Out, Real>(call.domain, call.runs.data(), static_cast<int64_t>(call.runs.size()),
                                           call.shape, static_cast<const Real*>(x.const_data_ptr()),
                                           static_cast<Real>(sigma), data_or_null<Real>(mean), data_or_null<Real>(std),
                                           static_cast<Out*>(out.mutable_data_ptr()), stream));
  });
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def(
      "sample_noise(Tensor(a!) out, Tensor x, int[] runs, int seed, float sigma, int domain, Tensor? mean, Tensor? "
      "std, int[] keys=[]) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) { m.impl("sample_noise", TORCH_BOX(&sample_noise_cpu)); }
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) { m.impl("sample_noise", TORCH_BOX(&sample_noise_cuda)); }
#endif

}  // namespace
}  // namespace pyrobust::sample_noise_op

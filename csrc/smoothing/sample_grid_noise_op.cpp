// pyrobust::sample_grid_noise: the schema, the checks, the choice of device and dtype.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/cuda_stream.h"
#include "common/threads.h"
#include "smoothing/arguments.h"
#include "smoothing/cpu/sample_grid_noise.h"
#include "smoothing/cuda/sample_grid_noise.h"

namespace pyrobust::sample_grid_noise_op {
namespace {

constexpr const char* kOp = "sample_grid_noise";
constexpr int64_t kMaxTerm = int64_t{1} << 24;  // floats and the table hold all integers up to there

// The largest |sum| for which k + j is an int32 and its product with p a Real without rounding.
template <class Real>
int64_t largest_sum(int64_t p) {
  return std::min<int64_t>((int64_t{1} << std::numeric_limits<Real>::digits) / p, std::numeric_limits<int32_t>::max());
}

struct GridCall {
  NoiseCall noise;
  GridTable table;
};

// Checks what check_noise does, the table, and, on the CPU, that no sum of integers is so large that the division would
// not be the only rounding. guide: [32 * 2^m]; thresholds: [count, 3].
GridCall checked(const Tensor& out, const Tensor& tail, const Tensor& k, const std::vector<int64_t>& runs, int64_t seed,
                 int64_t domain, const Tensor& guide, const Tensor& thresholds, int64_t p, int64_t q,
                 const std::optional<Tensor>& mean, const std::optional<Tensor>& std,
                 const std::vector<int64_t>& keys) {
  check(k.scalar_type() == ScalarType::Int, kOp, ": k: expected int32");
  check(domain >= 0 && domain < kNoiseWords && (domain & 0xff) == kGridFamily, kOp, ": domain: expected stage * 256 + ",
        kGridFamily, ", got ", domain);
  check(p > 0 && p < kMaxTerm && q > 0 && q < kMaxTerm, kOp,
        ": step: expected a numerator and a denominator of 1 to 2**24 - 1, got ", p, "/", q);
  check(
      tail.dim() == 1 && tail.size(0) == out.size(0) && tail.scalar_type() == ScalarType::Bool && tail.is_contiguous(),
      kOp, ": tail: expected a contiguous bool [", out.size(0), "], got ", shape_of(tail));
  check_same_device(kOp, "tail", tail, out);
  int cell_bits = 0;
  while (cell_bits < kMantissa && guide.numel() > int64_t{kGuideOctaves} << cell_bits) ++cell_bits;
  check(guide.scalar_type() == ScalarType::Int && guide.is_contiguous() &&
            guide.numel() == int64_t{kGuideOctaves} << cell_bits,
        kOp, ": guide: expected a contiguous int32 of 32 * 2**m elements, got ", shape_of(guide));
  check_same_device(kOp, "guide", guide, out);
  check(thresholds.dim() == 2 && thresholds.size(0) > 0 && thresholds.size(0) < kMaxTerm && thresholds.size(1) == 3 &&
            thresholds.scalar_type() == ScalarType::Int && thresholds.is_contiguous(),
        kOp, ": thresholds: expected a contiguous int32 [count, 3], got ", shape_of(thresholds));
  check_same_device(kOp, "thresholds", thresholds, out);
  GridCall call{
      check_noise({kOp, "k", out, k}, runs, seed, domain, mean, std, keys),
      {static_cast<const uint32_t*>(guide.const_data_ptr()), static_cast<const uint32_t*>(thresholds.const_data_ptr()),
       static_cast<int32_t>(thresholds.size(0)), kMantissa - cell_bits}};
  if (k.is_cpu() && !call.noise.empty) {
    const int64_t largest =
        (real_of(out) == ScalarType::Double ? largest_sum<double>(p) : largest_sum<float>(p)) - call.table.count;
    const auto* values = static_cast<const int32_t*>(k.const_data_ptr());
    int32_t low = 0, high = 0;
    for (int64_t i = 0; i < k.numel(); ++i) {
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
    }
    check(high <= largest && low >= -largest, kOp, ": k: expected at most ", largest,
          " in size, so that with noise and times the step's numerator, ", p, ", its float is exact, got ",
          high > largest ? high : low);
  }
  return call;
}

void sample_grid_noise_cpu(Tensor out, Tensor tail, Tensor k, std::vector<int64_t> runs, int64_t seed, int64_t domain,
                           Tensor guide, Tensor thresholds, int64_t p, int64_t q, std::optional<Tensor> mean,
                           std::optional<Tensor> std, std::vector<int64_t> keys) {
  const GridCall grid = checked(out, tail, k, runs, seed, domain, guide, thresholds, p, q, mean, std, keys);
  const NoiseCall& call = grid.noise;
  if (call.empty) return;
  for_noise_dtype(kOp, out, [&](auto* out_tag, auto* real_tag) {
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    using Real = std::remove_pointer_t<decltype(real_tag)>;
    cpu::sample_grid_noise<Out, Real>(grid.table, call.domain, call.runs.data(), static_cast<int64_t>(call.runs.size()),
                                      call.shape, static_cast<const int32_t*>(k.const_data_ptr()), static_cast<Real>(p),
                                      static_cast<Real>(q), data_or_null<Real>(mean), data_or_null<Real>(std),
                                      static_cast<Out*>(out.mutable_data_ptr()),
                                      static_cast<uint8_t*>(tail.mutable_data_ptr()), kParallelFor);
  });
}

#ifdef PYROBUST_WITH_CUDA
void sample_grid_noise_cuda(Tensor out, Tensor tail, Tensor k, std::vector<int64_t> runs, int64_t seed, int64_t domain,
                            Tensor guide, Tensor thresholds, int64_t p, int64_t q, std::optional<Tensor> mean,
                            std::optional<Tensor> std, std::vector<int64_t> keys) {
  const GridCall grid = checked(out, tail, k, runs, seed, domain, guide, thresholds, p, q, mean, std, keys);
  const NoiseCall& call = grid.noise;
  if (call.empty) return;
  const torch::stable::accelerator::DeviceGuard guard(out.get_device_index());
  const cudaStream_t stream = current_stream(kOp, out);
  for_noise_dtype(kOp, out, [&](auto* out_tag, auto* real_tag) {
    using Out = std::remove_pointer_t<decltype(out_tag)>;
    using Real = std::remove_pointer_t<decltype(real_tag)>;
    check_launch(kOp, cuda::sample_grid_noise<Out, Real>(
                          grid.table, call.domain, call.runs.data(), static_cast<int64_t>(call.runs.size()), call.shape,
                          static_cast<const int32_t*>(k.const_data_ptr()), static_cast<Real>(p), static_cast<Real>(q),
                          data_or_null<Real>(mean), data_or_null<Real>(std), static_cast<Out*>(out.mutable_data_ptr()),
                          static_cast<uint8_t*>(tail.mutable_data_ptr()), stream));
  });
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def(
      "sample_grid_noise(Tensor(a!) out, Tensor(b!) tail, Tensor k, int[] runs, int seed, int domain, Tensor guide, "
      "Tensor thresholds, int numerator, int denominator, Tensor? mean, Tensor? std, int[] keys=[]) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) { m.impl("sample_grid_noise", TORCH_BOX(&sample_grid_noise_cpu)); }
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) { m.impl("sample_grid_noise", TORCH_BOX(&sample_grid_noise_cuda)); }
#endif

}  // namespace
}  // namespace pyrobust::sample_grid_noise_op

// pyrobust::hyperplane_step: the schema, the checks, the choice of device and dtype.
#include "attacks/cpu/hyperplane_step.h"

#include "attacks/arguments.h"
#include "attacks/cuda/hyperplane_step.h"
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"

namespace pyrobust::hyperplane_step_op {
namespace {

constexpr const char* kOp = "hyperplane_step";

// x: [S * B, D]; at, w: [B, D]; value: [B]
Tensor checked_output(const Tensor& x, const Tensor& at, const Tensor& w, const Tensor& value, int64_t norm,
                      double lower, double upper) {
  check_rows(kOp, "x", x);
  check_rows(kOp, "w", w);
  check_like(kOp, "at", at, w);
  check(w.size(1) == x.size(1) && w.scalar_type() == x.scalar_type() &&
            (w.size(0) > 0 ? x.size(0) % w.size(0) == 0 : x.size(0) == 0),
        kOp, ": w: expected x's dtype, and rows as long as those of x ", shape_of(x),
        ", of which it has a divisor, got ", shape_of(w));
  check_same_device(kOp, "w", w, x);
  check(value.dim() == 1 && value.size(0) == w.size(0) && value.scalar_type() == ScalarType::Double &&
            value.is_contiguous(),
        kOp, ": value: expected a contiguous float64 [", w.size(0), "], got ", shape_of(value));
  check_same_device(kOp, "value", value, x);
  check(norm >= 0 && norm < 3, kOp, ": norm: expected 0, 1 or 2, got ", norm);
  check_box(kOp, lower, upper);
  return torch::stable::empty_like(x);
}

Tensor step_cpu(Tensor x, Tensor at, Tensor w, Tensor value, int64_t norm, double lower, double upper) {
  Tensor step = checked_output(x, at, w, value, norm, lower, upper);
  if (x.numel() == 0) return step;
  const cpu::KeepDenormals keep_denormals;
  for_dtype(kOp, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::hyperplane_step<T>(in<T>(x), in<T>(at), in<T>(w), in<double>(value), norm, out<T>(step), x.size(0), w.size(0),
                            x.size(1), lower, upper, kParallelFor);
  });
  return step;
}

#ifdef PYROBUST_WITH_CUDA
Tensor step_cuda(Tensor x, Tensor at, Tensor w, Tensor value, int64_t norm, double lower, double upper) {
  Tensor step = checked_output(x, at, w, value, norm, lower, upper);
  if (x.numel() == 0) return step;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(kOp, x);
  for_dtype(kOp, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kOp, cuda::hyperplane_step<T>(in<T>(x), in<T>(at), in<T>(w), in<double>(value), norm, out<T>(step),
                                               x.size(0), w.size(0), x.size(1), lower, upper, stream));
  });
  return step;
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("hyperplane_step(Tensor x, Tensor at, Tensor w, Tensor value, int norm, float lower, float upper) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) { m.impl("hyperplane_step", TORCH_BOX(&step_cpu)); }
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) { m.impl("hyperplane_step", TORCH_BOX(&step_cuda)); }
#endif

}  // namespace
}  // namespace pyrobust::hyperplane_step_op

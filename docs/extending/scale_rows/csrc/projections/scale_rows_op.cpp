// pyrobust::scale_rows: the schema, the checks, the choice of device and dtype.
#include "common/check.h"
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"
#include "projections/cpu/scale_rows.h"
#include "projections/cuda/scale_rows.h"

namespace pyrobust::scale_rows_op {
namespace {

constexpr const char* kOp = "scale_rows";

// x: [B, D]; scale: [B]
void check_arguments(const Tensor& x, const Tensor& scale) {
  check(x.dim() == 2, kOp, ": x: expected [B, D], got ", shape_of(x));
  check(x.scalar_type() == ScalarType::Float || x.scalar_type() == ScalarType::Double, kOp,
        ": x: expected float32 or float64");
  check(x.is_contiguous(), kOp, ": x: expected a contiguous tensor");
  check(scale.dim() == 1 && scale.size(0) == x.size(0), kOp, ": scale: expected [", x.size(0), "], got ",
        shape_of(scale));
  check(scale.is_contiguous(), kOp, ": scale: expected a contiguous tensor");
  check(scale.scalar_type() == x.scalar_type(), kOp, ": scale: expected the dtype of x");
  check_same_device(kOp, "scale", scale, x);
}

Tensor scale_rows_cpu(Tensor x, Tensor scale) {
  check_arguments(x, scale);
  Tensor y = torch::stable::new_empty(x, {x.size(0), x.size(1)});
  if (x.numel() == 0) return y;
  for_real(x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::scale_rows<T>(in<T>(x), in<T>(scale), out<T>(y), x.size(0), x.size(1), kParallelFor);
  });
  return y;
}

#ifdef PYROBUST_WITH_CUDA
Tensor scale_rows_cuda(Tensor x, Tensor scale) {
  check_arguments(x, scale);
  Tensor y = torch::stable::new_empty(x, {x.size(0), x.size(1)});
  if (x.numel() == 0) return y;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  for_real(x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kOp,
                 cuda::scale_rows<T>(in<T>(x), in<T>(scale), out<T>(y), x.size(0), x.size(1), current_stream(kOp, x)));
  });
  return y;
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) { m.def("scale_rows(Tensor x, Tensor scale) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) { m.impl("scale_rows", TORCH_BOX(&scale_rows_cpu)); }
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) { m.impl("scale_rows", TORCH_BOX(&scale_rows_cuda)); }
#endif

}  // namespace
}  // namespace pyrobust::scale_rows_op

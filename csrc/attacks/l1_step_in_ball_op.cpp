// pyrobust::l1_step_in_ball: the schema, the checks, the choice of device and dtype.
#include "attacks/cpu/l1_step_in_ball.h"

#include "attacks/arguments.h"
#include "attacks/cuda/steps.h"
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"
#include "projections/cuda/l1_box.h"

namespace pyrobust::l1_step_in_ball_op {
namespace {

constexpr const char* kOp = "l1_step_in_ball";

// x_adv, grad, x: [R, D]; step, keep, epsilon: [R] or [1]
Tensor checked_output(const Tensor& x_adv, const Tensor& grad, const Tensor& x, const Tensor& step, const Tensor& keep,
                      const Tensor& epsilon, double lower, double upper) {
  check_rows(kOp, "x", x);
  check_like(kOp, "x_adv", x_adv, x);
  check_like(kOp, "grad", grad, x);
  check_step(kOp, step, x);
  check_keep(kOp, keep, x);
  check_radius(kOp, epsilon, x);
  check_box(kOp, lower, upper);
  return torch::stable::empty_like(x);
}

Tensor step_cpu(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor keep, Tensor epsilon, double lower,
                double upper) {
  Tensor out = checked_output(x_adv, grad, x, step, keep, epsilon, lower, upper);
  if (x.numel() == 0) return out;
  const cpu::KeepDenormals keep_denormals;
  for_dtype(kOp, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const cpu::BadRow bad = cpu::l1_step_in_ball<T>(
        in<T>(x_adv), in<T>(grad), in<T>(x), in<double>(step), row_stride(step), in<int64_t>(keep), row_stride(keep),
        in<double>(epsilon), row_stride(epsilon), static_cast<T*>(out.mutable_data_ptr()), x.size(0), x.size(1), lower,
        upper, static_cast<int>(torch::stable::get_num_threads()), kParallelFor);
    check_in_box(kOp, bad.x, lower, upper);
    check_finite(kOp, "x_adv", bad.y);
  });
  return out;
}

#ifdef PYROBUST_WITH_CUDA
Tensor step_cuda(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor keep, Tensor epsilon, double lower,
                 double upper) {
  Tensor out = checked_output(x_adv, grad, x, step, keep, epsilon, lower, upper);
  if (x.numel() == 0) return out;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(kOp, x);
  Tensor projected = torch::stable::empty_like(x);
  for_dtype(kOp, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    T* delta = static_cast<T*>(out.mutable_data_ptr());
    T* z = static_cast<T*>(projected.mutable_data_ptr());
    check_launch(
        kOp, cuda::l1_step<T>(in<T>(x_adv), in<T>(grad), in<T>(x), in<double>(step), row_stride(step),
                              in<int64_t>(keep), row_stride(keep), delta, x.size(0), x.size(1), lower, upper, stream));
    check_launch(kOp, cuda::project_l1_box<T>(delta, in<T>(x), z, in<double>(epsilon), row_stride(epsilon), x.size(0),
                                              x.size(1), lower, upper, stream));
    check_launch(kOp, cuda::add_perturbation<T>(in<T>(x), z, delta, x.numel(), lower, upper, stream));
  });
  return out;
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def(
      "l1_step_in_ball(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor keep, Tensor epsilon, float lower, "
      "float upper) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) { m.impl("l1_step_in_ball", TORCH_BOX(&step_cpu)); }
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) { m.impl("l1_step_in_ball", TORCH_BOX(&step_cuda)); }
#endif

}  // namespace
}  // namespace pyrobust::l1_step_in_ball_op

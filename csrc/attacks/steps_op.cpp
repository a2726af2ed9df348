// pyrobust::add_perturbation, linf_step, linf_momentum_step and l1_step: the schemas, the checks, the choice of device
// and dtype.
#include "attacks/arguments.h"
#include "attacks/cpu/steps.h"
#include "attacks/cuda/steps.h"
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"

namespace pyrobust::steps_op {
namespace {

constexpr const char* kAdd = "add_perturbation";
constexpr const char* kLinf = "linf_step";
constexpr const char* kMomentum = "linf_momentum_step";
constexpr const char* kL1 = "l1_step";

// x, z: [R, D]
Tensor add_checked(const Tensor& x, const Tensor& z, double lower, double upper) {
  check_rows(kAdd, "x", x);
  check_like(kAdd, "z", z, x);
  check_box(kAdd, lower, upper);
  return torch::stable::empty_like(x);
}

Tensor add_cpu(Tensor x, Tensor z, double lower, double upper) {
  Tensor out = add_checked(x, z, lower, upper);
  if (x.numel() == 0) return out;
  const cpu::KeepDenormals keep_denormals;
  for_dtype(kAdd, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const int64_t bad = cpu::add_perturbation<T>(in<T>(x), in<T>(z), static_cast<T*>(out.mutable_data_ptr()), x.size(0),
                                                 x.size(1), lower, upper, kParallelFor);
    check(bad < 0, kAdd, ": x, z: expected x in [", lower, ", ", upper, "] and z not NaN, got others in row ", bad);
  });
  return out;
}

// x_adv, grad, x: [R, ...]; step, epsilon: [R] or [1]
Tensor linf_checked(const Tensor& x_adv, const Tensor& grad, const Tensor& x, const Tensor& step, const Tensor& epsilon,
                    double lower, double upper) {
  check_examples(kLinf, "x", x);
  check_example_like(kLinf, "x_adv", x_adv, x);
  check_example_like(kLinf, "grad", grad, x);
  check_step(kLinf, step, x);
  check_radius(kLinf, epsilon, x);
  check_box(kLinf, lower, upper);
  return torch::stable::empty_like(x);
}

Tensor linf_cpu(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor epsilon, double lower, double upper) {
  Tensor out = linf_checked(x_adv, grad, x, step, epsilon, lower, upper);
  if (x.numel() == 0) return out;
  const cpu::KeepDenormals keep_denormals;
  for_dtype(kLinf, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_in_box(kLinf,
                 cpu::linf_step<T>(in<T>(x_adv), in<T>(grad), in<T>(x), in<double>(step), row_stride(step),
                                   in<double>(epsilon), row_stride(epsilon), static_cast<T*>(out.mutable_data_ptr()),
                                   x.size(0), row_size(x), lower, upper, kParallelFor),
                 lower, upper);
  });
  return out;
}

// x_adv, grad, x, before: [R, ...]; step, epsilon: [R] or [1]
Tensor momentum_checked(const Tensor& x_adv, const Tensor& grad, const Tensor& x, const Tensor& before,
                        const Tensor& step, const Tensor& epsilon, double share, double lower, double upper) {
  check_examples(kMomentum, "x", x);
  check_example_like(kMomentum, "x_adv", x_adv, x);
  check_example_like(kMomentum, "grad", grad, x);
  check_example_like(kMomentum, "before", before, x);
  check_step(kMomentum, step, x);
  check_radius(kMomentum, epsilon, x);
  check(share >= 0 && share <= 1, kMomentum, ": share: expected 0 to 1, got ", share);
  check_box(kMomentum, lower, upper);
  return torch::stable::empty_like(x);
}

Tensor momentum_cpu(Tensor x_adv, Tensor grad, Tensor x, Tensor before, Tensor step, Tensor epsilon, double share,
                    double lower, double upper) {
  Tensor out = momentum_checked(x_adv, grad, x, before, step, epsilon, share, lower, upper);
  if (x.numel() == 0) return out;
  const cpu::KeepDenormals keep_denormals;
  for_dtype(kMomentum, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_in_box(kMomentum,
                 cpu::linf_momentum_step<T>(in<T>(x_adv), in<T>(grad), in<T>(x), in<T>(before), in<double>(step),
                                            row_stride(step), in<double>(epsilon), row_stride(epsilon), share,
                                            static_cast<T*>(out.mutable_data_ptr()), x.size(0), row_size(x), lower,
                                            upper, kParallelFor),
                 lower, upper);
  });
  return out;
}

// x_adv, grad, x: [R, D]; step, keep: [R] or [1]
Tensor l1_checked(const Tensor& x_adv, const Tensor& grad, const Tensor& x, const Tensor& step, const Tensor& keep,
                  double lower, double upper) {
  check_rows(kL1, "x", x);
  check_like(kL1, "x_adv", x_adv, x);
  check_like(kL1, "grad", grad, x);
  check_step(kL1, step, x);
  check_keep(kL1, keep, x);
  check_box(kL1, lower, upper);
  return torch::stable::empty_like(x);
}

Tensor l1_cpu(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor keep, double lower, double upper) {
  Tensor out = l1_checked(x_adv, grad, x, step, keep, lower, upper);
  if (x.numel() == 0) return out;
  const cpu::KeepDenormals keep_denormals;
  for_dtype(kL1, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::l1_step<T>(in<T>(x_adv), in<T>(grad), in<T>(x), in<double>(step), row_stride(step), in<int64_t>(keep),
                    row_stride(keep), static_cast<T*>(out.mutable_data_ptr()), x.size(0), x.size(1), lower, upper,
                    kParallelFor);
  });
  return out;
}

#ifdef PYROBUST_WITH_CUDA
Tensor add_cuda(Tensor x, Tensor z, double lower, double upper) {
  Tensor out = add_checked(x, z, lower, upper);
  if (x.numel() == 0) return out;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(kAdd, x);
  for_dtype(kAdd, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kAdd, cuda::add_perturbation<T>(in<T>(x), in<T>(z), static_cast<T*>(out.mutable_data_ptr()), x.numel(),
                                                 lower, upper, stream));
  });
  return out;
}

Tensor linf_cuda(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor epsilon, double lower, double upper) {
  Tensor out = linf_checked(x_adv, grad, x, step, epsilon, lower, upper);
  if (x.numel() == 0) return out;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(kLinf, x);
  for_dtype(kLinf, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kLinf,
                 cuda::linf_step<T>(in<T>(x_adv), in<T>(grad), in<T>(x), in<double>(step), row_stride(step),
                                    in<double>(epsilon), row_stride(epsilon), static_cast<T*>(out.mutable_data_ptr()),
                                    x.size(0), row_size(x), lower, upper, stream));
  });
  return out;
}

Tensor momentum_cuda(Tensor x_adv, Tensor grad, Tensor x, Tensor before, Tensor step, Tensor epsilon, double share,
                     double lower, double upper) {
  Tensor out = momentum_checked(x_adv, grad, x, before, step, epsilon, share, lower, upper);
  if (x.numel() == 0) return out;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(kMomentum, x);
  for_dtype(kMomentum, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kMomentum, cuda::linf_momentum_step<T>(
                                in<T>(x_adv), in<T>(grad), in<T>(x), in<T>(before), in<double>(step), row_stride(step),
                                in<double>(epsilon), row_stride(epsilon), share,
                                static_cast<T*>(out.mutable_data_ptr()), x.size(0), row_size(x), lower, upper, stream));
  });
  return out;
}

Tensor l1_cuda(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor keep, double lower, double upper) {
  Tensor out = l1_checked(x_adv, grad, x, step, keep, lower, upper);
  if (x.numel() == 0) return out;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(kL1, x);
  for_dtype(kL1, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kL1, cuda::l1_step<T>(in<T>(x_adv), in<T>(grad), in<T>(x), in<double>(step), row_stride(step),
                                       in<int64_t>(keep), row_stride(keep), static_cast<T*>(out.mutable_data_ptr()),
                                       x.size(0), x.size(1), lower, upper, stream));
  });
  return out;
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("add_perturbation(Tensor x, Tensor z, float lower, float upper) -> Tensor");
  m.def(
      "linf_step(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor epsilon, float lower, float upper) -> "
      "Tensor");
  m.def(
      "linf_momentum_step(Tensor x_adv, Tensor grad, Tensor x, Tensor before, Tensor step, Tensor epsilon, float "
      "share, "
      "float lower, float upper) -> Tensor");
  m.def("l1_step(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor keep, float lower, float upper) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("add_perturbation", TORCH_BOX(&add_cpu));
  m.impl("linf_step", TORCH_BOX(&linf_cpu));
  m.impl("linf_momentum_step", TORCH_BOX(&momentum_cpu));
  m.impl("l1_step", TORCH_BOX(&l1_cpu));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("add_perturbation", TORCH_BOX(&add_cuda));
  m.impl("linf_step", TORCH_BOX(&linf_cuda));
  m.impl("linf_momentum_step", TORCH_BOX(&momentum_cuda));
  m.impl("l1_step", TORCH_BOX(&l1_cuda));
}
#endif

}  // namespace
}  // namespace pyrobust::steps_op

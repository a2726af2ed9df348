// pyrobust::add_perturbation, linf_step and l1_step: the schemas, the checks, the choice of device and dtype.
#include "cpu/perturbation.h"
#include "cuda/perturbation.h"
#include "cuda/stream.h"
#include "dtypes.h"
#include "project_rows.h"
#include "threads.h"

namespace pyrobust {
namespace {

constexpr const char* kAdd = "add_perturbation";
constexpr const char* kLinf = "linf_step";
constexpr const char* kL1 = "l1_step";

void check_like(const char* op, const char* argument, const Tensor& t, const Tensor& x) {
  check_rows(op, argument, t);
  check(t.size(0) == x.size(0) && t.size(1) == x.size(1) && t.scalar_type() == x.scalar_type(), op, ": ", argument,
        ": expected x's shape and dtype, ", shape_of(x), ", got ", shape_of(t));
  check_same_device(op, argument, t, x);
}

// values: [R] or [1], contiguous, on x's device
void check_per_row(const char* op, const char* argument, const Tensor& values, const Tensor& x, ScalarType dtype) {
  check(values.dim() == 1 && (values.size(0) == 1 || values.size(0) == x.size(0)) && values.scalar_type() == dtype &&
            values.is_contiguous(),
        op, ": ", argument, ": expected a contiguous ", dtype == ScalarType::Double ? "float64" : "int64", " [1] or [",
        x.size(0), "], got ", shape_of(values));
  check_same_device(op, argument, values, x);
}

void check_step(const char* op, const Tensor& step, const Tensor& x) {
  check_per_row(op, "step", step, x, ScalarType::Double);
  if (!step.is_cpu()) return;
  const auto* values = static_cast<const double*>(step.const_data_ptr());
  const int64_t count = step.size(0);
  for (int64_t i = 0; i < count; ++i)
    check(std::isfinite(values[i]), op, ": step: expected finite numbers, got ", values[i]);
}

// keep: [R] or [1], 1 to D
void check_keep(const Tensor& keep, const Tensor& x) {
  check_per_row(kL1, "keep", keep, x, ScalarType::Long);
  if (!keep.is_cpu()) return;
  const auto* values = static_cast<const int64_t*>(keep.const_data_ptr());
  const int64_t count = keep.size(0), most = x.size(1);
  for (int64_t i = 0; i < count; ++i)
    check(values[i] >= 1 && values[i] <= std::max<int64_t>(1, most), kL1, ": keep: expected 1 to ", most, ", got ",
          values[i]);
}

int64_t stride(const Tensor& values) { return values.size(0) == 1 ? 0 : 1; }
template <class T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

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
    const int64_t bad = cpu::add_perturbation<T>(data<T>(x), data<T>(z), static_cast<T*>(out.mutable_data_ptr()),
                                                 x.size(0), x.size(1), lower, upper, kParallelFor);
    check(bad < 0, kAdd, ": x, z: expected x in [", lower, ", ", upper, "] and z not NaN, got others in row ", bad);
  });
  return out;
}

// x_adv, grad, x: [R, D]; step, epsilon: [R] or [1]
Tensor linf_checked(const Tensor& x_adv, const Tensor& grad, const Tensor& x, const Tensor& step, const Tensor& epsilon,
                    double lower, double upper) {
  check_rows(kLinf, "x", x);
  check_like(kLinf, "x_adv", x_adv, x);
  check_like(kLinf, "grad", grad, x);
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
                 cpu::linf_step<T>(data<T>(x_adv), data<T>(grad), data<T>(x), data<double>(step), stride(step),
                                   data<double>(epsilon), stride(epsilon), static_cast<T*>(out.mutable_data_ptr()),
                                   x.size(0), x.size(1), lower, upper, kParallelFor),
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
  check_keep(keep, x);
  check_box(kL1, lower, upper);
  return torch::stable::empty_like(x);
}

Tensor l1_cpu(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor keep, double lower, double upper) {
  Tensor out = l1_checked(x_adv, grad, x, step, keep, lower, upper);
  if (x.numel() == 0) return out;
  const cpu::KeepDenormals keep_denormals;
  for_dtype(kL1, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::l1_step<T>(data<T>(x_adv), data<T>(grad), data<T>(x), data<double>(step), stride(step), data<int64_t>(keep),
                    stride(keep), static_cast<T*>(out.mutable_data_ptr()), x.size(0), x.size(1), lower, upper,
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
    check_launch(kAdd, cuda::add_perturbation<T>(data<T>(x), data<T>(z), static_cast<T*>(out.mutable_data_ptr()),
                                                 x.numel(), lower, upper, stream));
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
                 cuda::linf_step<T>(data<T>(x_adv), data<T>(grad), data<T>(x), data<double>(step), stride(step),
                                    data<double>(epsilon), stride(epsilon), static_cast<T*>(out.mutable_data_ptr()),
                                    x.size(0), x.size(1), lower, upper, stream));
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
    check_launch(kL1, cuda::l1_step<T>(data<T>(x_adv), data<T>(grad), data<T>(x), data<double>(step), stride(step),
                                       data<int64_t>(keep), stride(keep), static_cast<T*>(out.mutable_data_ptr()),
                                       x.size(0), x.size(1), lower, upper, stream));
  });
  return out;
}
#endif

}  // namespace
}  // namespace pyrobust

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("add_perturbation(Tensor x, Tensor z, float lower, float upper) -> Tensor");
  m.def(
      "linf_step(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor epsilon, float lower, float upper) -> "
      "Tensor");
  m.def("l1_step(Tensor x_adv, Tensor grad, Tensor x, Tensor step, Tensor keep, float lower, float upper) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("add_perturbation", TORCH_BOX(&pyrobust::add_cpu));
  m.impl("linf_step", TORCH_BOX(&pyrobust::linf_cpu));
  m.impl("l1_step", TORCH_BOX(&pyrobust::l1_cpu));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("add_perturbation", TORCH_BOX(&pyrobust::add_cuda));
  m.impl("linf_step", TORCH_BOX(&pyrobust::linf_cuda));
  m.impl("l1_step", TORCH_BOX(&pyrobust::l1_cuda));
}
#endif

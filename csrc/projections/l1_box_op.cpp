// pyrobust::project_l1_ball_box: the schema, the checks, the choice of device and dtype.
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"
#include "projections/arguments.h"
#include "projections/cpu/l1_box.h"
#include "projections/cuda/l1_box.h"

namespace pyrobust::l1_box_op {
namespace {

constexpr const char* kOp = "project_l1_ball_box";

// delta, x: [R, D]; radius: [R] or [1]
void check_arguments(const Tensor& delta, const Tensor& x, const Tensor& radius, double lower, double upper,
                     const Tensor& out) {
  check_rows(kOp, "delta", delta);
  check_rows(kOp, "x", x);
  check(x.size(0) == delta.size(0) && x.size(1) == delta.size(1) && x.scalar_type() == delta.scalar_type(), kOp,
        ": x: expected delta's shape and dtype, ", shape_of(delta), ", got ", shape_of(x));
  check_same_device(kOp, "x", x, delta);
  check_radius(kOp, radius, delta);
  check_box(kOp, lower, upper);
  check_out(kOp, out, delta);
}

void project_into_cpu(Tensor delta, Tensor x, Tensor radius, double lower, double upper, Tensor z) {
  check_arguments(delta, x, radius, lower, upper, z);
  if (delta.numel() == 0) return;
  const cpu::KeepDenormals keep;
  for_dtype(kOp, "delta", delta, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const cpu::BadRow bad = cpu::project_l1_box<T>(
        static_cast<const T*>(delta.const_data_ptr()), static_cast<const T*>(x.const_data_ptr()),
        static_cast<T*>(z.mutable_data_ptr()), static_cast<const double*>(radius.const_data_ptr()), row_stride(radius),
        delta.size(0), delta.size(1), lower, upper, static_cast<int>(torch::stable::get_num_threads()), kParallelFor);
    check_finite(kOp, "delta", bad.y);
    check_in_box(kOp, bad.x, lower, upper);
  });
}

#ifdef PYROBUST_WITH_CUDA
void project_into_cuda(Tensor delta, Tensor x, Tensor radius, double lower, double upper, Tensor z) {
  check_arguments(delta, x, radius, lower, upper, z);
  if (delta.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(delta.get_device_index());
  const cudaStream_t stream = current_stream(kOp, delta);
  for_dtype(kOp, "delta", delta, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kOp, cuda::project_l1_box<T>(
                          static_cast<const T*>(delta.const_data_ptr()), static_cast<const T*>(x.const_data_ptr()),
                          static_cast<T*>(z.mutable_data_ptr()), static_cast<const double*>(radius.const_data_ptr()),
                          row_stride(radius), delta.size(0), delta.size(1), lower, upper, stream));
  });
}
#endif

template <auto into>
Tensor project(Tensor delta, Tensor x, Tensor radius, double lower, double upper) {
  Tensor z = torch::stable::empty_like(delta);
  into(delta, x, radius, lower, upper, z);
  return z;
}

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("project_l1_ball_box(Tensor delta, Tensor x, Tensor radius, float lower, float upper) -> Tensor");
  m.def(
      "project_l1_ball_box.into(Tensor delta, Tensor x, Tensor radius, float lower, float upper, Tensor(a!) out) -> "
      "()");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("project_l1_ball_box", TORCH_BOX(&project<project_into_cpu>));
  m.impl("project_l1_ball_box.into", TORCH_BOX(&project_into_cpu));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("project_l1_ball_box", TORCH_BOX(&project<project_into_cuda>));
  m.impl("project_l1_ball_box.into", TORCH_BOX(&project_into_cuda));
}
#endif

}  // namespace
}  // namespace pyrobust::l1_box_op

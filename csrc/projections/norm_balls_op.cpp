// pyrobust::project_l2_ball and pyrobust::project_linf_ball: the schemas, the checks, the choice of device and dtype.
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"
#include "projections/arguments.h"
#include "projections/cpu/norm_balls.h"
#include "projections/cuda/norm_balls.h"

namespace pyrobust::norm_balls_op {
namespace {

using cpu::NormBall;

const char* name(NormBall ball) { return ball == NormBall::kL2 ? "project_l2_ball" : "project_linf_ball"; }

// v: [R, D]; radius: [R] or [1]
void check_arguments(NormBall ball, const Tensor& v, const Tensor& radius, const Tensor& out) {
  check_rows(name(ball), "v", v);
  check_radius(name(ball), radius, v);
  check_out(name(ball), out, v);
}

template <NormBall ball>
void project_into_cpu(Tensor v, Tensor radius, Tensor z) {
  check_arguments(ball, v, radius, z);
  if (v.numel() == 0) return;
  const cpu::KeepDenormals keep;
  for_dtype(name(ball), "v", v, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_finite(name(ball), "v",
                 cpu::project_norm_ball<T>(
                     ball, static_cast<const T*>(v.const_data_ptr()), static_cast<T*>(z.mutable_data_ptr()),
                     static_cast<const double*>(radius.const_data_ptr()), row_stride(radius), v.size(0), v.size(1),
                     static_cast<int>(torch::stable::get_num_threads()), kParallelFor));
  });
}

#ifdef PYROBUST_WITH_CUDA
template <NormBall ball>
void project_into_cuda(Tensor v, Tensor radius, Tensor z) {
  check_arguments(ball, v, radius, z);
  if (v.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(v.get_device_index());
  const cudaStream_t stream = current_stream(name(ball), v);
  for_dtype(name(ball), "v", v, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(name(ball),
                 cuda::project_norm_ball<T>(ball == NormBall::kL2, static_cast<const T*>(v.const_data_ptr()),
                                            static_cast<T*>(z.mutable_data_ptr()),
                                            static_cast<const double*>(radius.const_data_ptr()), row_stride(radius),
                                            v.size(0), v.size(1), stream));
  });
}
#endif

template <auto into>
Tensor project(Tensor v, Tensor radius) {
  Tensor z = torch::stable::empty_like(v);
  into(v, radius, z);
  return z;
}

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("project_l2_ball(Tensor v, Tensor radius) -> Tensor");
  m.def("project_l2_ball.into(Tensor v, Tensor radius, Tensor(a!) out) -> ()");
  m.def("project_linf_ball(Tensor v, Tensor radius) -> Tensor");
  m.def("project_linf_ball.into(Tensor v, Tensor radius, Tensor(a!) out) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("project_l2_ball", TORCH_BOX(&project<project_into_cpu<cpu::NormBall::kL2>>));
  m.impl("project_l2_ball.into", TORCH_BOX(&project_into_cpu<cpu::NormBall::kL2>));
  m.impl("project_linf_ball", TORCH_BOX(&project<project_into_cpu<cpu::NormBall::kLinf>>));
  m.impl("project_linf_ball.into", TORCH_BOX(&project_into_cpu<cpu::NormBall::kLinf>));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("project_l2_ball", TORCH_BOX(&project<project_into_cuda<cpu::NormBall::kL2>>));
  m.impl("project_l2_ball.into", TORCH_BOX(&project_into_cuda<cpu::NormBall::kL2>));
  m.impl("project_linf_ball", TORCH_BOX(&project<project_into_cuda<cpu::NormBall::kLinf>>));
  m.impl("project_linf_ball.into", TORCH_BOX(&project_into_cuda<cpu::NormBall::kLinf>));
}
#endif

}  // namespace
}  // namespace pyrobust::norm_balls_op

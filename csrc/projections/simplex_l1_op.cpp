// pyrobust::project_simplex and pyrobust::project_l1_ball: the schemas, the checks, the choice of device and dtype.
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"
#include "projections/arguments.h"
#include "projections/cpu/simplex_l1.h"
#include "projections/cuda/simplex_l1.h"

namespace pyrobust::simplex_l1_op {
namespace {

constexpr const char* kSimplex = "project_simplex";
constexpr const char* kBall = "project_l1_ball";

// v: [R, D]; radius: [R] or [1]
void check_arguments(bool ball, const Tensor& v, const Tensor& radius) {
  const char* op = ball ? kBall : kSimplex;
  check_rows(op, "v", v);
  check_radius(op, radius, v);
  check(ball || v.size(1) > 0 || v.size(0) == 0, op, ": v: expected at least one element a row, got ", shape_of(v));
}

// z: like v
template <bool ball>
void project_into_cpu(Tensor v, Tensor radius, Tensor z) {
  const char* op = ball ? kBall : kSimplex;
  check_arguments(ball, v, radius);
  check_out(op, z, v);
  if (v.numel() == 0) return;
  const cpu::KeepDenormals keep;
  for_dtype(op, "v", v, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_finite(op, "v",
                 cpu::project_l1<T>(static_cast<const T*>(v.const_data_ptr()), static_cast<T*>(z.mutable_data_ptr()),
                                    static_cast<const double*>(radius.const_data_ptr()), row_stride(radius), v.size(0),
                                    v.size(1), ball, static_cast<int>(torch::stable::get_num_threads()), kParallelFor));
  });
}

#ifdef PYROBUST_WITH_CUDA
template <bool ball>
void project_into_cuda(Tensor v, Tensor radius, Tensor z) {
  const char* op = ball ? kBall : kSimplex;
  check_arguments(ball, v, radius);
  check_out(op, z, v);
  if (v.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(v.get_device_index());
  const cudaStream_t stream = current_stream(op, v);
  for_dtype(op, "v", v, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(op,
                 cuda::project_l1<T>(static_cast<const T*>(v.const_data_ptr()), static_cast<T*>(z.mutable_data_ptr()),
                                     static_cast<const double*>(radius.const_data_ptr()), row_stride(radius), v.size(0),
                                     v.size(1), ball, stream));
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
  m.def("project_simplex(Tensor v, Tensor radius) -> Tensor");
  m.def("project_simplex.into(Tensor v, Tensor radius, Tensor(a!) out) -> ()");
  m.def("project_l1_ball(Tensor v, Tensor radius) -> Tensor");
  m.def("project_l1_ball.into(Tensor v, Tensor radius, Tensor(a!) out) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("project_simplex", TORCH_BOX(&project<project_into_cpu<false>>));
  m.impl("project_simplex.into", TORCH_BOX(&project_into_cpu<false>));
  m.impl("project_l1_ball", TORCH_BOX(&project<project_into_cpu<true>>));
  m.impl("project_l1_ball.into", TORCH_BOX(&project_into_cpu<true>));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("project_simplex", TORCH_BOX(&project<project_into_cuda<false>>));
  m.impl("project_simplex.into", TORCH_BOX(&project_into_cuda<false>));
  m.impl("project_l1_ball", TORCH_BOX(&project<project_into_cuda<true>>));
  m.impl("project_l1_ball.into", TORCH_BOX(&project_into_cuda<true>));
}
#endif

}  // namespace
}  // namespace pyrobust::simplex_l1_op

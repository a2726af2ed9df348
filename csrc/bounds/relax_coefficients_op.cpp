// pyrobust::relax_coefficients and its backward pass: the schemas, the checks, the choice of device and dtype.
#include "bounds/cpu/relax_coefficients.h"

#include <cmath>
#include <tuple>

#include "bounds/cuda/relax_coefficients.h"
#include "common/check.h"
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"

namespace pyrobust::relax_coefficients_op {
namespace {

constexpr const char* kOp = "relax_coefficients";

void check_argument(const char* argument, const Tensor& t, const Tensor& a) {
  check(t.is_contiguous(), kOp, ": ", argument, ": expected a contiguous tensor");
  check(t.scalar_type() == a.scalar_type(), kOp, ": ", argument, ": expected the dtype of a");
  check_same_device(kOp, argument, t, a);
}

// a: [B, S, n]; lower, upper: [B, n]
void check_arguments(const Tensor& a, const Tensor& lower, const Tensor& upper, double slope) {
  check(a.dim() == 3, kOp, ": a: expected [B, S, n], got ", shape_of(a));
  check(a.scalar_type() == ScalarType::Float || a.scalar_type() == ScalarType::Double, kOp,
        ": a: expected float32 or float64");
  check_argument("a", a, a);
  for (const auto& [argument, t] : {std::pair<const char*, const Tensor&>("lower", lower), {"upper", upper}}) {
    check(t.dim() == 2 && t.size(0) == a.size(0) && t.size(1) == a.size(2), kOp, ": ", argument, ": expected [",
          a.size(0), ", ", a.size(2), "], got ", shape_of(t));
    check_argument(argument, t, a);
  }
  check(slope >= 0 && slope <= 1, kOp, ": slope: expected a number in [0, 1], got ", slope);
}

// grad: like a; grad_bias: [B, S]
void check_gradients(const Tensor& grad, const Tensor& grad_bias, const Tensor& a) {
  check(grad.dim() == 3 && grad.size(0) == a.size(0) && grad.size(1) == a.size(1) && grad.size(2) == a.size(2), kOp,
        ": grad: expected ", shape_of(a), ", got ", shape_of(grad));
  check(grad_bias.dim() == 2 && grad_bias.size(0) == a.size(0) && grad_bias.size(1) == a.size(1), kOp,
        ": grad_bias: expected [", a.size(0), ", ", a.size(1), "], got ", shape_of(grad_bias));
  check_argument("grad", grad, a);
  check_argument("grad_bias", grad_bias, a);
}

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

// Calls run(tag, relaxed, bias) unless the results are empty.
template <class Run>
Pair relax(const Tensor& a, const Tensor& lower, const Tensor& upper, double slope, const Run& run) {
  check_arguments(a, lower, upper, slope);
  Tensor relaxed = torch::stable::empty_like(a), bias = torch::stable::new_empty(a, {a.size(0), a.size(1)});
  if (bias.numel() > 0) for_real(a, [&](auto* tag) { run(tag, relaxed, bias); });
  return {relaxed, bias};
}

// Calls run(tag, grad_a, grad_lower, grad_upper) unless the results are empty.
template <class Run>
Triple backward(const Tensor& grad, const Tensor& grad_bias, const Tensor& a, const Tensor& lower, const Tensor& upper,
                double slope, const Run& run) {
  check_arguments(a, lower, upper, slope);
  check_gradients(grad, grad_bias, a);
  Tensor grad_a = torch::stable::empty_like(a), grad_lower = torch::stable::empty_like(lower),
         grad_upper = torch::stable::empty_like(upper);
  if (lower.numel() > 0) for_real(a, [&](auto* tag) { run(tag, grad_a, grad_lower, grad_upper); });
  return {grad_a, grad_lower, grad_upper};
}

Pair relax_cpu(Tensor a, Tensor lower, Tensor upper, double slope) {
  return relax(a, lower, upper, slope, [&](auto* tag, Tensor& relaxed, Tensor& bias) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::relax_coefficients<T>(in<T>(a), in<T>(lower), in<T>(upper), static_cast<T>(slope), out<T>(relaxed),
                               out<T>(bias), a.size(0), a.size(1), a.size(2), kParallelFor);
  });
}

Triple backward_cpu(Tensor grad, Tensor grad_bias, Tensor a, Tensor lower, Tensor upper, double slope) {
  return backward(
      grad, grad_bias, a, lower, upper, slope, [&](auto* tag, Tensor& grad_a, Tensor& grad_lower, Tensor& grad_upper) {
        using T = std::remove_pointer_t<decltype(tag)>;
        cpu::relax_coefficients_backward<T>(in<T>(grad), in<T>(grad_bias), in<T>(a), in<T>(lower), in<T>(upper),
                                            static_cast<T>(slope), out<T>(grad_a), out<T>(grad_lower),
                                            out<T>(grad_upper), a.size(0), a.size(1), a.size(2), kParallelFor);
      });
}

#ifdef PYROBUST_WITH_CUDA
Pair relax_cuda(Tensor a, Tensor lower, Tensor upper, double slope) {
  return relax(a, lower, upper, slope, [&](auto* tag, Tensor& relaxed, Tensor& bias) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
    check_launch(
        kOp, cuda::relax_coefficients<T>(in<T>(a), in<T>(lower), in<T>(upper), static_cast<T>(slope), out<T>(relaxed),
                                         out<T>(bias), a.size(0), a.size(1), a.size(2), current_stream(kOp, a)));
  });
}

Triple backward_cuda(Tensor grad, Tensor grad_bias, Tensor a, Tensor lower, Tensor upper, double slope) {
  return backward(
      grad, grad_bias, a, lower, upper, slope, [&](auto* tag, Tensor& grad_a, Tensor& grad_lower, Tensor& grad_upper) {
        using T = std::remove_pointer_t<decltype(tag)>;
        const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
        check_launch(kOp, cuda::relax_coefficients_backward<T>(in<T>(grad), in<T>(grad_bias), in<T>(a), in<T>(lower),
                                                               in<T>(upper), static_cast<T>(slope), out<T>(grad_a),
                                                               out<T>(grad_lower), out<T>(grad_upper), a.size(0),
                                                               a.size(1), a.size(2), current_stream(kOp, a)));
      });
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("relax_coefficients(Tensor a, Tensor lower, Tensor upper, float slope) -> (Tensor, Tensor)");
  m.def(
      "relax_coefficients_backward(Tensor grad, Tensor grad_bias, Tensor a, Tensor lower, Tensor upper, float slope) "
      "-> (Tensor, Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("relax_coefficients", TORCH_BOX(&relax_cpu));
  m.impl("relax_coefficients_backward", TORCH_BOX(&backward_cpu));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("relax_coefficients", TORCH_BOX(&relax_cuda));
  m.impl("relax_coefficients_backward", TORCH_BOX(&backward_cuda));
}
#endif

}  // namespace
}  // namespace pyrobust::relax_coefficients_op

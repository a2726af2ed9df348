// pyrobust::batch_last_relu_intervals, batch_last_relax, batch_last_concretize and their gradients: the schemas, the
// checks, the choice of dtype.
#include "bounds/cpu/batch_last_bounds.h"

#include <initializer_list>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "common/dtypes.h"
#include "common/threads.h"

namespace pyrobust::batch_last_bounds_op {
namespace {

using Named = std::pair<const char*, const Tensor&>;

void check_real(const char* op, const char* argument, const Tensor& t, const Tensor& first) {
  check(t.scalar_type() == ScalarType::Float || t.scalar_type() == ScalarType::Double, op, ": ", argument,
        ": expected float32 or float64");
  check(t.scalar_type() == first.scalar_type(), op, ": ", argument, ": expected one dtype");
  check(t.is_contiguous(), op, ": ", argument, ": expected a contiguous tensor");
}

// center: [n, N]; radius: [n, N] or [n, 1]
cpu::BatchLastSizes check_box(const char* op, const Tensor& center, const Tensor& radius) {
  check_real(op, "center", center, center);
  check_real(op, "radius", radius, center);
  check(center.dim() == 2, op, ": center: expected [n, N], got ", shape_of(center));
  check(radius.dim() == 2 && radius.size(0) == center.size(0) &&
            (radius.size(1) == center.size(1) || radius.size(1) == 1),
        op, ": radius: expected [", center.size(0), ", ", center.size(1), " or 1], got ", shape_of(radius));
  return {center.size(0), 1, center.size(1), radius.size(1) != center.size(1)};
}

// a: [n, S, N]
cpu::BatchLastSizes check_rows(const char* op, const Tensor& a, const Tensor& center, const Tensor& radius) {
  cpu::BatchLastSizes sizes = check_box(op, center, radius);
  check_real(op, "a", a, center);
  check(a.dim() == 3 && a.size(0) == sizes.n && a.size(2) == sizes.lanes, op, ": a: expected [", sizes.n, ", S, ",
        sizes.lanes, "], got ", shape_of(a));
  sizes.rows = a.size(1);
  return sizes;
}

void check_like(const char* op, std::initializer_list<Named> gradients, const Tensor& t) {
  for (const auto& [name, gradient] : gradients) {
    check_real(op, name, gradient, t);
    bool same = gradient.dim() == t.dim();
    for (int64_t i = 0; same && i < t.dim(); ++i) same = gradient.size(i) == t.size(i);
    check(same, op, ": ", name, ": expected ", shape_of(t), ", got ", shape_of(gradient));
  }
}

void check_sums(const char* op, const char* name, const Tensor& sums, const cpu::BatchLastSizes& sizes,
                const Tensor& t) {
  check_real(op, name, sums, t);
  check(sums.dim() == 2 && sums.size(0) == sizes.rows && sums.size(1) == sizes.lanes, op, ": ", name, ": expected [",
        sizes.rows, ", ", sizes.lanes, "], got ", shape_of(sums));
}

void check_slope(const char* op, double slope) {
  check(slope >= 0 && slope <= 1, op, ": slope: expected a number in [0, 1], got ", slope);
}

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char* kRelu = "batch_last_relu_intervals";
constexpr const char* kRelax = "batch_last_relax";
constexpr const char* kConcretize = "batch_last_concretize";

Pair batch_last_relu_intervals(Tensor center, Tensor radius, double slope) {
  const auto sizes = check_box(kRelu, center, radius);
  check_slope(kRelu, slope);
  Tensor c = torch::stable::empty_like(center), r = torch::stable::empty_like(center);
  for_real(center, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::batch_last_relu_intervals<T>(in<T>(center), in<T>(radius), static_cast<T>(slope), out<T>(c), out<T>(r), sizes,
                                      kParallelFor);
  });
  return {c, r};
}

Pair batch_last_relu_intervals_backward(Tensor of_center, Tensor of_radius, Tensor center, Tensor radius,
                                        double slope) {
  const auto sizes = check_box(kRelu, center, radius);
  check_slope(kRelu, slope);
  check_like(kRelu, {{"of_center", of_center}, {"of_radius", of_radius}}, center);
  Tensor c = torch::stable::empty_like(center), r = torch::stable::empty_like(center);
  for_real(center, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::batch_last_relu_intervals_backward<T>(in<T>(of_center), in<T>(of_radius), in<T>(center), in<T>(radius),
                                               static_cast<T>(slope), out<T>(c), out<T>(r), sizes, kParallelFor);
  });
  return {c, r};
}

Pair batch_last_relax(Tensor a, Tensor center, Tensor radius, double slope) {
  const auto sizes = check_rows(kRelax, a, center, radius);
  check_slope(kRelax, slope);
  Tensor relaxed = torch::stable::empty_like(a), bias = torch::stable::new_empty(a, {sizes.rows, sizes.lanes});
  for_real(a, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::batch_last_relax<T>(in<T>(a), in<T>(center), in<T>(radius), static_cast<T>(slope), out<T>(relaxed),
                             out<T>(bias), sizes, kParallelFor);
  });
  return {relaxed, bias};
}

Triple batch_last_relax_backward(Tensor grad, Tensor grad_bias, Tensor a, Tensor center, Tensor radius, double slope) {
  const auto sizes = check_rows(kRelax, a, center, radius);
  check_slope(kRelax, slope);
  check_like(kRelax, {{"grad", grad}}, a);
  check_sums(kRelax, "grad_bias", grad_bias, sizes, a);
  Tensor grad_a = torch::stable::empty_like(a), c = torch::stable::empty_like(center),
         r = torch::stable::empty_like(center);
  for_real(a, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::batch_last_relax_backward<T>(in<T>(grad), in<T>(grad_bias), in<T>(a), in<T>(center), in<T>(radius),
                                      static_cast<T>(slope), out<T>(grad_a), out<T>(c), out<T>(r), sizes, kParallelFor);
  });
  return {grad_a, c, r};
}

Tensor batch_last_concretize(Tensor a, Tensor center, Tensor radius) {
  const auto sizes = check_rows(kConcretize, a, center, radius);
  Tensor lower = torch::stable::new_empty(a, {sizes.rows, sizes.lanes});
  for_real(a, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::batch_last_concretize<T>(in<T>(a), in<T>(center), in<T>(radius), out<T>(lower), sizes, kParallelFor);
  });
  return lower;
}

// box: whether to compute the gradients of center and radius, which are empty otherwise
Triple batch_last_concretize_backward(Tensor grad, Tensor a, Tensor center, Tensor radius, bool box) {
  const auto sizes = check_rows(kConcretize, a, center, radius);
  check_sums(kConcretize, "grad", grad, sizes, a);
  Tensor grad_a = torch::stable::empty_like(a);
  const auto like_center = [&] {
    return box ? torch::stable::empty_like(center) : torch::stable::new_empty(center, {0, sizes.lanes});
  };
  Tensor c = like_center(), r = like_center();
  for_real(a, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::batch_last_concretize_backward<T>(in<T>(grad), in<T>(a), in<T>(center), in<T>(radius), out<T>(grad_a),
                                           box ? out<T>(c) : nullptr, box ? out<T>(r) : nullptr, sizes, kParallelFor);
  });
  return {grad_a, c, r};
}

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("batch_last_relu_intervals(Tensor center, Tensor radius, float slope) -> (Tensor, Tensor)");
  m.def(
      "batch_last_relu_intervals_backward(Tensor of_center, Tensor of_radius, Tensor center, Tensor radius, float "
      "slope) "
      "-> (Tensor, Tensor)");
  m.def("batch_last_relax(Tensor a, Tensor center, Tensor radius, float slope) -> (Tensor, Tensor)");
  m.def(
      "batch_last_relax_backward(Tensor grad, Tensor grad_bias, Tensor a, Tensor center, Tensor radius, float slope) "
      "-> (Tensor, Tensor, Tensor)");
  m.def("batch_last_concretize(Tensor a, Tensor center, Tensor radius) -> Tensor");
  m.def(
      "batch_last_concretize_backward(Tensor grad, Tensor a, Tensor center, Tensor radius, bool box) -> (Tensor, "
      "Tensor, "
      "Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("batch_last_relu_intervals", TORCH_BOX(&batch_last_relu_intervals));
  m.impl("batch_last_relu_intervals_backward", TORCH_BOX(&batch_last_relu_intervals_backward));
  m.impl("batch_last_relax", TORCH_BOX(&batch_last_relax));
  m.impl("batch_last_relax_backward", TORCH_BOX(&batch_last_relax_backward));
  m.impl("batch_last_concretize", TORCH_BOX(&batch_last_concretize));
  m.impl("batch_last_concretize_backward", TORCH_BOX(&batch_last_concretize_backward));
}

}  // namespace
}  // namespace pyrobust::batch_last_bounds_op

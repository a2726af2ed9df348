// pyrobust::relax_rows and concretize_rows: the schemas, the checks, the choice of device and dtype.
#include "bounds/cpu/relax_rows.h"

#include <initializer_list>
#include <utility>

#include "bounds/cuda/relax_rows.h"
#include "common/check.h"
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"

namespace pyrobust::relax_rows_op {
namespace {

using Named = std::pair<const char*, const Tensor&>;

// a: [R, n]; image: [R]; the others: [B, n]
void check_arguments(const char* op, const Tensor& a, const Tensor& image, std::initializer_list<Named> others) {
  check(a.dim() == 2, op, ": a: expected [R, n], got ", shape_of(a));
  check(a.scalar_type() == ScalarType::Float || a.scalar_type() == ScalarType::Double, op,
        ": a: expected float32 or float64");
  check(a.is_contiguous(), op, ": a: expected a contiguous tensor");
  check(image.dim() == 1 && image.size(0) == a.size(0) && image.scalar_type() == ScalarType::Long &&
            image.is_contiguous(),
        op, ": image: expected a contiguous int64 [", a.size(0), "], got ", shape_of(image));
  check_same_device(op, "image", image, a);
  const int64_t images = others.begin()->second.dim() == 2 ? others.begin()->second.size(0) : 0;
  for (const auto& [name, t] : others) {
    check(t.dim() == 2 && t.size(0) == images && t.size(1) == a.size(1), op, ": ", name, ": expected [B, ", a.size(1),
          "], got ", shape_of(t));
    check(t.is_contiguous(), op, ": ", name, ": expected a contiguous tensor");
    check(t.scalar_type() == a.scalar_type(), op, ": ", name, ": expected the dtype of a");
    check_same_device(op, name, t, a);
  }
}

void check_images(const char* op, const Tensor& image, int64_t images) {
  const auto* const data = static_cast<const int64_t*>(image.const_data_ptr());
  for (int64_t r = 0; r < image.size(0); ++r)
    check(data[r] >= 0 && data[r] < images, op, ": image: expected 0 to ", images - 1, ", got ", data[r], " at ", r);
}

// Calls run(tag, constant) unless there are no rows.
template <class Run>
Tensor constants(const Tensor& a, const Run& run) {
  Tensor constant = torch::stable::new_empty(a, {a.size(0)});
  if (a.size(0) == 0) return constant;
  for_real(a, [&](auto* tag) { run(tag, constant); });
  return constant;
}

constexpr const char* kConcretize = "concretize_rows";
constexpr const char* kRelax = "relax_rows";

Tensor concretize_cpu(Tensor a, Tensor image, Tensor low, Tensor high) {
  check_arguments(kConcretize, a, image, {{"low", low}, {"high", high}});
  check_images(kConcretize, image, low.size(0));
  return constants(a, [&](auto* tag, Tensor& constant) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::concretize_rows<T>(in<T>(a), in<int64_t>(image), in<T>(low), in<T>(high), out<T>(constant), a.size(0),
                            a.size(1), kParallelFor);
  });
}

Tensor relax_cpu(Tensor a, Tensor image, Tensor lower_slope, Tensor upper_slope, Tensor lower_intercept,
                 Tensor upper_intercept) {
  check_arguments(kRelax, a, image,
                  {{"lower_slope", lower_slope},
                   {"upper_slope", upper_slope},
                   {"lower_intercept", lower_intercept},
                   {"upper_intercept", upper_intercept}});
  check_images(kRelax, image, lower_slope.size(0));
  return constants(a, [&](auto* tag, Tensor& constant) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::relax_rows<T>(out<T>(a), in<int64_t>(image), in<T>(lower_slope), in<T>(upper_slope), in<T>(lower_intercept),
                       in<T>(upper_intercept), out<T>(constant), a.size(0), a.size(1), kParallelFor);
  });
}

#ifdef PYROBUST_WITH_CUDA
Tensor concretize_cuda(Tensor a, Tensor image, Tensor low, Tensor high) {
  check_arguments(kConcretize, a, image, {{"low", low}, {"high", high}});
  return constants(a, [&](auto* tag, Tensor& constant) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
    check_launch(kConcretize,
                 cuda::concretize_rows<T>(in<T>(a), in<int64_t>(image), in<T>(low), in<T>(high), out<T>(constant),
                                          a.size(0), a.size(1), low.size(0), current_stream(kConcretize, a)));
  });
}

Tensor relax_cuda(Tensor a, Tensor image, Tensor lower_slope, Tensor upper_slope, Tensor lower_intercept,
                  Tensor upper_intercept) {
  check_arguments(kRelax, a, image,
                  {{"lower_slope", lower_slope},
                   {"upper_slope", upper_slope},
                   {"lower_intercept", lower_intercept},
                   {"upper_intercept", upper_intercept}});
  return constants(a, [&](auto* tag, Tensor& constant) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const torch::stable::accelerator::DeviceGuard guard(a.get_device_index());
    check_launch(kRelax, cuda::relax_rows<T>(out<T>(a), in<int64_t>(image), in<T>(lower_slope), in<T>(upper_slope),
                                             in<T>(lower_intercept), in<T>(upper_intercept), out<T>(constant),
                                             a.size(0), a.size(1), lower_slope.size(0), current_stream(kRelax, a)));
  });
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("concretize_rows(Tensor a, Tensor image, Tensor low, Tensor high) -> Tensor");
  m.def(
      "relax_rows(Tensor(a!) a, Tensor image, Tensor lower_slope, Tensor upper_slope, Tensor lower_intercept, "
      "Tensor upper_intercept) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("concretize_rows", TORCH_BOX(&concretize_cpu));
  m.impl("relax_rows", TORCH_BOX(&relax_cpu));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("concretize_rows", TORCH_BOX(&concretize_cuda));
  m.impl("relax_rows", TORCH_BOX(&relax_cuda));
}
#endif

}  // namespace
}  // namespace pyrobust::relax_rows_op

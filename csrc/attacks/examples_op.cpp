// pyrobust::put_rows and count_changed: the schemas, the checks, the choice of device and dtype.
#include "attacks/cpu/examples.h"

#include "attacks/arguments.h"
#include "attacks/cuda/examples.h"
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"

namespace pyrobust::examples_op {
namespace {

constexpr const char* kPut = "put_rows";
constexpr const char* kCount = "count_changed";

// chosen: [R]; source, target: [R, D]
void check_put(const Tensor& chosen, const Tensor& source, const Tensor& target) {
  check_rows(kPut, "target", target);
  check_rows(kPut, "source", source);
  check(source.size(0) == target.size(0) && source.size(1) == target.size(1) &&
            source.scalar_type() == target.scalar_type(),
        kPut, ": source: expected target's shape and dtype, ", shape_of(target), ", got ", shape_of(source));
  check_same_device(kPut, "source", source, target);
  check(chosen.dim() == 1 && chosen.size(0) == target.size(0) && chosen.scalar_type() == ScalarType::Bool &&
            chosen.is_contiguous(),
        kPut, ": chosen: expected a contiguous bool [", target.size(0), "], got ", shape_of(chosen));
  check_same_device(kPut, "chosen", chosen, target);
}

int64_t row_bytes(const Tensor& t) { return t.size(1) * static_cast<int64_t>(t.element_size()); }
const bool* flags(const Tensor& t) { return static_cast<const bool*>(t.const_data_ptr()); }
const char* bytes(const Tensor& t) { return static_cast<const char*>(t.const_data_ptr()); }
void put_cpu(Tensor chosen, Tensor source, Tensor target) {
  check_put(chosen, source, target);
  if (target.numel() == 0) return;
  cpu::put_rows(flags(chosen), bytes(source), static_cast<char*>(target.mutable_data_ptr()), target.size(0),
                row_bytes(target), kParallelFor);
}

// x_adv, x: [R, D] -> [R]
Tensor count_checked(const Tensor& x_adv, const Tensor& x) {
  check_rows(kCount, "x", x);
  check_like(kCount, "x_adv", x_adv, x);
  return torch::stable::new_zeros(x, {x.size(0)}, ScalarType::Long);
}

Tensor count_cpu(Tensor x_adv, Tensor x) {
  Tensor count = count_checked(x_adv, x);
  if (x.numel() == 0) return count;
  const cpu::KeepDenormals keep;
  for_dtype(kCount, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::count_changed<T>(in<T>(x_adv), in<T>(x), static_cast<int64_t*>(count.mutable_data_ptr()), x.size(0), x.size(1),
                          kParallelFor);
  });
  return count;
}

#ifdef PYROBUST_WITH_CUDA
void put_cuda(Tensor chosen, Tensor source, Tensor target) {
  check_put(chosen, source, target);
  if (target.numel() == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(target.get_device_index());
  const cudaStream_t stream = current_stream(kPut, target);
  check_launch(kPut, cuda::put_rows(flags(chosen), bytes(source), static_cast<char*>(target.mutable_data_ptr()),
                                    target.size(0), row_bytes(target), stream));
}

Tensor count_cuda(Tensor x_adv, Tensor x) {
  Tensor count = count_checked(x_adv, x);
  if (x.numel() == 0) return count;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(kCount, x);
  for_dtype(kCount, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kCount, cuda::count_changed<T>(in<T>(x_adv), in<T>(x), static_cast<int64_t*>(count.mutable_data_ptr()),
                                                x.size(0), x.size(1), stream));
  });
  return count;
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("put_rows(Tensor chosen, Tensor source, Tensor(a!) target) -> ()");
  m.def("count_changed(Tensor x_adv, Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("put_rows", TORCH_BOX(&put_cpu));
  m.impl("count_changed", TORCH_BOX(&count_cpu));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("put_rows", TORCH_BOX(&put_cuda));
  m.impl("count_changed", TORCH_BOX(&count_cuda));
}
#endif

}  // namespace
}  // namespace pyrobust::examples_op

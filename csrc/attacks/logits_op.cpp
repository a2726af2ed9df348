// pyrobust::logit_loss and logit_verdict: the schemas, the checks, the choice of device and dtype.
#include "attacks/cpu/logits.h"

#include <tuple>

#include "attacks/cuda/logits.h"
#include "common/check.h"
#include "common/cuda_stream.h"
#include "common/threads.h"

namespace pyrobust::logits_op {
namespace {

constexpr const char* kLoss = "logit_loss";
constexpr const char* kVerdict = "logit_verdict";

// logits: [B, K]
void check_logits(const char* op, const Tensor& logits) {
  check(logits.dim() == 2 && logits.size(1) >= 1, op, ": logits: expected [B, K] with K >= 1, got ", shape_of(logits));
  check(logits.is_contiguous(), op, ": logits: expected a contiguous tensor");
}

// classes: [B]. Values are checked on the CPU only: on a GPU the check would wait for the device.
void check_classes(const char* op, const char* argument, const Tensor& classes, const Tensor& logits) {
  check(classes.dim() == 1 && classes.size(0) == logits.size(0) && classes.scalar_type() == ScalarType::Long &&
            classes.is_contiguous(),
        op, ": ", argument, ": expected a contiguous int64 [", logits.size(0), "], got ", shape_of(classes));
  check_same_device(op, argument, classes, logits);
  if (!classes.is_cpu()) return;
  const auto* values = static_cast<const int64_t*>(classes.const_data_ptr());
  const int64_t rows = logits.size(0), count = logits.size(1);
  for (int64_t i = 0; i < rows; ++i)
    check(values[i] >= 0 && values[i] < count, op, ": ", argument, ": expected classes, 0 to ", count - 1, ", got ",
          values[i], " in row ", i);
}

// fn(logits' data as a pointer to its element type)
template <class Fn>
void for_dtype(const char* op, const Tensor& logits, const Fn& fn) {
  switch (logits.scalar_type()) {
    case ScalarType::Float:
      return fn(static_cast<const float*>(logits.const_data_ptr()));
    case ScalarType::Double:
      return fn(static_cast<const double*>(logits.const_data_ptr()));
    default:
      check(false, op, ": logits: expected float32 or float64");
  }
}

const int64_t* classes_of(const Tensor& t) { return static_cast<const int64_t*>(t.const_data_ptr()); }

// value and size: [B]; slope: [B, K]
struct Losses {
  Tensor value, slope, size;
  double* values() const { return static_cast<double*>(value.mutable_data_ptr()); }
  double* sizes() const { return static_cast<double*>(size.mutable_data_ptr()); }
};

Losses checked_losses(const Tensor& logits, const Tensor& y, const Tensor& target, int64_t loss) {
  check_logits(kLoss, logits);
  check_classes(kLoss, "y", y, logits);
  check_classes(kLoss, "target", target, logits);
  check(loss >= 0 && loss < kLogitLosses, kLoss, ": loss: expected 0 to ", kLogitLosses - 1, ", got ", loss);
  const int64_t least = least_classes(static_cast<LogitLoss>(loss));
  check(logits.size(1) >= least, kLoss, ": logits: expected at least ", least, " classes for this loss, got ",
        logits.size(1));
  const int64_t rows = logits.size(0);
  return {torch::stable::new_empty(logits, {rows}, ScalarType::Double), torch::stable::empty_like(logits),
          torch::stable::new_empty(logits, {rows}, ScalarType::Double)};
}

std::tuple<Tensor, Tensor, Tensor> loss_cpu(Tensor logits, Tensor y, Tensor target, int64_t loss) {
  const Losses out = checked_losses(logits, y, target, loss);
  if (logits.size(0) > 0) {
    const cpu::KeepDenormals keep;
    for_dtype(kLoss, logits, [&](const auto* data) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(data)>>;
      cpu::logit_loss<T>(static_cast<LogitLoss>(loss), data, classes_of(y), classes_of(target), out.values(),
                         static_cast<T*>(out.slope.mutable_data_ptr()), out.sizes(), logits.size(0), logits.size(1),
                         kParallelFor);
    });
  }
  return {out.value, out.slope, out.size};
}

Tensor checked_verdict(const Tensor& logits, const Tensor& y, double tolerance) {
  check_logits(kVerdict, logits);
  check_classes(kVerdict, "y", y, logits);
  check(tolerance >= 0, kVerdict, ": tolerance: expected at least 0, got ", tolerance);
  return torch::stable::new_empty(logits, {logits.size(0)}, ScalarType::Byte);
}

Tensor verdict_cpu(Tensor logits, Tensor y, bool targeted, double tolerance, bool both) {
  Tensor verdict = checked_verdict(logits, y, tolerance);
  if (logits.size(0) == 0) return verdict;
  const cpu::KeepDenormals keep;
  for_dtype(kVerdict, logits, [&](const auto* data) {
    cpu::logit_verdict(data, classes_of(y), targeted, tolerance, both,
                       static_cast<uint8_t*>(verdict.mutable_data_ptr()), logits.size(0), logits.size(1), kParallelFor);
  });
  return verdict;
}

#ifdef PYROBUST_WITH_CUDA
std::tuple<Tensor, Tensor, Tensor> loss_cuda(Tensor logits, Tensor y, Tensor target, int64_t loss) {
  const Losses out = checked_losses(logits, y, target, loss);
  if (logits.size(0) > 0) {
    const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
    const cudaStream_t stream = current_stream(kLoss, logits);
    for_dtype(kLoss, logits, [&](const auto* data) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(data)>>;
      check_launch(kLoss, cuda::logit_loss<T>(static_cast<LogitLoss>(loss), data, classes_of(y), classes_of(target),
                                              out.values(), static_cast<T*>(out.slope.mutable_data_ptr()), out.sizes(),
                                              logits.size(0), logits.size(1), stream));
    });
  }
  return {out.value, out.slope, out.size};
}

Tensor verdict_cuda(Tensor logits, Tensor y, bool targeted, double tolerance, bool both) {
  Tensor verdict = checked_verdict(logits, y, tolerance);
  if (logits.size(0) == 0) return verdict;
  const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = current_stream(kVerdict, logits);
  for_dtype(kVerdict, logits, [&](const auto* data) {
    check_launch(kVerdict, cuda::logit_verdict(data, classes_of(y), targeted, tolerance, both,
                                               static_cast<uint8_t*>(verdict.mutable_data_ptr()), logits.size(0),
                                               logits.size(1), stream));
  });
  return verdict;
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("logit_loss(Tensor logits, Tensor y, Tensor target, int loss) -> (Tensor, Tensor, Tensor)");
  m.def("logit_verdict(Tensor logits, Tensor y, bool targeted, float tolerance, bool both) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("logit_loss", TORCH_BOX(&loss_cpu));
  m.impl("logit_verdict", TORCH_BOX(&verdict_cpu));
}
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) {
  m.impl("logit_loss", TORCH_BOX(&loss_cuda));
  m.impl("logit_verdict", TORCH_BOX(&verdict_cuda));
}
#endif

}  // namespace
}  // namespace pyrobust::logits_op

// pyrobust::square_window: the schema, the checks, the choice of device and dtype.
#include "attacks/cpu/square_window.h"

#include "attacks/arguments.h"
#include "attacks/cuda/square_window.h"
#include "common/cuda_stream.h"
#include "common/dtypes.h"
#include "common/threads.h"

namespace pyrobust::square_window_op {
namespace {

constexpr const char* kOp = "square_window";

// best, x: [B, channels * height * width]; u: [B, 5 + channels]; patterns: [2, tall * wide]; radius: [B]
Tensor checked_output(const Tensor& best, const Tensor& x, const Tensor& u, const Tensor& patterns,
                      const Tensor& radius, const cuda::Windows& windows, double lower, double upper) {
  check_rows(kOp, "x", x);
  check_like(kOp, "best", best, x);
  check(windows.channels >= 1 && windows.height >= 1 && windows.width >= 1 &&
            x.size(1) == windows.channels * windows.height * windows.width,
        kOp, ": x: expected rows of channels * height * width elements, got ", shape_of(x));
  check(windows.tall >= 1 && windows.tall <= windows.height && windows.wide >= 1 && windows.wide <= windows.width, kOp,
        ": tall, wide: expected sides of a window of the image, got ", windows.tall, ", ", windows.wide);
  check_rows(kOp, "u", u);
  check(u.size(0) == x.size(0) && u.size(1) == 5 + windows.channels && u.scalar_type() == x.scalar_type(), kOp,
        ": u: expected [", x.size(0), ", ", 5 + windows.channels, "] of x's dtype, got ", shape_of(u));
  check_same_device(kOp, "u", u, x);
  check_rows(kOp, "patterns", patterns);
  check(patterns.size(0) == 2 && patterns.size(1) == windows.tall * windows.wide &&
            patterns.scalar_type() == ScalarType::Double,
        kOp, ": patterns: expected a float64 [2, ", windows.tall * windows.wide, "], got ", shape_of(patterns));
  check_same_device(kOp, "patterns", patterns, x);
  check(radius.dim() == 1 && radius.size(0) == x.size(0), kOp, ": radius: expected [", x.size(0), "], got ",
        shape_of(radius));
  check_radius(kOp, radius, x);
  check_box(kOp, lower, upper);
  return torch::stable::empty_like(x);
}

Tensor window_cpu(Tensor best, Tensor x, Tensor u, Tensor patterns, Tensor radius, bool l2, int64_t channels,
                  int64_t height, int64_t width, bool channels_last, int64_t tall, int64_t wide, double lower,
                  double upper) {
  const cuda::Windows windows{channels, height, width, tall, wide, channels_last};
  Tensor proposal = checked_output(best, x, u, patterns, radius, windows, lower, upper);
  if (x.numel() == 0) return proposal;
  const cpu::KeepDenormals keep_denormals;
  for_dtype(kOp, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    cpu::square_window<T>(in<T>(best), in<T>(x), in<T>(u), in<double>(patterns), in<double>(radius), l2,
                          out<T>(proposal), x.size(0), windows, lower, upper, kParallelFor);
  });
  return proposal;
}

#ifdef PYROBUST_WITH_CUDA
Tensor window_cuda(Tensor best, Tensor x, Tensor u, Tensor patterns, Tensor radius, bool l2, int64_t channels,
                   int64_t height, int64_t width, bool channels_last, int64_t tall, int64_t wide, double lower,
                   double upper) {
  const cuda::Windows windows{channels, height, width, tall, wide, channels_last};
  Tensor proposal = checked_output(best, x, u, patterns, radius, windows, lower, upper);
  if (x.numel() == 0) return proposal;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = current_stream(kOp, x);
  for_dtype(kOp, "x", x, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    check_launch(kOp, cuda::square_window<T>(in<T>(best), in<T>(x), in<T>(u), in<double>(patterns), in<double>(radius),
                                             l2, out<T>(proposal), x.size(0), windows, lower, upper, stream));
  });
  return proposal;
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def(
      "square_window(Tensor best, Tensor x, Tensor u, Tensor patterns, Tensor radius, bool l2, int channels, "
      "int height, int width, bool channels_last, int tall, int wide, float lower, float upper) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) { m.impl("square_window", TORCH_BOX(&window_cpu)); }
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) { m.impl("square_window", TORCH_BOX(&window_cuda)); }
#endif

}  // namespace
}  // namespace pyrobust::square_window_op

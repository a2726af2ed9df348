// pyrobust::batch_last_conv, its transpose and its gradient with respect to the weight: the schemas, the checks, the
// choice of dtype.
#include "bounds/cpu/batch_last_conv.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "common/check.h"
#include "common/dtypes.h"
#include "common/threads.h"

namespace pyrobust::batch_last_conv_op {
namespace {

using Sizes = std::vector<int64_t>;

void check_real(const char* op, const char* argument, const Tensor& t, int64_t dim, const Tensor& first) {
  check(t.scalar_type() == ScalarType::Float || t.scalar_type() == ScalarType::Double, op, ": ", argument,
        ": expected float32 or float64");
  check(t.scalar_type() == first.scalar_type(), op, ": ", argument, ": expected the dtype of the planes");
  check(t.dim() == dim, op, ": ", argument, ": expected ", dim, " dimensions, got ", shape_of(t));
  check(t.is_contiguous(), op, ": ", argument, ": expected a contiguous tensor");
}

// Largest size and offset: their products and sums fit int64.
constexpr int64_t kLargest = INT32_MAX;

// Computes the sizes of x and y from those of x.
cpu::BatchLastConvSizes sizes_of(const char* op, int64_t inputs, int64_t outputs, const Sizes& kernel, const Sizes& x,
                                 int64_t lanes, const Sizes& stride, const Sizes& padding, const Sizes& dilation,
                                 int64_t groups) {
  for (const auto& [name, pair] : {std::pair<const char*, const Sizes&>("kernel", kernel),
                                   {"size", x},
                                   {"stride", stride},
                                   {"padding", padding},
                                   {"dilation", dilation}}) {
    check(pair.size() == 2, op, ": ", name, ": expected two numbers, got ", pair.size());
    for (const int64_t value : pair)
      check(value >= 0 && value <= kLargest, op, ": ", name, ": expected 0 to ", kLargest, ", got ", value);
  }
  check(groups >= 1 && outputs % groups == 0, op, ": groups: expected a divisor of ", outputs, ", got ", groups);
  cpu::BatchLastConvSizes sizes = {groups, inputs, outputs / groups, x[0], x[1], 0, 0, lanes, {}, {}, {}, {}};
  int64_t* const ends[2] = {&sizes.y_height, &sizes.y_width};
  for (size_t i = 0; i < 2; ++i) {
    check(kernel[i] >= 1 && stride[i] >= 1 && dilation[i] >= 1, op,
          ": stride: expected positive kernel, stride and dilation");
    const int64_t room = x[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
    check(room >= 0, op, ": size: expected room for the kernel, got ", x[i]);
    *ends[i] = room / stride[i] + 1;
    sizes.kernel[i] = kernel[i], sizes.stride[i] = stride[i];
    sizes.padding[i] = padding[i], sizes.dilation[i] = dilation[i];
  }
  return sizes;
}

void check_y(const char* op, const Tensor& y, const cpu::BatchLastConvSizes& sizes) {
  check(y.size(0) == sizes.groups * sizes.outputs && y.size(1) == sizes.y_height && y.size(2) == sizes.y_width &&
            y.size(3) == sizes.lanes,
        op, ": y: expected [", sizes.groups * sizes.outputs, ", ", sizes.y_height, ", ", sizes.y_width, ", ",
        sizes.lanes, "], got ", shape_of(y));
}

template <class T>
const T* in_or_null(const std::optional<Tensor>& t) {
  return t ? in<T>(*t) : nullptr;
}

// Calls run(tag, result) unless the result is empty.
template <class Run>
Tensor filled(Tensor result, const Run& run) {
  if (result.numel() == 0) return result;
  for_real(result, [&](auto* tag) { run(tag, result); });
  return result;
}

// x: [C, H, W, N]; weight: [O, C / groups, kh, kw]; bias: [O]; scale: [N]
Tensor batch_last_conv(Tensor x, Tensor weight, std::optional<Tensor> bias, std::optional<Tensor> scale, Sizes stride,
                       Sizes padding, Sizes dilation, int64_t groups) {
  constexpr const char* op = "batch_last_conv";
  check_real(op, "x", x, 4, x);
  check_real(op, "weight", weight, 4, x);
  check(x.size(0) == weight.size(1) * groups, op, ": x: expected ", weight.size(1) * groups, " planes, got ",
        x.size(0));
  const auto sizes = sizes_of(op, weight.size(1), weight.size(0), {weight.size(2), weight.size(3)},
                              {x.size(1), x.size(2)}, x.size(3), stride, padding, dilation, groups);
  if (bias) {
    check_real(op, "bias", *bias, 1, x);
    check(bias->size(0) == weight.size(0), op, ": bias: expected [", weight.size(0), "], got ", shape_of(*bias));
  }
  if (scale) {
    check_real(op, "scale", *scale, 1, x);
    check(scale->size(0) == x.size(3), op, ": scale: expected [", x.size(3), "], got ", shape_of(*scale));
  }
  return filled(torch::stable::new_empty(x, {weight.size(0), sizes.y_height, sizes.y_width, sizes.lanes}),
                [&](auto* tag, Tensor& y) {
                  using T = std::remove_pointer_t<decltype(tag)>;
                  cpu::batch_last_conv<T>(in<T>(x), in<T>(weight), in_or_null<T>(bias), in_or_null<T>(scale), out<T>(y),
                                          sizes, kParallelFor);
                });
}

// y: [O, h, w, N]; weight: [O, C / groups, kh, kw]; size: (H, W)
Tensor batch_last_conv_transposed(Tensor y, Tensor weight, Sizes size, Sizes stride, Sizes padding, Sizes dilation,
                                  int64_t groups) {
  constexpr const char* op = "batch_last_conv_transposed";
  check_real(op, "y", y, 4, y);
  check_real(op, "weight", weight, 4, y);
  const auto sizes = sizes_of(op, weight.size(1), weight.size(0), {weight.size(2), weight.size(3)}, size, y.size(3),
                              stride, padding, dilation, groups);
  check_y(op, y, sizes);
  return filled(torch::stable::new_empty(y, {weight.size(1) * groups, size[0], size[1], sizes.lanes}),
                [&](auto* tag, Tensor& x) {
                  using T = std::remove_pointer_t<decltype(tag)>;
                  cpu::batch_last_conv_transposed<T>(in<T>(y), in<T>(weight), out<T>(x), sizes, kParallelFor);
                });
}

// x: [C, H, W, N]; y: [O, h, w, N]; kernel: (kh, kw)
Tensor batch_last_conv_weight(Tensor x, Tensor y, Sizes kernel, Sizes stride, Sizes padding, Sizes dilation,
                              int64_t groups) {
  constexpr const char* op = "batch_last_conv_weight";
  check_real(op, "x", x, 4, x);
  check_real(op, "y", y, 4, x);
  check(groups >= 1 && x.size(0) % groups == 0, op, ": groups: expected a divisor of ", x.size(0), ", got ", groups);
  const auto sizes = sizes_of(op, x.size(0) / groups, y.size(0), kernel, {x.size(1), x.size(2)}, x.size(3), stride,
                              padding, dilation, groups);
  check_y(op, y, sizes);
  return filled(torch::stable::new_empty(x, {y.size(0), sizes.inputs, kernel[0], kernel[1]}),
                [&](auto* tag, Tensor& weight) {
                  using T = std::remove_pointer_t<decltype(tag)>;
                  cpu::batch_last_conv_weight<T>(in<T>(x), in<T>(y), out<T>(weight), sizes, kParallelFor);
                });
}

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def(
      "batch_last_conv(Tensor x, Tensor weight, Tensor? bias, Tensor? scale, int[] stride, int[] padding, int[] "
      "dilation, "
      "int groups) -> Tensor");
  m.def(
      "batch_last_conv_transposed(Tensor y, Tensor weight, int[] size, int[] stride, int[] padding, int[] dilation, "
      "int groups) -> Tensor");
  m.def(
      "batch_last_conv_weight(Tensor x, Tensor y, int[] kernel, int[] stride, int[] padding, int[] dilation, int "
      "groups) "
      "-> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) {
  m.impl("batch_last_conv", TORCH_BOX(&batch_last_conv));
  m.impl("batch_last_conv_transposed", TORCH_BOX(&batch_last_conv_transposed));
  m.impl("batch_last_conv_weight", TORCH_BOX(&batch_last_conv_weight));
}

}  // namespace
}  // namespace pyrobust::batch_last_conv_op

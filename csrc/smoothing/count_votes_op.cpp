// pyrobust::count_votes: the schema, the checks, the choice of device and dtype.
#include "common/check.h"
#include "common/cuda_stream.h"
#include "smoothing/cpu/count_votes.h"
#include "smoothing/cuda/count_votes.h"

namespace pyrobust::count_votes_op {
namespace {

constexpr const char* kOp = "count_votes";

// logits: [N, K]; image: [N]; counts: [B, K + 1]
void check_arguments(const Tensor& logits, const Tensor& image, const Tensor& counts) {
  check(logits.dim() == 2 && logits.size(1) >= 1, kOp, ": logits: expected [N, K] with K >= 1, got ", shape_of(logits));
  check(logits.is_contiguous(), kOp, ": logits: expected a contiguous tensor");
  check(image.dim() == 1 && image.size(0) == logits.size(0) && image.scalar_type() == ScalarType::Long &&
            image.is_contiguous(),
        kOp, ": image: expected a contiguous int64 [", logits.size(0), "], got ", shape_of(image));
  check(counts.dim() == 2 && counts.size(1) == logits.size(1) + 1 && counts.scalar_type() == ScalarType::Long &&
            counts.is_contiguous(),
        kOp, ": counts: expected a contiguous int64 [B, ", logits.size(1) + 1, "], got ", shape_of(counts));
  check_same_device(kOp, "image", image, logits);
  check_same_device(kOp, "counts", counts, logits);
}

// fn(logits' data as a pointer to its element type)
template <class Fn>
void for_dtype(const Tensor& logits, const Fn& fn) {
  const void* data = logits.const_data_ptr();
  switch (logits.scalar_type()) {
    case ScalarType::Float:
      return fn(static_cast<const float*>(data));
    case ScalarType::Double:
      return fn(static_cast<const double*>(data));
    case ScalarType::Half:
      return fn(static_cast<const Half*>(data));
    case ScalarType::BFloat16:
      return fn(static_cast<const BFloat16*>(data));
    default:
      check(false, kOp, ": logits: expected float32, float64, float16 or bfloat16");
  }
}

void count_votes_cpu(Tensor logits, Tensor image, Tensor counts) {
  check_arguments(logits, image, counts);
  const int64_t rows = logits.size(0), classes = logits.size(1), images = counts.size(0);
  if (rows == 0) return;
  const auto* image_data = static_cast<const int64_t*>(image.const_data_ptr());
  for (int64_t n = 0; n < rows; ++n)
    check(image_data[n] >= 0 && image_data[n] < images, kOp, ": image: expected rows of counts, 0 to ", images - 1,
          ", got ", image_data[n], " at ", n);
  auto* counts_data = static_cast<int64_t*>(counts.mutable_data_ptr());
  for_dtype(logits, [&](const auto* data) {
    torch::stable::parallel_for(0, rows, std::max<int64_t>(1, 32768 / classes), [&](int64_t begin, int64_t end) {
      cpu::count_votes(data, classes, image_data, counts_data, begin, end);
    });
  });
}

#ifdef PYROBUST_WITH_CUDA
void count_votes_cuda(Tensor logits, Tensor image, Tensor counts) {
  check_arguments(logits, image, counts);
  if (logits.size(0) == 0 || counts.size(0) == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
  const cudaStream_t stream = current_stream(kOp, logits);
  for_dtype(logits, [&](const auto* data) {
    check_launch(kOp, cuda::count_votes(data, logits.size(0), logits.size(1),
                                        static_cast<const int64_t*>(image.const_data_ptr()), counts.size(0),
                                        static_cast<int64_t*>(counts.mutable_data_ptr()), stream));
  });
}
#endif

STABLE_TORCH_LIBRARY_FRAGMENT(pyrobust, m) {
  m.def("count_votes(Tensor logits, Tensor image, Tensor(a!) counts) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CPU, m) { m.impl("count_votes", TORCH_BOX(&count_votes_cpu)); }
#ifdef PYROBUST_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(pyrobust, CUDA, m) { m.impl("count_votes", TORCH_BOX(&count_votes_cuda)); }
#endif

}  // namespace
}  // namespace pyrobust::count_votes_op

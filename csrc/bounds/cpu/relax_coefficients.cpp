#include "bounds/cpu/relax_coefficients.h"

#include <algorithm>
#include <vector>

#include "bounds/cpu/relax_coefficients_kernels.h"
#include "bounds/relu_relaxation.h"

namespace pyrobust::cpu {
namespace {

// Number of neurons whose linear relaxation stays in the first-level cache during the loop over all rows.
constexpr int64_t kBlock = 512;

// The linear relaxation of neurons first .. first + n - 1, padded with zeros to whole vectors.
template <class T>
struct Block {
  T lower_slope[kBlock], upper_slope[kBlock], intercept[kBlock];

  Block(const T* lower, const T* upper, int64_t n, T slope) {
    for (int64_t k = 0; k < n; ++k) {
      const ReluRelaxation<T> relaxation = relu_relaxation(lower[k], upper[k], slope);
      lower_slope[k] = relaxation.lower_slope, upper_slope[k] = relaxation.upper_slope,
      intercept[k] = relaxation.intercept;
    }
    const int64_t filled = std::min(kBlock, (n + kRelaxationLanes - 1) / kRelaxationLanes * kRelaxationLanes);
    for (T* part : {lower_slope, upper_slope, intercept}) std::fill(part + n, part + filled, T(0));
  }
};

}  // namespace

template <class T>
void relax_coefficients(const T* a, const T* lower, const T* upper, T slope, T* out, T* bias, int64_t batch,
                        int64_t rows, int64_t n, const ParallelFor& parallel_for) {
  parallel_for(0, batch, 1, [&](int64_t begin, int64_t end) {
    std::vector<double> total(static_cast<size_t>(rows));
    for (int64_t b = begin; b < end; ++b) {
      std::fill(total.begin(), total.end(), 0.0);
      for (int64_t first = 0; first < n; first += kBlock) {
        const int64_t count = std::min(kBlock, n - first);
        const Block<T> block(lower + b * n + first, upper + b * n + first, count, slope);
        for (int64_t s = 0; s < rows; ++s) {
          const int64_t at = (b * rows + s) * n + first;
          total[static_cast<size_t>(s)] += relax_coefficients_kernels<T>().relax(
              a + at, count, block.lower_slope, block.upper_slope, block.intercept, out + at);
        }
      }
      for (int64_t s = 0; s < rows; ++s) bias[b * rows + s] = static_cast<T>(total[static_cast<size_t>(s)]);
    }
  });
}

template <class T>
void relax_coefficients_backward(const T* grad, const T* grad_bias, const T* a, const T* lower, const T* upper, T slope,
                                 T* grad_a, T* grad_lower, T* grad_upper, int64_t batch, int64_t rows, int64_t n,
                                 const ParallelFor& parallel_for) {
  parallel_for(0, batch, 1, [&](int64_t begin, int64_t end) {
    T of_slope[kBlock], of_intercept[kBlock];
    for (int64_t b = begin; b < end; ++b)
      for (int64_t first = 0; first < n; first += kBlock) {
        const int64_t count = std::min(kBlock, n - first), range = b * n + first;
        const Block<T> block(lower + range, upper + range, count, slope);
        std::fill(of_slope, of_slope + kBlock, T(0));
        std::fill(of_intercept, of_intercept + kBlock, T(0));
        for (int64_t s = 0; s < rows; ++s) {
          const int64_t at = (b * rows + s) * n + first;
          relax_coefficients_kernels<T>().backward(a + at, grad + at, grad_bias[b * rows + s], count, block.lower_slope,
                                                   block.upper_slope, block.intercept, grad_a + at, of_slope,
                                                   of_intercept);
        }
        for (int64_t k = 0; k < count; ++k)
          relu_relaxation_backward(lower[range + k], upper[range + k], slope, of_slope[k], of_intercept[k],
                                   grad_lower[range + k], grad_upper[range + k]);
      }
  });
}

#define PYROBUST_RELAX_COEFFICIENTS(T)                                                                          \
  template void relax_coefficients<T>(const T*, const T*, const T*, T, T*, T*, int64_t, int64_t, int64_t,       \
                                      const ParallelFor&);                                                      \
  template void relax_coefficients_backward<T>(const T*, const T*, const T*, const T*, const T*, T, T*, T*, T*, \
                                               int64_t, int64_t, int64_t, const ParallelFor&);
PYROBUST_RELAX_COEFFICIENTS(float)
PYROBUST_RELAX_COEFFICIENTS(double)
#undef PYROBUST_RELAX_COEFFICIENTS

}  // namespace pyrobust::cpu

#include "bounds/cpu/batch_last_bounds.h"

#include <algorithm>
#include <vector>

#include "bounds/cpu/batch_last_bounds_kernels.h"

namespace pyrobust::cpu {
namespace {

// Number of neurons of a partial sum: partial sums have smaller rounding errors than one running sum.
constexpr int64_t kTerms = 64;
// Number of elements that justify a task of their own.
constexpr int64_t kTask = 16384;

template <class T>
BatchLastNeuron<T> neuron(int64_t k, const T* a, const T* center, const T* radius, T slope,
                          const BatchLastSizes& sizes) {
  return {center + k * sizes.lanes,
          radius + k * (sizes.shared_radius ? 1 : sizes.lanes),
          sizes.shared_radius,
          slope,
          a == nullptr ? nullptr : a + k * sizes.rows * sizes.lanes,
          sizes.rows,
          sizes.lanes};
}

// Calls one(k) for all neurons.
template <class One>
void for_neurons(int64_t size, const BatchLastSizes& sizes, const ParallelFor& parallel_for, const One& one) {
  parallel_for(0, sizes.n, std::max<int64_t>(1, kTask / std::max<int64_t>(1, size)), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) one(k);
  });
}

// Calls one(k, sum), which adds the contribution of neuron k to sum [rows, lanes]; the bits do not depend on the number
// of threads.
template <class T, class One>
void sum_over_neurons(T* total, const BatchLastSizes& sizes, const ParallelFor& parallel_for, const One& one) {
  const int64_t size = sizes.rows * sizes.lanes, parts = (sizes.n + kTerms - 1) / kTerms;
  std::vector<T> sums(static_cast<size_t>(parts * size), T(0));
  parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      for (int64_t k = p * kTerms; k < std::min(sizes.n, (p + 1) * kTerms); ++k) one(k, sums.data() + p * size);
  });
  std::fill(total, total + size, T(0));
  for (int64_t p = 0; p < parts; ++p)
    for (int64_t i = 0; i < size; ++i) total[i] += sums[static_cast<size_t>(p * size + i)];
}

}  // namespace

template <class T>
void batch_last_relu_intervals(const T* center, const T* radius, T slope, T* out_center, T* out_radius,
                               const BatchLastSizes& sizes, const ParallelFor& parallel_for) {
  for_neurons(sizes.lanes, sizes, parallel_for, [&](int64_t k) {
    batch_last_bounds_kernels<T>().relu(neuron<T>(k, nullptr, center, radius, slope, sizes),
                                        out_center + k * sizes.lanes, out_radius + k * sizes.lanes);
  });
}

template <class T>
void batch_last_relu_intervals_backward(const T* of_center, const T* of_radius, const T* center, const T* radius,
                                        T slope, T* grad_center, T* grad_radius, const BatchLastSizes& sizes,
                                        const ParallelFor& parallel_for) {
  for_neurons(sizes.lanes, sizes, parallel_for, [&](int64_t k) {
    const int64_t at = k * sizes.lanes;
    batch_last_bounds_kernels<T>().relu_backward(neuron<T>(k, nullptr, center, radius, slope, sizes), of_center + at,
                                                 of_radius + at, grad_center + at, grad_radius + at);
  });
}

template <class T>
void batch_last_relax(const T* a, const T* center, const T* radius, T slope, T* out, T* bias,
                      const BatchLastSizes& sizes, const ParallelFor& parallel_for) {
  sum_over_neurons(bias, sizes, parallel_for, [&](int64_t k, T* sum) {
    batch_last_bounds_kernels<T>().relax(neuron(k, a, center, radius, slope, sizes), out + k * sizes.rows * sizes.lanes,
                                         sum);
  });
}

template <class T>
void batch_last_relax_backward(const T* grad, const T* grad_bias, const T* a, const T* center, const T* radius, T slope,
                               T* grad_a, T* grad_center, T* grad_radius, const BatchLastSizes& sizes,
                               const ParallelFor& parallel_for) {
  for_neurons(sizes.rows * sizes.lanes, sizes, parallel_for, [&](int64_t k) {
    const int64_t at = k * sizes.rows * sizes.lanes;
    batch_last_bounds_kernels<T>().relax_backward(neuron(k, a, center, radius, slope, sizes), grad + at, grad_bias,
                                                  grad_a + at, grad_center + k * sizes.lanes,
                                                  grad_radius + k * sizes.lanes);
  });
}

template <class T>
void batch_last_concretize(const T* a, const T* center, const T* radius, T* out, const BatchLastSizes& sizes,
                           const ParallelFor& parallel_for) {
  sum_over_neurons(out, sizes, parallel_for, [&](int64_t k, T* sum) {
    batch_last_bounds_kernels<T>().concretize(neuron(k, a, center, radius, T(0), sizes), sum);
  });
}

template <class T>
void batch_last_concretize_backward(const T* grad, const T* a, const T* center, const T* radius, T* grad_a,
                                    T* grad_center, T* grad_radius, const BatchLastSizes& sizes,
                                    const ParallelFor& parallel_for) {
  if (sizes.rows == 0 && grad_center != nullptr) {
    std::fill(grad_center, grad_center + sizes.n * sizes.lanes, T(0));
    std::fill(grad_radius, grad_radius + sizes.n * sizes.lanes, T(0));
  }
  const auto row = [&](T* of, int64_t k) { return of == nullptr ? nullptr : of + k * sizes.lanes; };
  for_neurons(sizes.rows * sizes.lanes, sizes, parallel_for, [&](int64_t k) {
    batch_last_bounds_kernels<T>().concretize_backward(neuron(k, a, center, radius, T(0), sizes), grad,
                                                       grad_a + k * sizes.rows * sizes.lanes, row(grad_center, k),
                                                       row(grad_radius, k));
  });
}

#define PYROBUST_LANE_BOUNDS(T)                                                                                        \
  template void batch_last_relu_intervals<T>(const T*, const T*, T, T*, T*, const BatchLastSizes&,                     \
                                             const ParallelFor&);                                                      \
  template void batch_last_relu_intervals_backward<T>(const T*, const T*, const T*, const T*, T, T*, T*,               \
                                                      const BatchLastSizes&, const ParallelFor&);                      \
  template void batch_last_relax<T>(const T*, const T*, const T*, T, T*, T*, const BatchLastSizes&,                    \
                                    const ParallelFor&);                                                               \
  template void batch_last_relax_backward<T>(const T*, const T*, const T*, const T*, const T*, T, T*, T*, T*,          \
                                             const BatchLastSizes&, const ParallelFor&);                               \
  template void batch_last_concretize<T>(const T*, const T*, const T*, T*, const BatchLastSizes&, const ParallelFor&); \
  template void batch_last_concretize_backward<T>(const T*, const T*, const T*, const T*, T*, T*, T*,                  \
                                                  const BatchLastSizes&, const ParallelFor&);
PYROBUST_LANE_BOUNDS(float)
PYROBUST_LANE_BOUNDS(double)
#undef PYROBUST_LANE_BOUNDS

}  // namespace pyrobust::cpu

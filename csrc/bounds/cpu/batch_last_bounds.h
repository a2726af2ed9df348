// Bounds in batch-last layout, where the examples are the SIMD lanes: intervals through ReLU, and specifications over
// boxes.
#pragma once

#include <cstdint>

#include "common/parallel.h"

namespace pyrobust::cpu {

// center: [n, lanes]; radius: [n, lanes], or [n, 1] where all examples share it; coefficients: [n, rows, lanes], with a
// row for each specification.
struct BatchLastSizes {
  int64_t n, rows, lanes;
  bool shared_radius;
};

// The interval of max(z, slope z).
template <class T>
void batch_last_relu_intervals(const T* center, const T* radius, T slope, T* out_center, T* out_radius,
                               const BatchLastSizes& sizes, const ParallelFor& parallel_for);

// grad_radius: always [n, lanes], here and below.
template <class T>
void batch_last_relu_intervals_backward(const T* of_center, const T* of_radius, const T* center, const T* radius,
                                        T slope, T* grad_center, T* grad_radius, const BatchLastSizes& sizes,
                                        const ParallelFor& parallel_for);

// relax_coefficients (bounds/relu_relaxation.h); bias: [rows, lanes].
template <class T>
void batch_last_relax(const T* a, const T* center, const T* radius, T slope, T* out, T* bias,
                      const BatchLastSizes& sizes, const ParallelFor& parallel_for);

template <class T>
void batch_last_relax_backward(const T* grad, const T* grad_bias, const T* a, const T* center, const T* radius, T slope,
                               T* grad_a, T* grad_center, T* grad_radius, const BatchLastSizes& sizes,
                               const ParallelFor& parallel_for);

// Concretizes the rows over the box: out [rows, lanes].
template <class T>
void batch_last_concretize(const T* a, const T* center, const T* radius, T* out, const BatchLastSizes& sizes,
                           const ParallelFor& parallel_for);

// grad: [rows, lanes]; grad_center and grad_radius may both be null.
template <class T>
void batch_last_concretize_backward(const T* grad, const T* a, const T* center, const T* radius, T* grad_a,
                                    T* grad_center, T* grad_radius, const BatchLastSizes& sizes,
                                    const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

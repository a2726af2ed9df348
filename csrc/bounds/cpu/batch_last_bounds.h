// Bounds of batches whose examples are the lanes of vectors: intervals through ReLU, and rows of coefficients over boxes.
#pragma once

#include <cstdint>

#include "common/parallel.h"

namespace pyrobust::cpu {

// center: [n, lanes]; radius: [n, lanes], or [n, 1] where all lanes share it; coefficients: [n, rows, lanes].
struct LaneSizes {
  int64_t n, rows, lanes;
  bool shared_radius;
};

// The interval of max(z, slope z).
template <class T>
void relu_intervals(const T* center, const T* radius, T slope, T* out_center, T* out_radius, const LaneSizes& sizes,
                    const ParallelFor& parallel_for);

// grad_radius: [n, lanes] in any case, here and below.
template <class T>
void relu_intervals_backward(const T* of_center, const T* of_radius, const T* center, const T* radius, T slope,
                             T* grad_center, T* grad_radius, const LaneSizes& sizes, const ParallelFor& parallel_for);

// relax_coefficients (bounds/relu_relaxation.h); bias: [rows, lanes].
template <class T>
void relax_lanes(const T* a, const T* center, const T* radius, T slope, T* out, T* bias, const LaneSizes& sizes,
                 const ParallelFor& parallel_for);

template <class T>
void relax_lanes_backward(const T* grad, const T* grad_bias, const T* a, const T* center, const T* radius, T slope,
                          T* grad_a, T* grad_center, T* grad_radius, const LaneSizes& sizes,
                          const ParallelFor& parallel_for);

// The least values of the rows over the box: out: [rows, lanes].
template <class T>
void least_lanes(const T* a, const T* center, const T* radius, T* out, const LaneSizes& sizes,
                 const ParallelFor& parallel_for);

// grad: [rows, lanes]; grad_center and grad_radius may both be null.
template <class T>
void least_lanes_backward(const T* grad, const T* a, const T* center, const T* radius, T* grad_a, T* grad_center,
                          T* grad_radius, const LaneSizes& sizes, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

// The inner loops of batch_last_bounds for one neuron, one set for each instruction set.
#pragma once

#include <cstdint>

#include "simd/dispatch.h"

namespace pyrobust::cpu {

// The box of one neuron, and its coefficients in all rows.
template <class T>
struct BatchLastNeuron {
  const T *center, *radius;  // [lanes]; radius: one number where it is shared
  bool shared_radius;
  T slope;
  const T* a;  // [rows, lanes]
  int64_t rows, lanes;
};

template <class T>
struct BatchLastBoundsKernels {
  void (*relu)(const BatchLastNeuron<T>& z, T* center, T* radius);
  void (*relu_backward)(const BatchLastNeuron<T>& z, const T* of_center, const T* of_radius, T* grad_center,
                        T* grad_radius);
  // Also adds the constants of the rows to sum.
  void (*relax)(const BatchLastNeuron<T>& z, T* out, T* sum);
  void (*relax_backward)(const BatchLastNeuron<T>& z, const T* grad, const T* grad_bias, T* grad_a, T* grad_center,
                         T* grad_radius);
  // Adds the concretized values to sum.
  void (*concretize)(const BatchLastNeuron<T>& z, T* sum);
  void (*concretize_backward)(const BatchLastNeuron<T>& z, const T* grad, T* grad_a, T* grad_center, T* grad_radius);
};

// Returns the kernels of the level in use.
template <class T>
const BatchLastBoundsKernels<T>& batch_last_bounds_kernels();

}  // namespace pyrobust::cpu

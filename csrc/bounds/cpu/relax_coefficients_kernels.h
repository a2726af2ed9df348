// The inner loops of relax_coefficients, one set per instruction set, all with the same bits.
#pragma once

#include <cstdint>

#include "simd/dispatch.h"

namespace pyrobust::cpu {

// Lines of a block of neurons, filled up with zeros to a multiple of kLineLanes.
inline constexpr int64_t kLineLanes = 16;

template <class T>
struct RelaxCoefficientsKernels {
  // out = a times the slope of its side; returns the sum of a intercept where a < 0.
  double (*relax)(const T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* intercept, T* out);
  // grad_a from grad and grad_bias; where a < 0, of_slope += a grad and of_intercept += a grad_bias.
  void (*backward)(const T* a, const T* grad, T grad_bias, int64_t n, const T* lower_slope, const T* upper_slope,
                   const T* intercept, T* grad_a, T* of_slope, T* of_intercept);
};

// The set of the level in use.
template <class T>
const RelaxCoefficientsKernels<T>& relax_coefficients_kernels();

}  // namespace pyrobust::cpu

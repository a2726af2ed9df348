// The inner loops of relax_coefficients, one set for each instruction set, all with bitwise equal results.
#pragma once

#include <cstdint>

#include "simd/dispatch.h"

namespace pyrobust::cpu {

// The relaxation of a block of neurons is padded with zeros to a multiple of this.
inline constexpr int64_t kRelaxationLanes = 16;

template <class T>
struct RelaxCoefficientsKernels {
  // out = a times the slope for its sign; returns the sum of a intercept where a < 0.
  double (*relax)(const T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* intercept, T* out);
  // grad_a from grad and grad_bias; where a < 0, of_slope += a grad and of_intercept += a grad_bias.
  void (*backward)(const T* a, const T* grad, T grad_bias, int64_t n, const T* lower_slope, const T* upper_slope,
                   const T* intercept, T* grad_a, T* of_slope, T* of_intercept);
};

// Returns the kernels of the level in use.
template <class T>
const RelaxCoefficientsKernels<T>& relax_coefficients_kernels();

}  // namespace pyrobust::cpu

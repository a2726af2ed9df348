// The ReLU relaxation of a backward pass over coefficients, on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/parallel.h"

namespace pyrobust::cpu {

// out [batch, rows, n] and bias [batch, rows] from a [batch, rows, n] and the ranges lower, upper [batch, n] of n
// neurons.
template <class T>
void relax_coefficients(const T* a, const T* lower, const T* upper, T slope, T* out, T* bias, int64_t batch,
                        int64_t rows, int64_t n, const ParallelFor& parallel_for);

// The gradients of a, lower and upper from those of out (grad) and bias.
template <class T>
void relax_coefficients_backward(const T* grad, const T* grad_bias, const T* a, const T* lower, const T* upper, T slope,
                                 T* grad_a, T* grad_lower, T* grad_upper, int64_t batch, int64_t rows, int64_t n,
                                 const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

// Linear relaxation and concretization of packed rows of coefficients, on the CPU: raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/parallel.h"

namespace pyrobust::cpu {

// constant[r] = sum over k of a[r][k] * (a[r][k] < 0 ? high : low)[image[r]][k], in float64. a: [rows][n]; image:
// [rows], in range; the others: [images][n]. NaN in a propagates.
template <class T>
void concretize_rows(const T* a, const int64_t* image, const T* low, const T* high, T* constant, int64_t rows,
                     int64_t n, const ParallelFor& parallel_for);

// The same, and multiplies a[r][k] by the slope for its sign.
template <class T>
void relax_rows(T* a, const int64_t* image, const T* lower_slope, const T* upper_slope, const T* low, const T* high,
                T* constant, int64_t rows, int64_t n, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

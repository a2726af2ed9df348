// The smallest steps onto hyperplanes within a box, on the CPU: raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/parallel.h"

namespace pyrobust::cpu {

// step [rows, n]: the smallest one, in the norm (attacks/hyperplane_row.h), from a row of x [rows, n] to the hyperplane
// value[b] + w[b] (z - at[b]) = 0, within [lower, upper]. at, w: [planes, n]; value: [planes]; b = row % planes. In
// float64 on one thread per row: with the CUDA kernel's arithmetic, but another order of sums.
template <class T>
void hyperplane_step(const T* x, const T* at, const T* w, const double* value, int64_t norm, T* step, int64_t rows,
                     int64_t planes, int64_t n, double lower, double upper, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

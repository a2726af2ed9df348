// Projection of rows onto the simplex and onto the l1 ball, on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// z [rows, n] from v [rows, n]; radius[row * radius_stride], at least 0. absolute: the l1 ball, else the simplex.
// Returns the first row with a non-finite element, or -1; z is unspecified then.
template <class T>
int64_t project_l1(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows, int64_t n,
                   bool absolute, int threads, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

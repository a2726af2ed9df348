// Projection of rows onto the l1 ball within a box, on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

struct BadRow {
  int64_t y;  // the first row with an element of y that is not finite, or -1
  int64_t x;  // the first row with an element of x outside the box, or -1
};

// z [rows, n] from y and x [rows, n]: onto {|z|_1 <= radius, lower <= x + z <= upper}. The contents of bad rows are
// unspecified.
template <class T>
BadRow project_l1_box(const T* y, const T* x, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                      int64_t n, double lower, double upper, int threads, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

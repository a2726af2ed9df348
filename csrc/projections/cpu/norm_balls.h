// Projection of rows onto l2 and l-infinity balls, on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

enum class NormBall { kL2, kLinf };

// z [rows, n] from v [rows, n]; radius[row * radius_stride]. Returns the first row with a non-finite element, or
// -1; that row of z is unspecified.
template <class T>
int64_t project_norm_ball(NormBall ball, const T* v, T* z, const double* radius, int64_t radius_stride, int64_t rows,
                          int64_t n, int threads, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

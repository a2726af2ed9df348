// Rows times a factor each, on the CPU: raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/parallel.h"

namespace pyrobust::cpu {

// y[b][d] = scale[b] * x[b][d], rounded once. x, y: [rows][n]; scale: [rows].
template <class T>
void scale_rows(const T* x, const T* scale, T* y, int64_t rows, int64_t n, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

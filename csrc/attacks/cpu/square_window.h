// Proposals of the Square attack in l2 and l1, on the CPU: raw pointers, no torch.
#pragma once

#include <cstdint>

#include "attacks/window_row.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

using cuda::Windows;

// out [rows, n]: images best with one window changed, or in l1 their changes of x, not yet projected. best, x: [rows, n];
// u: [rows, 5 + channels]; patterns: [2][tall * wide]; radius: [rows]. In float64 on one thread per row: with the CUDA
// kernel's arithmetic, but another order of sums.
template <class T>
void square_window(const T* best, const T* x, const T* u, const double* patterns, const double* radius, bool l2, T* out,
                   int64_t rows, const Windows& windows, double lower, double upper, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

// l1_step, project_l1_box and add_perturbation in one pass over memory, on the CPU: raw pointers, no torch.
#pragma once

#include "projections/cpu/l1_box.h"

namespace pyrobust::cpu {

// Writes to out [rows, n] x plus the projection of l1_step(x_adv, grad, x) [rows, n], rounded toward x. bad.y is the
// first row with a non-finite x_adv. The contents of bad rows are unspecified.
template <class T>
BadRow l1_step_in_ball(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride,
                       const int64_t* keep, int64_t keep_stride, const double* epsilon, int64_t epsilon_stride, T* out,
                       int64_t rows, int64_t n, double lower, double upper, int threads,
                       const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

// Attack steps that satisfy their constraints exactly, on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// Each returns the first bad row (x outside the box, or z NaN), or -1; the contents of that row are unspecified.

// out [rows, n] = x + z rounded toward x, within [lower, upper].
template <class T>
int64_t add_perturbation(const T* x, const T* z, T* out, int64_t rows, int64_t n, double lower, double upper,
                         const ParallelFor& parallel_for);

// out = x_adv + step sign(grad), within epsilon of x and within [lower, upper]; step[row * step_stride] and so on.
template <class T>
int64_t linf_step(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride,
                  const double* epsilon, int64_t epsilon_stride, T* out, int64_t rows, int64_t n, double lower,
                  double upper, const ParallelFor& parallel_for);

// The same with momentum: x_adv + share (z - x_adv) + (1 - share) (x_adv - before), where z is the step above.
template <class T>
int64_t linf_momentum_step(const T* x_adv, const T* grad, const T* x, const T* before, const double* step,
                           int64_t step_stride, const double* epsilon, int64_t epsilon_stride, double share, T* out,
                           int64_t rows, int64_t n, double lower, double upper, const ParallelFor& parallel_for);

// out = (x_adv - x) + (step / m) sign(grad) on the m elements whose |grad| reaches the keep-th largest of the row (ties
// included, zeros not), among those whose step stays in [lower, upper].
template <class T>
void l1_step(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride, const int64_t* keep,
             int64_t keep_stride, T* out, int64_t rows, int64_t n, double lower, double upper,
             const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

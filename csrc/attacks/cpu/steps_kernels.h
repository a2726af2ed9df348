// The inner loops of the attack steps, one set for each instruction set, all with bitwise equal results.
#pragma once

#include <cstdint>

#include "attacks/step_math.h"

namespace pyrobust::cpu {

template <class T>
struct StepKernels {
  // out = x + z rounded toward x, within [lower, upper]; false where x lies outside or z is NaN.
  bool (*add)(const T* x, const T* z, T* out, int64_t n, Real<T> lower, Real<T> upper);
  // out = x_adv + step sign(grad), within epsilon of x and [lower, upper]; false where x lies outside.
  bool (*linf_step)(const T* x_adv, const T* grad, const T* x, T* out, int64_t n, Real<T> step, Real<T> epsilon,
                    Real<T> lower, Real<T> upper);
  // The same with momentum: attacks/step_math.h.
  bool (*linf_momentum_step)(const T* x_adv, const T* grad, const T* x, const T* before, T* out, int64_t n,
                             Real<T> step, Real<T> share, Real<T> epsilon, Real<T> lower, Real<T> upper);
  // out = grad, or zero where a step along it would leave [lower, upper].
  void (*movable)(const T* x_adv, const T* grad, T* out, int64_t n, Real<T> lower, Real<T> upper);
  // out = (x_adv - x) + step sign(grad) where |grad| >= threshold, rounded to nearest.
  void (*l1_step)(const T* x_adv, const T* grad, const T* x, T* out, int64_t n, Real<T> threshold, Real<T> step);
};

// Returns the kernels of the level in use.
template <class T>
const StepKernels<T>& step_kernels();

}  // namespace pyrobust::cpu

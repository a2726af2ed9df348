// The inner loops of the attack steps, which the compiler turns into vector code.
#include "attacks/cpu/steps_kernels.h"

#include "simd/dispatch.h"

#define PYROBUST_KERNELS "attacks/cpu/steps_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

template <class T>
PYROBUST_TARGET bool add(const T* __restrict x, const T* __restrict z, T* __restrict out, int64_t n, Real<T> lower,
                         Real<T> upper) {
  int32_t good = 1;
  for (int64_t i = 0; i < n; ++i) {
    const Real<T> from = to_float(x[i]), by = to_float(z[i]);
    good &= static_cast<int32_t>(from >= lower) & static_cast<int32_t>(from <= upper) & static_cast<int32_t>(by == by);
    out[i] = add_in_box<T>(x[i], z[i], lower, upper);
  }
  return good != 0;
}

template <class T>
PYROBUST_TARGET bool linf_step(const T* __restrict x_adv, const T* __restrict grad, const T* __restrict x,
                               T* __restrict out, int64_t n, Real<T> step, Real<T> epsilon, Real<T> lower,
                               Real<T> upper) {
  int32_t good = 1;
  for (int64_t i = 0; i < n; ++i) {
    const Real<T> from = to_float(x[i]);
    good &= static_cast<int32_t>(from >= lower) & static_cast<int32_t>(from <= upper);
    out[i] = linf_moved<T>(x_adv[i], grad[i], x[i], step, epsilon, lower, upper);
  }
  return good != 0;
}

template <class T>
PYROBUST_TARGET bool linf_carried(const T* __restrict x_adv, const T* __restrict grad, const T* __restrict x,
                                  const T* __restrict before, T* __restrict out, int64_t n, Real<T> step, Real<T> share,
                                  Real<T> epsilon, Real<T> lower, Real<T> upper) {
  int32_t good = 1;
  for (int64_t i = 0; i < n; ++i) {
    const Real<T> from = to_float(x[i]);
    good &= static_cast<int32_t>(from >= lower) & static_cast<int32_t>(from <= upper);
    out[i] = pyrobust::linf_carried<T>(x_adv[i], grad[i], x[i], before[i], step, share, epsilon, lower, upper);
  }
  return good != 0;
}

template <class T>
PYROBUST_TARGET void movable(const T* __restrict x_adv, const T* __restrict grad, T* __restrict out, int64_t n,
                             Real<T> lower, Real<T> upper) {
  for (int64_t i = 0; i < n; ++i) out[i] = pyrobust::movable<T>(x_adv[i], grad[i], lower, upper);
}

template <class T>
PYROBUST_TARGET void l1_step(const T* __restrict x_adv, const T* __restrict grad, const T* __restrict x,
                             T* __restrict out, int64_t n, Real<T> threshold, Real<T> step) {
  for (int64_t i = 0; i < n; ++i) out[i] = sparse_moved<T>(x_adv[i], grad[i], x[i], threshold, step);
}

template <class T>
constexpr StepKernels<T> kKernels = {add<T>, linf_step<T>, linf_carried<T>, movable<T>, l1_step<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const StepKernels<T>& step_kernels() {
  if constexpr (std::is_floating_point_v<T>)
    return PYROBUST_AT_LEVEL(kKernels<T>);
  else
    return scalar::kKernels<T>;
}
template const StepKernels<float>& step_kernels();
template const StepKernels<double>& step_kernels();
template const StepKernels<Half>& step_kernels();
template const StepKernels<BFloat16>& step_kernels();

}  // namespace pyrobust::cpu

#endif

// The inner loops of relax_coefficients.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/relax_coefficients_kernels.h"
#include "simd/dispatch.h"

#define PYROBUST_KERNELS "bounds/cpu/relax_coefficients_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec_real.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// A comparison with NaN is false: a NaN takes the lower slope, and stays NaN.
template <class T>
PYROBUST_TARGET double relax(const T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* intercept,
                             T* out) {
  const auto zero = broadcast(T(0));
  auto sum = zero;
  for (int64_t i = 0; i < n; i += kCount<T>) {
    const auto c = load_up_to(a, i, n);
    store_up_to(out, i, n, mul(c, where_less(c, zero, load_lanes(upper_slope + i), load_lanes(lower_slope + i))));
    sum = add(sum, mul(c, where_less(c, zero, load_lanes(intercept + i), zero)));
  }
  T lane[kCount<T>];
  put(lane, sum);
  double total = 0;
  for (const T partial : lane) total += static_cast<double>(partial);
  return total;
}

template <class T>
PYROBUST_TARGET void backward(const T* a, const T* grad, T grad_bias, int64_t n, const T* lower_slope,
                              const T* upper_slope, const T* intercept, T* grad_a, T* of_slope, T* of_intercept) {
  const auto zero = broadcast(T(0)), of_bias = broadcast(grad_bias);
  for (int64_t i = 0; i < n; i += kCount<T>) {
    const auto c = load_up_to(a, i, n), g = load_up_to(grad, i, n);
    const auto slope = where_less(c, zero, load_lanes(upper_slope + i), load_lanes(lower_slope + i));
    const auto constant = where_less(c, zero, load_lanes(intercept + i), zero);
    store_up_to(grad_a, i, n, add(mul(g, slope), mul(of_bias, constant)));
    const auto above = where_less(c, zero, c, zero);
    put(of_slope + i, add(load_lanes(of_slope + i), mul(above, g)));
    put(of_intercept + i, add(load_lanes(of_intercept + i), mul(above, of_bias)));
  }
}

template <class T>
constexpr RelaxCoefficientsKernels<T> kKernels = {relax<T>, backward<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const RelaxCoefficientsKernels<T>& relax_coefficients_kernels() {
  return PYROBUST_AT_LEVEL(kKernels<T>);
}
template const RelaxCoefficientsKernels<float>& relax_coefficients_kernels();
template const RelaxCoefficientsKernels<double>& relax_coefficients_kernels();

}  // namespace pyrobust::cpu

#endif

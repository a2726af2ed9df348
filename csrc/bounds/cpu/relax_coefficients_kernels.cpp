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

// A comparison with NaN is false: a NaN takes the lower line, and stays NaN.
template <class T>
PYROBUST_TARGET double relax(const T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* intercept,
                             T* out) {
  const auto zero = all(T(0));
  auto sum = zero;
  for (int64_t i = 0; i < n; i += kCount<T>) {
    const auto c = some(a, i, n);
    put_some(out, i, n, mul(c, where_less(c, zero, lanes_at(upper_slope + i), lanes_at(lower_slope + i))));
    sum = add(sum, mul(c, where_less(c, zero, lanes_at(intercept + i), zero)));
  }
  T lane[kCount<T>];
  put(lane, sum);
  double total = 0;
  for (const T one : lane) total += static_cast<double>(one);
  return total;
}

template <class T>
PYROBUST_TARGET void backward(const T* a, const T* grad, T grad_bias, int64_t n, const T* lower_slope,
                              const T* upper_slope, const T* intercept, T* grad_a, T* of_slope, T* of_intercept) {
  const auto zero = all(T(0)), of_bias = all(grad_bias);
  for (int64_t i = 0; i < n; i += kCount<T>) {
    const auto c = some(a, i, n), g = some(grad, i, n);
    const auto slope = where_less(c, zero, lanes_at(upper_slope + i), lanes_at(lower_slope + i));
    const auto constant = where_less(c, zero, lanes_at(intercept + i), zero);
    put_some(grad_a, i, n, add(mul(g, slope), mul(of_bias, constant)));
    const auto above = where_less(c, zero, c, zero);
    put(of_slope + i, add(lanes_at(of_slope + i), mul(above, g)));
    put(of_intercept + i, add(lanes_at(of_intercept + i), mul(above, of_bias)));
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

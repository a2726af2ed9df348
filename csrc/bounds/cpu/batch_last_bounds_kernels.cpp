// The inner loops of batch_last_bounds.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/batch_last_bounds_kernels.h"
#include "simd/dispatch.h"

#define PYROBUST_KERNELS "bounds/cpu/batch_last_bounds_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec_real.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

template <class T>
using Lanes = decltype(all(T(0)));

template <class T>
PYROBUST_TARGET inline Lanes<T> radius_at(const BatchLastNeuron<T>& z, int64_t i) {
  return z.shared_radius ? all(*z.radius) : some(z.radius, i, z.lanes);
}

// yes where l >= 0, and middle where u > 0 or one of them is NaN, else no.
template <class T>
PYROBUST_TARGET inline Lanes<T> by_sign(Lanes<T> l, Lanes<T> u, Lanes<T> yes, Lanes<T> middle, Lanes<T> no) {
  const T tiny = std::numeric_limits<T>::denorm_min();  // l >= 0 is l > -tiny: comparisons with NaN are false
  return where_less(all(-tiny), l, yes, where_less(u, all(tiny), no, middle));
}

template <class T>
PYROBUST_TARGET void relu(const BatchLastNeuron<T>& z, T* center, T* radius) {
  const auto zero = all(T(0)), half = all(T(0.5)), slope = all(z.slope);
  for (int64_t i = 0; i < z.lanes; i += kCount<T>) {
    const auto c = some(z.center, i, z.lanes), r = radius_at(z, i);
    const auto l = sub(c, r), u = add(c, r);
    const auto low = where_less(zero, l, l, mul(slope, l)), high = where_less(zero, u, u, mul(slope, u));
    put_some(center, i, z.lanes, mul(half, add(high, low)));
    put_some(radius, i, z.lanes, mul(half, sub(high, low)));
  }
}

template <class T>
PYROBUST_TARGET void relu_backward(const BatchLastNeuron<T>& z, const T* of_center, const T* of_radius, T* grad_center,
                                   T* grad_radius) {
  const auto zero = all(T(0)), half = all(T(0.5)), slope = all(z.slope);
  for (int64_t i = 0; i < z.lanes; i += kCount<T>) {
    const auto c = some(z.center, i, z.lanes), r = radius_at(z, i);
    const auto of_c = mul(half, some(of_center, i, z.lanes)), of_r = mul(half, some(of_radius, i, z.lanes));
    const auto l = sub(c, r), u = add(c, r), of_l = sub(of_c, of_r), of_u = add(of_c, of_r);
    const auto low = where_less(zero, l, of_l, mul(slope, of_l)), high = where_less(zero, u, of_u, mul(slope, of_u));
    put_some(grad_center, i, z.lanes, add(high, low));
    put_some(grad_radius, i, z.lanes, sub(high, low));
  }
}

// Lanes whose lines stay in the first-level cache while the rows pass over them one after the other, as memory likes it.
constexpr int64_t kBlock = 128;

// bounds/relu_relaxation.h
template <class T>
struct Lines {
  T lower_slope[kBlock], upper_slope[kBlock], intercept[kBlock];
};

template <class T>
PYROBUST_TARGET inline void set_lines(const BatchLastNeuron<T>& z, int64_t first, int64_t end, Lines<T>& lines) {
  const auto zero = all(T(0)), one = all(T(1)), slope = all(z.slope);
  for (int64_t i = first; i < end; i += kCount<T>) {
    const auto c = some(z.center, i, z.lanes), r = radius_at(z, i);
    const auto l = sub(c, r), u = add(c, r);
    const auto chord = div(sub(u, mul(slope, l)), sub(u, l));
    const auto below = where_less(sub(zero, l), u, one, slope);
    put(lines.lower_slope + i - first, by_sign<T>(l, u, one, below, slope));
    put(lines.upper_slope + i - first, by_sign<T>(l, u, one, chord, slope));
    put(lines.intercept + i - first, by_sign<T>(l, u, zero, mul(sub(one, chord), u), zero));
  }
}

template <class T>
PYROBUST_TARGET void relax(const BatchLastNeuron<T>& z, T* out, T* sum) {
  const auto zero = all(T(0));
  Lines<T> lines;
  for (int64_t first = 0; first < z.lanes; first += kBlock) {
    const int64_t end = first + kBlock < z.lanes ? first + kBlock : z.lanes;
    set_lines(z, first, end, lines);
    for (int64_t s = 0; s < z.rows; ++s) {
      const T* const a_row = z.a + s * z.lanes;
      for (int64_t i = first; i < end; i += kCount<T>) {
        const auto a = some(a_row, i, end);
        const auto lower = lanes_at(lines.lower_slope + i - first), upper = lanes_at(lines.upper_slope + i - first);
        const auto constant = mul(a, where_less(a, zero, lanes_at(lines.intercept + i - first), zero));
        put_some(out + s * z.lanes, i, end, mul(a, where_less(a, zero, upper, lower)));
        put_some(sum + s * z.lanes, i, end, add(some(sum + s * z.lanes, i, end), constant));
      }
    }
  }
}

template <class T>
PYROBUST_TARGET void relax_backward(const BatchLastNeuron<T>& z, const T* grad, const T* grad_bias, T* grad_a,
                                    T* grad_center, T* grad_radius) {
  const auto zero = all(T(0)), one = all(T(1)), slope = all(z.slope);
  Lines<T> lines;
  T slopes[kBlock], intercepts[kBlock];  // the derivatives by them
  for (int64_t first = 0; first < z.lanes; first += kBlock) {
    const int64_t end = first + kBlock < z.lanes ? first + kBlock : z.lanes;
    set_lines(z, first, end, lines);
    for (int64_t i = 0; i < kBlock; ++i) slopes[i] = intercepts[i] = T(0);
    for (int64_t s = 0; s < z.rows; ++s) {
      const int64_t row = s * z.lanes;
      for (int64_t i = first; i < end; i += kCount<T>) {
        const auto a = some(z.a + row, i, end), g = some(grad + row, i, end), b = some(grad_bias + row, i, end);
        const auto lower = lanes_at(lines.lower_slope + i - first), upper = lanes_at(lines.upper_slope + i - first);
        const auto constant = where_less(a, zero, lanes_at(lines.intercept + i - first), zero);
        const auto above = where_less(a, zero, a, zero);
        put_some(grad_a + row, i, end, add(mul(g, where_less(a, zero, upper, lower)), mul(b, constant)));
        put(slopes + i - first, add(lanes_at(slopes + i - first), mul(above, g)));
        put(intercepts + i - first, add(lanes_at(intercepts + i - first), mul(above, b)));
      }
    }
    for (int64_t i = first; i < end; i += kCount<T>) {
      const auto c = some(z.center, i, z.lanes), r = radius_at(z, i);
      const auto l = sub(c, r), u = add(c, r), span = sub(u, l), rest = div(sub(one, slope), span);
      const auto of_slope = lanes_at(slopes + i - first), of_intercept = lanes_at(intercepts + i - first);
      // 1 - chord is -l rest
      const auto total = mul(sub(of_slope, mul(u, of_intercept)), rest);
      const auto of_l = mul(total, div(u, span));
      const auto of_u = sub(mul(total, div(sub(zero, l), span)), mul(of_intercept, mul(l, rest)));
      put_some(grad_center, i, z.lanes, by_sign<T>(l, u, zero, add(of_u, of_l), zero));
      put_some(grad_radius, i, z.lanes, by_sign<T>(l, u, zero, sub(of_u, of_l), zero));
    }
  }
}

template <class T>
PYROBUST_TARGET void least(const BatchLastNeuron<T>& z, T* sum) {
  for (int64_t i = 0; i < z.lanes; i += kCount<T>) {
    const auto c = some(z.center, i, z.lanes), r = radius_at(z, i);
    for (int64_t s = 0, at = i; s < z.rows; ++s, at += z.lanes) {
      const int64_t end = at - i + z.lanes;
      const auto a = some(z.a, at, end);
      put_some(sum, at, end, add(some(sum, at, end), sub(mul(a, c), mul(abs(a), r))));
    }
  }
}

template <class T>
PYROBUST_TARGET void least_backward(const BatchLastNeuron<T>& z, const T* grad, T* grad_a, T* grad_center,
                                    T* grad_radius) {
  const auto zero = all(T(0));
  for (int64_t s = 0; s < z.rows; ++s) {
    const int64_t row = s * z.lanes;
    for (int64_t i = 0; i < z.lanes; i += kCount<T>) {
      const auto c = some(z.center, i, z.lanes), r = radius_at(z, i);
      const auto a = some(z.a + row, i, z.lanes), g = some(grad + row, i, z.lanes);
      put_some(grad_a + row, i, z.lanes, mul(g, where_less(a, zero, add(c, r), where_less(zero, a, sub(c, r), c))));
      if (grad_center == nullptr) continue;
      const auto of_center = s == 0 ? zero : some(grad_center, i, z.lanes);
      const auto of_radius = s == 0 ? zero : some(grad_radius, i, z.lanes);
      put_some(grad_center, i, z.lanes, add(of_center, mul(a, g)));
      put_some(grad_radius, i, z.lanes, sub(of_radius, mul(abs(a), g)));
    }
  }
}

template <class T>
constexpr BatchLastBoundsKernels<T> kKernels = {relu<T>,           relu_backward<T>, relax<T>,
                                                relax_backward<T>, least<T>,         least_backward<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const BatchLastBoundsKernels<T>& batch_last_bounds_kernels() {
  return PYROBUST_AT_LEVEL(kKernels<T>);
}
template const BatchLastBoundsKernels<float>& batch_last_bounds_kernels();
template const BatchLastBoundsKernels<double>& batch_last_bounds_kernels();

}  // namespace pyrobust::cpu

#endif

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
using Lanes = decltype(broadcast(T(0)));

template <class T>
PYROBUST_TARGET inline Lanes<T> radius_at(const BatchLastNeuron<T>& z, int64_t i) {
  return z.shared_radius ? broadcast(*z.radius) : load_up_to(z.radius, i, z.lanes);
}

// Selects yes where l >= 0, middle where u > 0 or either is NaN, else no.
template <class T>
PYROBUST_TARGET inline Lanes<T> by_sign(Lanes<T> l, Lanes<T> u, Lanes<T> yes, Lanes<T> middle, Lanes<T> no) {
  const T tiny = std::numeric_limits<T>::denorm_min();  // l >= 0 is l > -tiny: comparisons with NaN are false
  return where_less(broadcast(-tiny), l, yes, where_less(u, broadcast(tiny), no, middle));
}

template <class T>
PYROBUST_TARGET void relu(const BatchLastNeuron<T>& z, T* center, T* radius) {
  const auto zero = broadcast(T(0)), half = broadcast(T(0.5)), slope = broadcast(z.slope);
  for (int64_t i = 0; i < z.lanes; i += kCount<T>) {
    const auto c = load_up_to(z.center, i, z.lanes), r = radius_at(z, i);
    const auto l = sub(c, r), u = add(c, r);
    const auto low = where_less(zero, l, l, mul(slope, l)), high = where_less(zero, u, u, mul(slope, u));
    store_up_to(center, i, z.lanes, mul(half, add(high, low)));
    store_up_to(radius, i, z.lanes, mul(half, sub(high, low)));
  }
}

template <class T>
PYROBUST_TARGET void relu_backward(const BatchLastNeuron<T>& z, const T* of_center, const T* of_radius, T* grad_center,
                                   T* grad_radius) {
  const auto zero = broadcast(T(0)), half = broadcast(T(0.5)), slope = broadcast(z.slope);
  for (int64_t i = 0; i < z.lanes; i += kCount<T>) {
    const auto c = load_up_to(z.center, i, z.lanes), r = radius_at(z, i);
    const auto of_c = mul(half, load_up_to(of_center, i, z.lanes)), of_r = mul(half, load_up_to(of_radius, i, z.lanes));
    const auto l = sub(c, r), u = add(c, r), of_l = sub(of_c, of_r), of_u = add(of_c, of_r);
    const auto low = where_less(zero, l, of_l, mul(slope, of_l)), high = where_less(zero, u, of_u, mul(slope, of_u));
    store_up_to(grad_center, i, z.lanes, add(high, low));
    store_up_to(grad_radius, i, z.lanes, sub(high, low));
  }
}

// Number of examples whose linear relaxation stays in the first-level cache during the loop over the rows, which are
// read in memory order.
constexpr int64_t kBlock = 128;

// The relaxation of bounds/relu_relaxation.h for a block of examples.
template <class T>
struct LinearRelaxation {
  T lower_slope[kBlock], upper_slope[kBlock], intercept[kBlock];
};

template <class T>
PYROBUST_TARGET inline void set_relaxation(const BatchLastNeuron<T>& z, int64_t first, int64_t end,
                                           LinearRelaxation<T>& relaxation) {
  const auto zero = broadcast(T(0)), one = broadcast(T(1)), slope = broadcast(z.slope);
  for (int64_t i = first; i < end; i += kCount<T>) {
    const auto c = load_up_to(z.center, i, z.lanes), r = radius_at(z, i);
    const auto l = sub(c, r), u = add(c, r);
    const auto chord = div(sub(u, mul(slope, l)), sub(u, l));
    const auto below = where_less(sub(zero, l), u, one, slope);
    put(relaxation.lower_slope + i - first, by_sign<T>(l, u, one, below, slope));
    put(relaxation.upper_slope + i - first, by_sign<T>(l, u, one, chord, slope));
    put(relaxation.intercept + i - first, by_sign<T>(l, u, zero, mul(sub(one, chord), u), zero));
  }
}

template <class T>
PYROBUST_TARGET void relax(const BatchLastNeuron<T>& z, T* out, T* sum) {
  const auto zero = broadcast(T(0));
  LinearRelaxation<T> relaxation;
  for (int64_t first = 0; first < z.lanes; first += kBlock) {
    const int64_t end = first + kBlock < z.lanes ? first + kBlock : z.lanes;
    set_relaxation(z, first, end, relaxation);
    for (int64_t s = 0; s < z.rows; ++s) {
      const T* const a_row = z.a + s * z.lanes;
      for (int64_t i = first; i < end; i += kCount<T>) {
        const auto a = load_up_to(a_row, i, end);
        const auto lower = load_lanes(relaxation.lower_slope + i - first),
                   upper = load_lanes(relaxation.upper_slope + i - first);
        const auto constant = mul(a, where_less(a, zero, load_lanes(relaxation.intercept + i - first), zero));
        store_up_to(out + s * z.lanes, i, end, mul(a, where_less(a, zero, upper, lower)));
        store_up_to(sum + s * z.lanes, i, end, add(load_up_to(sum + s * z.lanes, i, end), constant));
      }
    }
  }
}

template <class T>
PYROBUST_TARGET void relax_backward(const BatchLastNeuron<T>& z, const T* grad, const T* grad_bias, T* grad_a,
                                    T* grad_center, T* grad_radius) {
  const auto zero = broadcast(T(0)), one = broadcast(T(1)), slope = broadcast(z.slope);
  LinearRelaxation<T> relaxation;
  T slopes[kBlock], intercepts[kBlock];  // gradients of the upper slope and the intercept
  for (int64_t first = 0; first < z.lanes; first += kBlock) {
    const int64_t end = first + kBlock < z.lanes ? first + kBlock : z.lanes;
    set_relaxation(z, first, end, relaxation);
    for (int64_t i = 0; i < kBlock; ++i) slopes[i] = intercepts[i] = T(0);
    for (int64_t s = 0; s < z.rows; ++s) {
      const int64_t row = s * z.lanes;
      for (int64_t i = first; i < end; i += kCount<T>) {
        const auto a = load_up_to(z.a + row, i, end), g = load_up_to(grad + row, i, end),
                   b = load_up_to(grad_bias + row, i, end);
        const auto lower = load_lanes(relaxation.lower_slope + i - first),
                   upper = load_lanes(relaxation.upper_slope + i - first);
        const auto constant = where_less(a, zero, load_lanes(relaxation.intercept + i - first), zero);
        const auto above = where_less(a, zero, a, zero);
        store_up_to(grad_a + row, i, end, add(mul(g, where_less(a, zero, upper, lower)), mul(b, constant)));
        put(slopes + i - first, add(load_lanes(slopes + i - first), mul(above, g)));
        put(intercepts + i - first, add(load_lanes(intercepts + i - first), mul(above, b)));
      }
    }
    for (int64_t i = first; i < end; i += kCount<T>) {
      const auto c = load_up_to(z.center, i, z.lanes), r = radius_at(z, i);
      const auto l = sub(c, r), u = add(c, r), span = sub(u, l), rest = div(sub(one, slope), span);
      const auto of_slope = load_lanes(slopes + i - first), of_intercept = load_lanes(intercepts + i - first);
      // 1 - chord is -l rest
      const auto total = mul(sub(of_slope, mul(u, of_intercept)), rest);
      const auto of_l = mul(total, div(u, span));
      const auto of_u = sub(mul(total, div(sub(zero, l), span)), mul(of_intercept, mul(l, rest)));
      store_up_to(grad_center, i, z.lanes, by_sign<T>(l, u, zero, add(of_u, of_l), zero));
      store_up_to(grad_radius, i, z.lanes, by_sign<T>(l, u, zero, sub(of_u, of_l), zero));
    }
  }
}

template <class T>
PYROBUST_TARGET void concretize(const BatchLastNeuron<T>& z, T* sum) {
  for (int64_t i = 0; i < z.lanes; i += kCount<T>) {
    const auto c = load_up_to(z.center, i, z.lanes), r = radius_at(z, i);
    for (int64_t s = 0, at = i; s < z.rows; ++s, at += z.lanes) {
      const int64_t end = at - i + z.lanes;
      const auto a = load_up_to(z.a, at, end);
      store_up_to(sum, at, end, add(load_up_to(sum, at, end), sub(mul(a, c), mul(abs(a), r))));
    }
  }
}

template <class T>
PYROBUST_TARGET void concretize_backward(const BatchLastNeuron<T>& z, const T* grad, T* grad_a, T* grad_center,
                                         T* grad_radius) {
  const auto zero = broadcast(T(0));
  for (int64_t s = 0; s < z.rows; ++s) {
    const int64_t row = s * z.lanes;
    for (int64_t i = 0; i < z.lanes; i += kCount<T>) {
      const auto c = load_up_to(z.center, i, z.lanes), r = radius_at(z, i);
      const auto a = load_up_to(z.a + row, i, z.lanes), g = load_up_to(grad + row, i, z.lanes);
      store_up_to(grad_a + row, i, z.lanes, mul(g, where_less(a, zero, add(c, r), where_less(zero, a, sub(c, r), c))));
      if (grad_center == nullptr) continue;
      const auto of_center = s == 0 ? zero : load_up_to(grad_center, i, z.lanes);
      const auto of_radius = s == 0 ? zero : load_up_to(grad_radius, i, z.lanes);
      store_up_to(grad_center, i, z.lanes, add(of_center, mul(a, g)));
      store_up_to(grad_radius, i, z.lanes, sub(of_radius, mul(abs(a), g)));
    }
  }
}

template <class T>
constexpr BatchLastBoundsKernels<T> kKernels = {relu<T>,           relu_backward<T>, relax<T>,
                                                relax_backward<T>, concretize<T>,    concretize_backward<T>};

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

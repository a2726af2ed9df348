// The inner loops of the projections onto l2 and l-infinity balls.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "projections/cpu/norm_balls_kernels.h"
#include "simd/dispatch.h"

#define PYROBUST_KERNELS "projections/cpu/norm_balls_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Loads eight elements from v + i on, or the last ones of n padded with zeros.
template <class T>
PYROBUST_TARGET inline V load_block(const T* v, int64_t i, int64_t n) {
  return n - i >= 8 ? load(v + i) : load(Tail<T>(v + i, n - i, T{}).element);
}

// Stores eight elements at z + i, or those that exist, rounded toward zero.
template <class T>
PYROBUST_TARGET inline void put_block(T* z, int64_t i, int64_t n, V a) {
  if (n - i >= 8) {
    put_truncated(z + i, a);
    return;
  }
  T last[8];
  put_truncated(last, a);
  for (int64_t l = 0; i + l < n; ++l) z[i + l] = last[l];
}

template <class T>
PYROBUST_TARGET Largest largest(const T* v, int64_t n) {
  V top = splat(0), bad = splat(0);
  for (int64_t i = 0; i < n; i += 8) {
    const V a = abs(load_block(v, i, n));
    top = max(a, top);
    bad = add(bad, sub(a, a));  // NaN where a is not finite, and from there on
  }
  return {lane_max(top), lane_sum(bad) == 0};
}

template <class T>
PYROBUST_TARGET double squares(const T* v, int64_t n, double scale) {
  const V scale8 = splat(scale);
  V total[2] = {splat(0), splat(0)};
  for (int64_t i = 0; i < n; i += 8) {
    const V a = mul(load_block(v, i, n), scale8);
    total[i / 8 % 2] = add(total[i / 8 % 2], mul(a, a));
  }
  return lane_sum(add(total[0], total[1]));
}

template <class T>
PYROBUST_TARGET void shrink(const T* v, T* z, int64_t n, double scale, double factor) {
  const V scale8 = splat(scale), factor8 = splat(factor);
  for (int64_t i = 0; i < n; i += 8) {
    const V a = load_block(v, i, n);
    put_block(z, i, n, with_sign(min(abs(mul(mul(a, scale8), factor8)), abs(a)), a));
  }
}

template <class T>
PYROBUST_TARGET void clip(const T* v, T* z, int64_t n, double radius) {
  const V radius8 = splat(radius);
  for (int64_t i = 0; i < n; i += 8) {
    const V a = load_block(v, i, n);
    put_block(z, i, n, with_sign(min(abs(a), radius8), a));
  }
}

template <class T>
constexpr NormBallKernels<T> kKernels = {largest<T>, squares<T>, shrink<T>, clip<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const NormBallKernels<T>& norm_ball_kernels() {
  if constexpr (std::is_floating_point_v<T>)
    return PYROBUST_AT_LEVEL(kKernels<T>);
  else
    return scalar::kKernels<T>;
}
template const NormBallKernels<float>& norm_ball_kernels();
template const NormBallKernels<double>& norm_ball_kernels();
template const NormBallKernels<Half>& norm_ball_kernels();
template const NormBallKernels<BFloat16>& norm_ball_kernels();

}  // namespace pyrobust::cpu

#endif

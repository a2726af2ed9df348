// The inner loops of the projections onto l2 and l-infinity balls.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "projections/cpu/norm_balls_kernels.h"
#include "simd/dispatch.h"

// Included once for each instruction set, in whose vectors it is written: V is eight float64 numbers, W sixteen float32
// ones.
#define PYROBUST_KERNELS "projections/cpu/norm_balls_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec_real.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Loads eight elements from v + i on, or the last ones of n padded with zeros.
template <class T>
PYROBUST_TARGET inline V load_block(const T* v, int64_t i, int64_t n) {
  if constexpr (std::is_same_v<T, double>)
    return load_up_to(v, i, n);
  else
    return n - i >= 8 ? load(v + i) : load(Tail<T>(v + i, n - i, T{}).element);
}

// Stores eight elements at z + i, or those that exist, rounded toward zero.
template <class T>
PYROBUST_TARGET inline void put_block(T* z, int64_t i, int64_t n, V a) {
  if constexpr (std::is_same_v<T, double>) return store_up_to(z, i, n, a);
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

// a^2 + c; products of float32 numbers are exact, so that one rounding and two give the same result.
template <class T>
PYROBUST_TARGET inline V add_square(V a, V c) {
  if constexpr (std::is_same_v<T, float>)
    return fused(a, a, c);
  else
    return add(mul(a, a), c);
}

template <class T>
PYROBUST_TARGET double plain_squares(const T* v, int64_t n) {
  V total[4] = {splat(0), splat(0), splat(0), splat(0)};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int k = 0; k < 4; ++k) total[k] = add_square<T>(load(v + i + 8 * k), total[k]);
  for (int k = 0; i < n; i += 8, ++k) total[k] = add_square<T>(load_block(v, i, n), total[k]);
  return lane_sum(add(add(total[0], total[1]), add(total[2], total[3])));
}

template <class T>
PYROBUST_TARGET void multiply(const T* v, T* z, int64_t n, Factor<T> factor) {
  if constexpr (std::is_same_v<T, float>) {
    const W factor16 = wide(factor);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) put(z + i, mul(load_wide(v + i), factor16));
    for (; i < n; ++i) z[i] = v[i] * factor;
  } else {
    const V factor8 = splat(factor);
    for (int64_t i = 0; i < n; i += 8) put_block(z, i, n, mul(load_block(v, i, n), factor8));
  }
}

template <class T>
PYROBUST_TARGET void truncate(const double* a, T* z, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) put_block(z, i, n, load_block(a, i, n));
}

// 16-bit floats by their bits, where magnitudes are in order.
template <class T>
bool clip_word(const T* v, T* z, T bound) {
  constexpr uint16_t kInfinite = std::is_same_v<T, Half> ? 0x7c00u : 0x7f80u;
  const uint16_t magnitude = v->bits & 0x7fffu;
  z->bits = static_cast<uint16_t>(std::min(magnitude, bound.bits) | (v->bits & 0x8000u));
  return magnitude < kInfinite;
}

// bound(i) is the vector of bounds from i on, last(i) that of element i.
template <class T, class Bound, class Last>
PYROBUST_TARGET inline bool clip_by(const T* v, T* z, int64_t n, const Bound& bound, const Last& last) {
  int64_t i = 0;
  bool finite = true;
  if constexpr (std::is_floating_point_v<T>) {
    constexpr int64_t count = kCount<T>;
    auto bad = broadcast(T{0});  // NaN from the first element on that is not finite
    for (; i + count <= n; i += count) {
      const auto a = load_lanes(v + i);
      bad = add(bad, sub(a, a));
      put(z + i, with_sign(min(abs(a), bound(i)), a));
    }
    T rest[count];
    put(rest, bad);
    for (T value : rest) finite = finite && value == 0;
    for (; i < n; ++i) {
      finite = finite && std::isfinite(v[i]);
      z[i] = std::copysign(std::min(std::fabs(v[i]), last(i)), v[i]);
    }
  } else {
    unsigned good = 1;
    for (; i < n; ++i) good &= static_cast<unsigned>(clip_word(v + i, z + i, last(i)));
    finite = good != 0;
  }
  return finite;
}

template <class T>
PYROBUST_TARGET bool clip(const T* v, T* z, int64_t n, T bound) {
  const auto last = [&](int64_t) { return bound; };
  if constexpr (std::is_floating_point_v<T>) {
    const auto bounds = broadcast(bound);
    return clip_by(v, z, n, [&](int64_t) PYROBUST_TARGET { return bounds; }, last);
  } else {
    return clip_by(v, z, n, 0, last);
  }
}

template <class T>
PYROBUST_TARGET bool clip_each(const T* v, T* z, int64_t n, const T* bound) {
  const auto last = [&](int64_t i) { return bound[i]; };
  if constexpr (std::is_floating_point_v<T>)
    return clip_by(v, z, n, [&](int64_t i) PYROBUST_TARGET { return load_lanes(bound + i); }, last);
  else
    return clip_by(v, z, n, 0, last);
}

// Projects sixteen rows that begin `apart` >= 4 elements apart.
PYROBUST_TARGET inline unsigned sixteen_l2(const float* v, float* z, const double* radius, int64_t n, int64_t apart) {
  W columns[kLanes];
  for_columns(apart, [&](int64_t d) PYROBUST_TARGET { load_columns(v + d, apart, columns + d); });
  V low = splat(0), high = low;
  for (int64_t d = 0; d < n; ++d) {
    low = add_square<float>(first(columns[d]), low);
    high = add_square<float>(last(columns[d]), high);
  }
  double sum[kShortRows];
  put(sum, low);
  put(sum + 8, high);
  float factor[kShortRows];
  unsigned open = 0;
  for (int row = 0; row < kShortRows; ++row) {
    factor[row] = l2_factor<float>(sum[row], radius[row], n);
    open |= static_cast<unsigned>(factor[row] < 0) << row;
  }
  const W factor16 = load_wide(factor);
  for (int64_t d = 0; d < n; ++d) columns[d] = mul(columns[d], factor16);
  for_columns(apart, [&](int64_t d) PYROBUST_TARGET { store_columns(z + d, apart, columns + d); });
  return open;
}

PYROBUST_TARGET unsigned short_l2(const float* v, float* z, const double* radius, int64_t radius_stride, int64_t n,
                                  int rows) {
  double r[kShortRows];
  for (int row = 0; row < kShortRows; ++row) r[row] = radius[(row < rows ? row : 0) * radius_stride];
  if (rows == kShortRows && n >= 4) return sixteen_l2(v, z, r, n, n);
  const int64_t apart = n < 4 ? 4 : n;
  float from[kLanes * kShortRows], to[kLanes * kShortRows];
  std::fill_n(from, apart * kShortRows, 0.0f);
  copy_rows(v, n, from, apart, n, rows);
  const unsigned open = sixteen_l2(from, to, r, n, apart);
  copy_rows(to, apart, z, n, n, rows);
  return open & ((1u << rows) - 1u);
}

template <class T>
constexpr NormBallKernels<T> kKernels = {largest<T>,  squares<T>,  shrink<T>, plain_squares<T>,
                                         multiply<T>, truncate<T>, clip<T>,   clip_each<T>};
constexpr ShortL2 kShortL2 = short_l2;

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const NormBallKernels<T>& norm_ball_kernels() {
  return PYROBUST_AT_LEVEL(kKernels<T>);
}
template const NormBallKernels<float>& norm_ball_kernels();
template const NormBallKernels<double>& norm_ball_kernels();
template const NormBallKernels<Half>& norm_ball_kernels();
template const NormBallKernels<BFloat16>& norm_ball_kernels();

ShortL2 short_l2_kernel() { return PYROBUST_AT_LEVEL(kShortL2); }

}  // namespace pyrobust::cpu

#endif

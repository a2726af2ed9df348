// The inner loops of the projection onto the l1 ball within a box.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "projections/cpu/l1_box_kernels.h"
#include "simd/dispatch.h"

// Included once for each instruction set, in whose vectors it is written: V is eight float64 numbers.
#define PYROBUST_KERNELS "projections/cpu/l1_box_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// The room of y at x, rounded to nearest, for the search.
PYROBUST_TARGET inline V room_near(V y, V x, V lower, V upper) {
  return where_less(splat(0), y, sub(upper, x), sub(x, lower));
}

// The room rounded down: the difference s and its error e, s + e exact (Knuth's TwoSum), then the number below where e
// < 0.
PYROBUST_TARGET inline V room_down(V y, V x, V lower, V upper) {
  const V zero = splat(0);
  const V p = where_less(zero, y, upper, x), q = where_less(zero, y, x, lower);
  const V s = sub(p, q);
  const V back = sub(s, p);
  const V e = sub(sub(p, sub(s, back)), add(q, back));
  return where_less(e, zero, mul(s, splat(1 - 0x1p-53)), s);
}

PYROBUST_TARGET inline V clipped(V c, V u) { return min(max(c, splat(0)), u); }

// A bit for each SIMD lane with 0 < c < u.
PYROBUST_TARGET inline unsigned free_bits(V c, V u) { return less_bits(splat(0), c) & less_bits(c, u); }

// Calls body(y, x, at, lanes) for blocks of eight elements from `at` on, the last one padded with y = 0; lanes has a bit
// for each element that exists.
template <class T, class Body>
PYROBUST_TARGET inline void for_blocks(const T* y, const T* x, int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) body(load(y + i), load(x + i), i, 0xffu);
  if (i == n) return;
  const Tail<T> y_tail(y + i, n - i, T{}), x_tail(x + i, n - i, x[i]);
  body(load(y_tail.element), load(x_tail.element), i, (1u << (n - i)) - 1u);
}

template <class T>
PYROBUST_TARGET BoxScan scan(const T* y, const T* x, int64_t n, Box box) {
  const V lower = splat(box.lower), upper = splat(box.upper), below_zero = splat(-0x1p-1074), above = splat(INFINITY);
  V top = splat(0), total = splat(0);
  int64_t free = 0, good_x = 0, good_y = 0;
  for_blocks(y, x, n, [&](V y8, V x8, [[maybe_unused]] int64_t at, unsigned lanes) PYROBUST_TARGET {
    const V a = abs(y8), u = room_near(y8, x8, lower, upper);
    top = max(a, top);
    total = add(total, min(a, u));
    free += __builtin_popcount(free_bits(a, u) & lanes);
    good_x += __builtin_popcount(less_bits(below_zero, sub(x8, lower)) & less_bits(below_zero, sub(upper, x8)) & lanes);
    good_y += __builtin_popcount(less_bits(a, above) & lanes);
  });
  return {lane_max(top), lane_sum(total), free, n - good_x, n - good_y};
}

// u for an element at its room, a - base for an element strictly between.
PYROBUST_TARGET inline V fixed_part(V d, V c, V u) {
  const V zero = splat(0);
  return where_less(c, u, where_less(zero, c, d, zero), u);
}

template <class T>
PYROBUST_TARGET BoxValue evaluate(const T* y, const T* x, int64_t n, Box box, double base, double w) {
  const V lower = splat(box.lower), upper = splat(box.upper), base8 = splat(base), w8 = splat(w);
  V fixed = splat(0);
  int64_t free = 0;
  for_blocks(y, x, n, [&](V y8, V x8, [[maybe_unused]] int64_t at, unsigned lanes) PYROBUST_TARGET {
    const V u = room_near(y8, x8, lower, upper), d = sub(abs(y8), base8), c = add(d, w8);
    fixed = add(fixed, fixed_part(d, c, u));
    free += __builtin_popcount(free_bits(c, u) & lanes);
  });
  return {lane_sum(fixed), free};
}

template <class T>
PYROBUST_TARGET BoxUndecided open(const T* y, const T* x, int64_t n, Box box, double base, double w_low, double w_high,
                                  double* a_open, double* u_open, int64_t room) {
  const V lower = splat(box.lower), upper = splat(box.upper), base8 = splat(base), zero = splat(0);
  const V low8 = splat(w_low), high8 = splat(w_high);
  V fixed = zero;
  int64_t free = 0, count = 0;
  bool overflow = false;
  for_blocks(y, x, n, [&](V y8, V x8, [[maybe_unused]] int64_t at, unsigned lanes) PYROBUST_TARGET {
    const V u = room_near(y8, x8, lower, upper), d = sub(abs(y8), base8);
    // w_low belongs to the larger theta: elements are at their room even there, below zero even at the smaller theta,
    // or between at both.
    const V c_low = add(d, low8), c_high = add(d, high8);
    const unsigned full = ~less_bits(c_low, u), gone = ~less_bits(zero, c_high);
    const unsigned linear = less_bits(zero, c_low) & less_bits(c_high, u);
    const unsigned rest = lanes & ~(full | gone | linear);
    fixed = add(fixed, where_less(c_low, u, where_less(zero, c_low, where_less(c_high, u, d, zero), zero), u));
    free += __builtin_popcount(linear & lanes);
    // No branch on `rest`: it is unpredictable.
    overflow |= count + 8 > room;
    count = overflow ? 0 : count;
    pack(u_open + count, u, rest);
    count += pack(a_open + count, d, rest);
  });
  return {{lane_sum(fixed), free}, overflow ? -1 : count};
}

PYROBUST_TARGET inline BoxValue evaluate_open(const double* a, const double* u, int64_t n, double w) {
  const V w8 = splat(w);
  V fixed8 = splat(0);
  int64_t free = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    const V d = load(a + i), c = add(d, w8), u8 = load(u + i);
    fixed8 = add(fixed8, fixed_part(d, c, u8));
    free += __builtin_popcount(free_bits(c, u8));
  }
  double fixed = lane_sum(fixed8);
  for (; i < n; ++i) {
    const double c = a[i] + w;
    fixed += c < u[i] ? (c > 0 ? a[i] : 0.0) : u[i];
    free += static_cast<int64_t>(c > 0 && c < u[i]);
  }
  return {fixed, free};
}

template <class T>
PYROBUST_TARGET double finish(const T* y, const T* x, T* z, int64_t n, Box box, double base, double w) {
  const V lower = splat(box.lower), upper = splat(box.upper), base8 = splat(base), w8 = splat(w);
  V total = splat(0);
  Truncation<T> truncated;
  for_blocks(y, x, n, [&](V y8, V x8, [[maybe_unused]] int64_t at, unsigned lanes) PYROBUST_TARGET {
    const V a = abs(y8), room = min(room_down(y8, x8, lower, upper), a);
    const V c = truncated(clipped(add(sub(a, base8), w8), room), room);
    if (lanes == 0xffu) {
      total = add(total, abs(put_truncated(z + at, with_sign(c, y8))));
      return;
    }
    T last[8];
    put_truncated(last, with_sign(c, y8));
    for (int l = 0; l < 8; ++l) {
      if (((lanes >> l) & 1u) != 0)
        z[at + l] = last[l];
      else
        last[l] = T{};
    }
    total = add(total, abs(load(last)));
  });
  return lane_sum(total);
}

template <class T>
constexpr L1BoxKernels<T> kKernels = {scan<T>, evaluate<T>, open<T>, evaluate_open, finish<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#include "projections/cpu/l1_box_float32.inl"

#include "projections/cpu/l1_box_short_rows.inl"

#else

namespace pyrobust::cpu {

template <class T>
const L1BoxKernels<T>& l1_box_kernels() {
  return PYROBUST_AT_LEVEL(kKernels<T>);
}
template const L1BoxKernels<float>& l1_box_kernels();
template const L1BoxKernels<double>& l1_box_kernels();
template const L1BoxKernels<Half>& l1_box_kernels();
template const L1BoxKernels<BFloat16>& l1_box_kernels();

const L1BoxFloat32Kernels& l1_box_float32_kernels() { return PYROBUST_AT_LEVEL(kFloat32Kernels); }

}  // namespace pyrobust::cpu

#endif

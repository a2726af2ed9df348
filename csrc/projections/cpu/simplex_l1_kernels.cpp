// The inner loops of the projections onto the simplex and the l1 ball.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "projections/cpu/simplex_l1_kernels.h"
#include "simd/dispatch.h"

// Included once for each instruction set, in whose vectors it is written: V is eight float64 numbers.
#define PYROBUST_KERNELS "projections/cpu/simplex_l1_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec.inl"

#include "projections/cpu/simplex_l1_short_rows.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

template <bool absolute>
PYROBUST_TARGET inline V magnitude(V a) {
  if constexpr (absolute)
    return abs(a);
  else
    return a;
}

template <class T, bool absolute>
PYROBUST_TARGET Scan scan(const T* v, int64_t n) {
  V top0 = splat(-INFINITY), top1 = top0, total0 = splat(0), total1 = total0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V a = magnitude<absolute>(load(v + i)), b = magnitude<absolute>(load(v + i + 8));
    top0 = max(a, top0), top1 = max(b, top1);
    total0 = add(total0, a), total1 = add(total1, b);
  }
  if (i + 8 <= n) {
    const V a = magnitude<absolute>(load(v + i));
    top0 = max(a, top0), total0 = add(total0, a);
    i += 8;
  }
  if (i < n) {
    const Tail<T> zeros(v + i, n - i, T{}), last(v + i, n - i, v[i]);
    top1 = max(magnitude<absolute>(load(last.element)), top1);
    total1 = add(total1, magnitude<absolute>(load(zeros.element)));
  }
  return {lane_max(max(top0, top1)), lane_sum(add(total0, total1))};
}

template <class T, bool absolute>
PYROBUST_TARGET Below keep(const T* v, T* kept, int64_t n, double top, double reach) {
  const V top8 = splat(top), reach8 = splat(reach), zero = splat(0);
  V total0 = zero, total1 = zero;
  int64_t count = 0, i = 0;
  for (; i + 16 <= n; i += 16) {
    const V t0 = sub(top8, magnitude<absolute>(load(v + i))), t1 = sub(top8, magnitude<absolute>(load(v + i + 8)));
    const unsigned below0 = less_bits(t0, reach8), below1 = less_bits(t1, reach8);
    total0 = add(total0, where_less(t0, reach8, t0, zero));
    total1 = add(total1, where_less(t1, reach8, t1, zero));
    // Never writes past what has been read, so v may be kept; both halves are read before either is written.
    T block[16];
    memcpy(block, v + i, sizeof(block));
    count += pack(kept + count, block, below0);
    count += pack(kept + count, block + 8, below1);
  }
  for (; i < n; i += 8) {
    const Tail<T> block(v + i, n - i, T{});
    const unsigned inside = n - i >= 8 ? 0xffu : (1u << (n - i)) - 1u;
    const V t = sub(top8, magnitude<absolute>(load(block.element)));
    const unsigned below = less_bits(t, reach8) & inside;
    double tt[8];
    put(tt, t);
    for (int l = 0; l < 8; ++l) tt[l] = ((below >> l) & 1u) != 0 ? tt[l] : 0.0;
    total0 = add(total0, load(tt));
    T packed[8];
    const int more = pack(packed, block.element, below);
    for (int l = 0; l < more; ++l) kept[count + l] = packed[l];
    count += more;
  }
  return {count, lane_sum(add(total0, total1))};
}

// reach - t of eight elements, at least 0 and (for |v|, whose threshold is not negative) at most a.
template <bool absolute>
PYROBUST_TARGET inline V shrunk(V a, V top, V reach) {
  const V z = max(sub(reach, sub(top, a)), splat(0));
  if constexpr (absolute)
    return min(z, a);
  else
    return z;
}

template <class T, bool absolute>
PYROBUST_TARGET double finish(const T* v, T* z, int64_t n, double top, double reach) {
  const V top8 = splat(top), reach8 = splat(reach), any = splat(INFINITY);
  V sum0 = splat(0), sum1 = sum0;
  Truncation<T> truncated;
  const auto rounded = [&](V value) PYROBUST_TARGET {
    const V a = magnitude<absolute>(value);
    const V shrunken = truncated(shrunk<absolute>(a, top8, reach8), absolute ? a : any);
    return absolute ? with_sign(shrunken, value) : shrunken;
  };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    // Prefetch the next row while this one is computed.
    __builtin_prefetch(v + n + i);
    __builtin_prefetch(z + n + i, 1);
    const V v0 = load(v + i), v1 = load(v + i + 8);
    const V z0 = rounded(v0), z1 = rounded(v1);
    sum0 = add(sum0, abs(put_truncated(z + i, z0)));
    sum1 = add(sum1, abs(put_truncated(z + i + 8, z1)));
  }
  for (; i < n; i += 8) {
    const Tail<T> block(v + i, n - i, absolute ? T{} : minus_infinity<T>());
    T out[8];
    put_truncated(out, rounded(load(block.element)));
    for (int64_t l = n - i < 8 ? n - i : 8; l < 8; ++l) out[l] = T{};
    sum0 = add(sum0, abs(load(out)));
    for (int64_t l = 0; l < 8 && i + l < n; ++l) z[i + l] = out[l];
  }
  return lane_sum(add(sum0, sum1));
}

constexpr int kMaxShortRounds = 64;
// Up to this many elements, sorting is cheaper than a few Newton steps.
constexpr int64_t kSortedRow = 16;

// The reach of sixteen rows, one SIMD lane each; t is [n, 16].
struct ShortReach {
  V half[2];
};

// The reach by Newton's method from the right.
PYROBUST_TARGET inline ShortReach reach_by_newton(const double* t, int64_t n, const V* radius, ShortReach reach) {
  const V zero = splat(0), one = splat(1);
  for (int round = 0; round < kMaxShortRounds; ++round) {
    V count[2] = {zero, zero}, below[2] = {zero, zero};
    for (int64_t d = 0; d < n; ++d)
      for (int h = 0; h < 2; ++h) {
        const V t8 = load(t + d * kShortRows + 8 * h);
        count[h] = add(count[h], where_less(t8, reach.half[h], one, zero));
        below[h] = add(below[h], where_less(t8, reach.half[h], t8, zero));
      }
    unsigned moved = 0;
    for (int h = 0; h < 2; ++h) {
      // Only rounding can leave the set empty: the radius itself is then an upper bound of the reach.
      const V solved = min(div(add(radius[h], below[h]), count[h]), radius[h]);
      const V next = where_less(zero, count[h], solved, radius[h]);
      moved |= less_bits(next, reach.half[h]) | less_bits(reach.half[h], next);
      reach.half[h] = next;
    }
    if (moved == 0) break;
  }
  return reach;
}

// The reach by sorting with Batcher's network (Knuth, TAOCP 3, 5.2.2, algorithm M) and the sums of the k smallest t
// (Held, Wolfe and Crowder 1974).
PYROBUST_TARGET inline ShortReach reach_by_order(double* t, int64_t n, const V* radius) {
  int64_t top = 1;
  while (2 * top < n) top *= 2;
  for (int64_t p = top; p > 0; p /= 2) {
    int64_t q = top, r = 0, apart = p;
    for (;;) {
      for (int64_t i = 0; i < n - apart; ++i) {
        if ((i & p) != r) continue;
        for (int h = 0; h < 2; ++h) {
          double *first = t + i * kShortRows + 8 * h, *second = t + (i + apart) * kShortRows + 8 * h;
          const V a = load(first), b = load(second);
          put(first, min(a, b));
          put(second, max(a, b));
        }
      }
      if (q == p) break;
      apart = q - p;
      q /= 2;
      r = p;
    }
  }
  ShortReach reach;
  for (int h = 0; h < 2; ++h) {
    V sum = radius[h], found = radius[h];
    for (int64_t k = 0; k < n; ++k) {
      const V t8 = load(t + k * kShortRows + 8 * h);
      sum = add(sum, t8);
      const V mean = div(sum, splat(static_cast<double>(k + 1)));
      found = where_less(t8, mean, mean, found);
    }
    reach.half[h] = min(found, radius[h]);
  }
  return reach;
}

// z, with v's sign and at most |v|: where t was rounded, z might otherwise be a step above it.
template <class T>
inline T signed_as(T z, T v) {
  if constexpr (std::is_floating_point_v<T>)
    return std::copysign(std::min(z, std::fabs(v)), v);
  else
    return {static_cast<uint16_t>(std::min<uint16_t>(z.bits, v.bits & 0x7fffu) | (v.bits & 0x8000u))};
}

template <class T, bool absolute>
PYROBUST_TARGET unsigned short_rows(const T* v, T* z, const double* radius, int64_t radius_stride, int64_t n,
                                    int rows) {
  if constexpr (std::is_same_v<T, float>) {
    return short_floats<absolute>(v, z, radius, radius_stride, n, rows);
  } else {
    // Lane l of half h is row 8 h + l; t and z hold one element of all rows, then the next element.
    alignas(64) double t[kShortRow * kShortRows];
    alignas(64) double r[kShortRows];
    for (int row = 0; row < kShortRows; ++row) {
      const int from = row < rows ? row : 0;
      r[row] = radius[from * radius_stride];
      for (int64_t d = 0; d < n; ++d) t[d * kShortRows + row] = to_float(v[from * n + d]);
    }
    const V zero = splat(0), one = splat(1), size = splat(static_cast<double>(n));
    V radius8[2], top[2], total[2];
    for (int h = 0; h < 2; ++h) radius8[h] = load(r + 8 * h), top[h] = splat(-INFINITY), total[h] = zero;
    for (int64_t d = 0; d < n; ++d)
      for (int h = 0; h < 2; ++h) {
        const V a = magnitude<absolute>(load(t + d * kShortRows + 8 * h));
        top[h] = max(a, top[h]);
        total[h] = add(total[h], a);
      }
    for (int64_t d = 0; d < n; ++d)
      for (int h = 0; h < 2; ++h) {
        double* at = t + d * kShortRows + 8 * h;
        put(at, sub(top[h], magnitude<absolute>(load(at))));
      }
    ShortReach reach;
    if (n <= kSortedRow) {
      alignas(64) double order[kSortedRow * kShortRows];
      memcpy(order, t, static_cast<size_t>(n) * kShortRows * sizeof(double));
      reach = reach_by_order(order, n, radius8);
    } else {
      for (int h = 0; h < 2; ++h) reach.half[h] = min(sub(top[h], div(sub(total[h], radius8[h]), size)), radius8[h]);
      reach = reach_by_newton(t, n, radius8, reach);
    }
    T z16[kShortRow * kShortRows];
    V sum[2] = {zero, zero}, lost[2] = {zero, zero};
    unsigned open = 0, inside = 0;
    for (int64_t d = 0; d < n; ++d)
      for (int h = 0; h < 2; ++h) {
        const int64_t at = d * kShortRows + 8 * h;
        const V t8 = load(t + at);
        const V exact = max(sub(reach.half[h], t8), zero), z8 = put_truncated(z16 + at, exact);
        if constexpr (std::is_same_v<T, Half>)  // rounded in the order of the row
          open |= (less_bits(zero, exact) & less_bits(exact, splat(0x1p-13))) << (8 * h);
        // The sum with its rounding errors (Knuth's TwoSum): if there are none, it is exact.
        const V next = add(sum[h], z8), back = sub(next, sum[h]);
        lost[h] = add(lost[h], abs(add(sub(sum[h], sub(next, back)), sub(z8, back))));
        sum[h] = next;
      }
    const V high = splat(1 + sum_error(n)), low = splat(1 - sum_error(n));
    for (int h = 0; h < 2; ++h) {
      const V difference = sub(total[h], total[h]);  // NaN where an element is not finite
      const unsigned finite = less_bits(difference, one) & less_bits(splat(-1), difference);
      const unsigned within =
          ~less_bits(radius8[h], mul(sum[h], high)) | (~less_bits(zero, lost[h]) & ~less_bits(radius8[h], sum[h]));
      unsigned done = within & less_bits(zero, radius8[h]) & finite;
      if constexpr (absolute) {
        const unsigned in = ~less_bits(radius8[h], mul(total[h], high)) & finite;
        done = in | (less_bits(radius8[h], mul(total[h], low)) & done);
        inside |= (in & 0xffu) << (8 * h);
      }
      open |= (~done & 0xffu) << (8 * h);
    }
    for (int row = 0; row < rows; ++row) {
      if (((open >> row) & 1u) != 0) continue;
      const T* from = v + row * n;
      T* to = z + row * n;
      if (((inside >> row) & 1u) != 0)
        for (int64_t d = 0; d < n; ++d) to[d] = from[d];
      else
        for (int64_t d = 0; d < n; ++d) {
          const T z = z16[d * kShortRows + row];
          to[d] = absolute ? signed_as(z, from[d]) : z;
        }
    }
    return open & ((1u << rows) - 1u);
  }
}

template <class T, bool absolute>
constexpr SimplexL1Kernels<T> kKernels = {scan<T, absolute>, keep<T, absolute>, finish<T, absolute>,
                                          short_rows<T, absolute>};
template <class T>
constexpr SimplexL1KernelPair<T> kPair = {kKernels<T, false>, kKernels<T, true>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#include "projections/cpu/simplex_l1_float32.inl"

#else

namespace pyrobust::cpu {

template <class T>
const SimplexL1KernelPair<T>& simplex_l1_kernels() {
  return PYROBUST_AT_LEVEL(kPair<T>);
}
template const SimplexL1KernelPair<float>& simplex_l1_kernels();
template const SimplexL1KernelPair<double>& simplex_l1_kernels();
template const SimplexL1KernelPair<Half>& simplex_l1_kernels();
template const SimplexL1KernelPair<BFloat16>& simplex_l1_kernels();

const SimplexL1Float32Kernels& simplex_l1_float32_kernels() { return PYROBUST_AT_LEVEL(kFloat32Kernels); }

}  // namespace pyrobust::cpu

#endif

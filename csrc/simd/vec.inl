// The vectors of the level being compiled, and functions over them that several kernels share.
// clang-format off
#include PYROBUST_LEVEL_HEADER(simd/vec)
// clang-format on

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

PYROBUST_TARGET inline double lane_sum(V a) {
  double l[8];
  put(l, a);
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

PYROBUST_TARGET inline double lane_max(V a) {
  double l[8], top;
  put(l, a);
  top = l[0];
  for (int i = 1; i < 8; ++i) top = l[i] > top ? l[i] : top;
  return top;
}

template <class T>
T minus_infinity() {
  if constexpr (std::is_same_v<T, BFloat16>)
    return {0xff80u};
  else if constexpr (std::is_same_v<T, Half>)
    return {0xfc00u};
  else
    return -std::numeric_limits<T>::infinity();
}

// The first n elements, at most eight, padded with `fill`.
template <class T>
struct Tail {
  T element[8];
  Tail(const T* v, int64_t n, T fill) {
    for (int64_t i = 0; i < 8; ++i) element[i] = i < n ? v[i] : fill;
  }
};

// Rounds numbers >= 0 as HalfTruncation does before they are stored; other numbers are rounded toward zero when they are.
template <class T>
struct Truncation {
  PYROBUST_TARGET V operator()(V a, [[maybe_unused]] V cap) {
    if constexpr (std::is_same_v<T, Half>) {
      const unsigned small = less_bits(splat(0), a) & less_bits(a, splat(0x1p-13));
      if (small != 0) {
        double a8[8], cap8[8];
        put(a8, a);
        put(cap8, cap);
        for (int l = 0; l < 8; ++l)
          if (((small >> l) & 1u) != 0) a8[l] = to_float(half(a8[l], cap8[l]));
        return load(a8);
      }
    }
    return a;
  }
  HalfTruncation half;
};

// Rows of 16-bit floats as float32, and back: the nearest to a, or a rounded toward `target`.
template <class T>
PYROBUST_TARGET inline void widen(const T* v, float* out, int64_t n) {
  int64_t i = 0;
  if constexpr (kHalfLanes)
    for (; i + 8 <= n; i += 8) widen_eight(v + i, out + i);
  for (; i < n; ++i) out[i] = to_float(v[i]);
}
template <class T>
PYROBUST_TARGET inline void put_nearest(T* p, const float* a, int64_t n) {
  int64_t i = 0;
  if constexpr (kHalfLanes)
    for (; i + 8 <= n; i += 8) put_nearest_eight(p + i, a + i);
  for (; i < n; ++i) p[i] = round_nearest<T>(a[i]);
}
template <class T>
PYROBUST_TARGET inline void put_toward(T* p, const float* a, const float* target, int64_t n) {
  int64_t i = 0;
  if constexpr (kHalfLanes)
    for (; i + 8 <= n; i += 8) put_toward_eight(p + i, a + i, target + i);
  for (; i < n; ++i) p[i] = round_toward<T>(a[i], target[i]);
}

// Two registers of eight float64 lanes for sixteen rows.
struct V2 {
  V half[2];
};

PYROBUST_TARGET inline V2 widen(W a) { return {{first(a), last(a)}}; }
PYROBUST_TARGET inline V2 add(V2 a, V2 b) { return {{add(a.half[0], b.half[0]), add(a.half[1], b.half[1])}}; }

// Copies rows of n elements to another distance apart, n or at least 4.
inline void copy_rows(const float* from, int64_t from_apart, float* to, int64_t to_apart, int64_t n, int rows) {
  int row = 0;
  // Four at a time where there are as many: the next row overwrites the ones too many.
  if (n < 4)
    for (; row * n + 4 <= rows * n; ++row) memcpy(to + row * to_apart, from + row * from_apart, 4 * sizeof(float));
  for (; row < rows; ++row)
    memcpy(to + row * to_apart, from + row * from_apart, static_cast<size_t>(n) * sizeof(float));
}

// Calls four(d) for columns d to d + 3 of n >= 4 columns; the last call may overlap the one before.
template <class Four>
PYROBUST_TARGET inline void for_columns(int64_t n, const Four& four) {
  for (int64_t d = 0; d + 4 <= n; d += 4) four(d);
  if (n % 4 != 0) four(n - 4);
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

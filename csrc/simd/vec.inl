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

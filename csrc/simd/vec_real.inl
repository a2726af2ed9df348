// Lanes of float32 or float64 under one name each, over the lanes that the including file chose.
#include "simd/vec.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

PYROBUST_TARGET inline W lanes_at(const float* p) { return load_wide(p); }
PYROBUST_TARGET inline V lanes_at(const double* p) { return load(p); }
PYROBUST_TARGET inline W all(float a) { return wide(a); }
PYROBUST_TARGET inline V all(double a) { return splat(a); }
template <class T>
constexpr int64_t kCount = sizeof(T) == 4 ? 16 : 8;

// Lanes i, i + 1, ... of n; zeros behind the last.
template <class T>
PYROBUST_TARGET inline auto some(const T* p, int64_t i, int64_t n) {
  if (n - i >= kCount<T>) return lanes_at(p + i);
  if constexpr (kMaskedLanes) {
    return load_some(p + i, n - i);
  } else {
    T last[kCount<T>] = {};
    for (int64_t l = 0; i + l < n; ++l) last[l] = p[i + l];
    return lanes_at(last);
  }
}

template <class T, class L>
PYROBUST_TARGET inline void put_some(T* p, int64_t i, int64_t n, L a) {
  if (n - i >= kCount<T>) return put(p + i, a);
  if constexpr (kMaskedLanes) {
    store_some(p + i, n - i, a);
  } else {
    T last[kCount<T>];
    put(last, a);
    for (int64_t l = 0; i + l < n; ++l) p[i + l] = last[l];
  }
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

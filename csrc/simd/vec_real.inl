// Vectors of float32 or float64 under one set of names, for kernels templated on the element type.
#include "simd/vec.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

PYROBUST_TARGET inline W load_lanes(const float* p) { return load_wide(p); }
PYROBUST_TARGET inline V load_lanes(const double* p) { return load(p); }
PYROBUST_TARGET inline W broadcast(float a) { return wide(a); }
PYROBUST_TARGET inline V broadcast(double a) { return splat(a); }
template <class T>
constexpr int64_t kCount = sizeof(T) == 4 ? 16 : 8;

// Loads elements i, i + 1, ... of n, padded with zeros.
template <class T>
PYROBUST_TARGET inline auto load_up_to(const T* p, int64_t i, int64_t n) {
  if (n - i >= kCount<T>) return load_lanes(p + i);
  if constexpr (kMaskedLanes) {
    return load_first(p + i, n - i);
  } else {
    T last[kCount<T>] = {};
    for (int64_t l = 0; i + l < n; ++l) last[l] = p[i + l];
    return load_lanes(last);
  }
}

template <class T, class L>
PYROBUST_TARGET inline void store_up_to(T* p, int64_t i, int64_t n, L a) {
  if (n - i >= kCount<T>) return put(p + i, a);
  if constexpr (kMaskedLanes) {
    store_first(p + i, n - i, a);
  } else {
    T last[kCount<T>];
    put(last, a);
    for (int64_t l = 0; i + l < n; ++l) p[i + l] = last[l];
  }
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

// The inner loops of crown_leaves.h, over the lanes that the including file chose.

namespace pyrobust::cpu {
namespace {

// kLanes numbers of T.
template <class T>
struct Wide;
template <>
struct Wide<float> {
  using Type = W;
  static constexpr int64_t kCount = 16;
};
template <>
struct Wide<double> {
  using Type = V;
  static constexpr int64_t kCount = 8;
};
PYROBUST_TARGET inline W lanes_of(const float* p) { return load_wide(p); }
PYROBUST_TARGET inline V lanes_of(const double* p) { return load(p); }
PYROBUST_TARGET inline W same(float a) { return wide(a); }
PYROBUST_TARGET inline V same(double a) { return splat(a); }

// sum[lane] += a[lane]
PYROBUST_TARGET inline void flush(W a, double* sum) {
  float l[16];
  put(l, a);
  put(sum, add(load(sum), load(l)));
  put(sum + 8, add(load(sum + 8), load(l + 8)));
}
PYROBUST_TARGET inline void flush(V a, double* sum) { put(sum, add(load(sum), a)); }

// J of the panel's kWidth outputs.
template <class T, int64_t J, int64_t kWidth = J>
PYROBUST_TARGET void multiply_panel(const Segment<T>* segments, int64_t count, const T* w, T* out, int64_t stride,
                                    bool add_to) {
  using L = typename Wide<T>::Type;
  constexpr bool kTwoChains = J * kRegisters <= 4;  // so few sums would wait for each other
  L sum[J], other[J];
  int64_t left = kBlock;
  bool fresh = true;
  for (int64_t s = 0; s < count; ++s) {
    const Tap* tap = segments[s].taps;
    const Tap* const end = tap + segments[s].count;
    const T* const base = segments[s].base;
    const T* const weights = w + segments[s].first_tap * kWidth;
    while (tap < end) {
      if (fresh) {
        for (int64_t j = 0; j < J; ++j) sum[j] = other[j] = same(T(0));
        fresh = false;
      }
      const Tap* const stop = tap + (end - tap < left ? end - tap : left);
      left -= stop - tap;
      if constexpr (kTwoChains) {
        for (; tap + 2 <= stop; tap += 2) {
          const L a = lanes_of(base + tap[0].offset), b = lanes_of(base + tap[1].offset);
          const T *wa = weights + tap[0].tap * kWidth, *wb = weights + tap[1].tap * kWidth;
          for (int64_t j = 0; j < J; ++j) {
            sum[j] = fused(a, same(wa[j]), sum[j]);
            other[j] = fused(b, same(wb[j]), other[j]);
          }
        }
      }
      for (; tap < stop; ++tap) {
        const L a = lanes_of(base + tap->offset);
        const T* const wa = weights + tap->tap * kWidth;
        for (int64_t j = 0; j < J; ++j) sum[j] = fused(a, same(wa[j]), sum[j]);
      }
      if (left == 0) {
        for (int64_t j = 0; j < J; ++j) {
          L total = kTwoChains ? add(sum[j], other[j]) : sum[j];
          if (add_to) total = add(lanes_of(out + j * stride), total);
          put(out + j * stride, total);
        }
        left = kBlock, fresh = add_to = true;
      }
    }
  }
  if (fresh && add_to) return;
  for (int64_t j = 0; j < J; ++j) {
    L total = same(T(0));
    if (!fresh) total = kTwoChains ? add(sum[j], other[j]) : sum[j];
    if (add_to) total = add(lanes_of(out + j * stride), total);
    put(out + j * stride, total);
  }
}

template <class T>
PYROBUST_TARGET void multiply(const Segment<T>* segments, int64_t count, const T* w, int64_t width, T* out,
                              int64_t stride, bool add_to) {
  switch (width) {
    case 8:
      if constexpr (kRegisters == 1) return multiply_panel<T, 8>(segments, count, w, out, stride, add_to);
      // eight sums would not fit sixteen registers
      multiply_panel<T, 4, 8>(segments, count, w, out, stride, add_to);
      return multiply_panel<T, 4, 8>(segments, count, w + 4, out + 4 * stride, stride, add_to);
    case 7:
      return multiply_panel<T, 7>(segments, count, w, out, stride, add_to);
    case 6:
      return multiply_panel<T, 6>(segments, count, w, out, stride, add_to);
    case 5:
      return multiply_panel<T, 5>(segments, count, w, out, stride, add_to);
    case 4:
      return multiply_panel<T, 4>(segments, count, w, out, stride, add_to);
    case 3:
      return multiply_panel<T, 3>(segments, count, w, out, stride, add_to);
    case 2:
      return multiply_panel<T, 2>(segments, count, w, out, stride, add_to);
    default:
      return multiply_panel<T, 1>(segments, count, w, out, stride, add_to);
  }
}

// A comparison with NaN is false, so that NaN stays NaN: max(a, 0) would lose it.
template <class T>
PYROBUST_TARGET void relax(T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* lower_intercept,
                           const T* upper_intercept, double* bias) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kCount = Wide<T>::kCount;
  const L zero = same(T(0));
  for (int64_t i = 0; i < n;) {
    L sum = zero;
    const int64_t stop = n - i < kBlock ? n : i + kBlock;
    for (; i < stop; ++i) {
      const L c = lanes_of(a + i * kCount);
      put(a + i * kCount, mul(c, where_less(c, zero, same(upper_slope[i]), same(lower_slope[i]))));
      sum = fused(c, where_less(c, zero, same(upper_intercept[i]), same(lower_intercept[i])), sum);
    }
    flush(sum, bias);
  }
}

template <class T>
PYROBUST_TARGET void dot(const T* a, int64_t n, const T* low, const T* high, double* total) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kCount = Wide<T>::kCount;
  const L zero = same(T(0));
  for (int64_t i = 0; i < n;) {
    L sum = zero;
    const int64_t stop = n - i < kBlock ? n : i + kBlock;
    for (; i < stop; ++i) {
      const L c = lanes_of(a + i * kCount);
      sum = fused(c, where_less(c, zero, same(high[i]), same(low[i])), sum);
    }
    flush(sum, total);
  }
}

template <class T>
PYROBUST_TARGET void scale(const T* a, int64_t n, const T* s, int64_t stride, T* out, bool add_to) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kCount = Wide<T>::kCount;
  for (int64_t i = 0; i < n; ++i) {
    L c = mul(lanes_of(a + i * kCount), same(s[i * stride]));
    if (add_to) c = add(lanes_of(out + i * kCount), c);
    put(out + i * kCount, c);
  }
}

template <class T>
PYROBUST_TARGET void lengths(const T* a, int64_t n, double* squares, double* largest) {
  constexpr int64_t kCount = Wide<T>::kCount;
  for (int64_t half = 0; half < kCount; half += 8) {
    V sum = load(squares + half), top = load(largest + half);
    for (int64_t i = 0; i < n; ++i) {
      const V c = abs(load(a + i * kCount + half));
      sum = add(sum, mul(c, c));
      top = where_less(c, top, top, c);
    }
    put(squares + half, sum);
    put(largest + half, top);
  }
}

template <class T>
constexpr CrownLeaves<T> kCrown = {multiply<T>, relax<T>, dot<T>, scale<T>, lengths<T>};

}  // namespace
}  // namespace pyrobust::cpu

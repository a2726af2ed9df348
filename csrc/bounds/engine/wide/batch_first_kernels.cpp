// The inner loops used in addition to library products.
#include "bounds/engine/wide/batch_first_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "simd/dispatch.h"

// Included once for each instruction set, in whose vectors it is written: V is eight float64 numbers.
#define PYROBUST_KERNELS "bounds/engine/wide/batch_first_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Rounding from float64 to T; zero stays zero. With sound = false, to nearest.
template <class T>
struct Directed {
  V step, tiny;
  explicit PYROBUST_TARGET Directed(bool sound)
      : step(splat(!sound                        ? 0
                   : sizeof(T) == sizeof(double) ? 0x1p-50
                                                 : 0x1p-23 + 0x1p-50)),
        tiny(splat(!sound                        ? 0
                   : sizeof(T) == sizeof(double) ? 0x1p-1074
                                                 : 0x1p-149)) {}
  // More than half a step of T at a, and the rounding errors of a few operations in float64.
  PYROBUST_TARGET V beyond(V a) const {
    const V size = abs(a), none = splat(0);
    return where_less(none, size, fused(size, step, tiny), mul(size, none));
  }
  PYROBUST_TARGET void put_down(T* p, V a) const { put_nearest(p, sub(a, beyond(a))); }
  PYROBUST_TARGET void put_up(T* p, V a) const { put_nearest(p, add(a, beyond(a))); }
};

// Eight elements of n from i on, padded with zeros; null stays null.
template <class E>
struct Eight {
  E copy[8];
  const E* at;
  Eight(const E* p, int64_t i, int64_t n) : at(p == nullptr ? nullptr : p + i) {
    if (p == nullptr || i + 8 <= n) return;
    for (int64_t j = 0; j < 8; ++j) copy[j] = i + j < n ? p[i + j] : E(0);
    at = copy;
  }
};

// Where eight results go: to the array itself or, at its end, to a copy of which the first elements are kept.
template <class T>
class Target {
 public:
  Target(T* p, int64_t i, int64_t n) : out_(p == nullptr ? nullptr : p + i), count_(n - i < 8 ? n - i : 8) {}
  ~Target() {
    if (out_ != nullptr && count_ < 8) std::memcpy(out_, copy_, static_cast<size_t>(count_) * sizeof(T));
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  T* get() { return count_ < 8 ? copy_ : out_; }

 private:
  T* out_;
  int64_t count_;
  T copy_[8];
};

// The ends in float64 are within a step of it, which Directed covers.
template <class T>
PYROBUST_TARGET void around(const float* x, int64_t n, double reach, double low, double high, bool sound, T* lower,
                            T* upper) {
  const Directed<T> directed(sound && reach != 0);
  const V r = splat(reach), first = splat(low), last = splat(high);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight<float> x8(x, i, n);
    Target<T> low8(lower, i, n), high8(upper, i, n);
    const V c = load(x8.at);
    // The ends of the clip range are float64 numbers: rounded to T, they may lie inside it.
    const V l = max(sub(c, r), first), u = min(add(c, r), last);
    directed.put_down(low8.get(), l);
    directed.put_up(high8.get(), u);
  }
}

template <class T>
class Spread {
 public:
  PYROBUST_TARGET Spread(double share, double more, bool sound)
      : directed_(sound), half_(splat(0.5)), share_(splat(share)), more_(splat(more)) {}

  // The eight ranges [l, u] from i on.
  PYROBUST_TARGET void put(V l, V u, int64_t i, int64_t n, T* center, T* radius, T* magnitude) const {
    Target<T> c8(center, i, n), r8(radius, i, n);
    put_nearest(c8.get(), add(mul(l, half_), mul(u, half_)));
    const V c = load(c8.get());
    const V r = max(sub(u, c), sub(c, l));
    // Twice the share covers the rounding of the three operations.
    directed_.put_up(r8.get(), add(r, mul(share_, add(add(abs(c), r), more_))));
    if (magnitude == nullptr) return;
    Target<T> m8(magnitude, i, n);
    directed_.put_up(m8.get(), add(max(max(abs(l), abs(u)), abs(c)), more_));
  }

 private:
  Directed<T> directed_;
  V half_, share_, more_;
};

template <class T>
PYROBUST_TARGET void spread(const T* lower, const T* upper, int64_t n, double share, double more, bool sound, T* center,
                            T* radius, T* magnitude) {
  const Spread<T> to(share, more, sound);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight<T> l8(lower, i, n), u8(upper, i, n);
    to.put(load(l8.at), load(u8.at), i, n, center, radius, magnitude);
  }
}

template <class T>
PYROBUST_TARGET void spread_around(const float* x, int64_t n, double reach, double low, double high, double share,
                                   double more, bool sound, T* center, T* radius, T* magnitude) {
  const Spread<T> to(share, more, sound);
  const Directed<double> directed(sound && reach != 0);
  const V r = splat(reach), first = splat(low), last = splat(high);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight<float> x8(x, i, n);
    const V c = load(x8.at), l = sub(c, r), u = add(c, r);
    to.put(max(sub(l, directed.beyond(l)), first), min(add(u, directed.beyond(u)), last), i, n, center, radius,
           magnitude);
  }
}

template <class T>
PYROBUST_TARGET void range(const T* center, const T* radius, const T* magnitude, const double* bias, int64_t n,
                           const RangeCosts& costs, T* lower, T* upper, T* sum) {
  const Directed<T> directed(costs.sound);
  const V more = splat(costs.more), tiny = splat(costs.tiny), cost = splat(costs.sum);
  // Outward::rounding_error: all terms are positive, so a share of their sum bounds the rounding error.
  const V share = splat(costs.sound ? 0x1p-49 : 0);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight<T> c8(center, i, n), r8(radius, i, n), m8(magnitude, i, n);
    const Eight<double> b8(bias, i, n);
    const V c = load(c8.at), offset = load(b8.at), size = abs(offset);
    V error = add(mul(load(r8.at), more), add(tiny, add(splat(costs.constant), mul(splat(costs.bias), size))));
    if (magnitude != nullptr) {
      const V m = add(mul(load(m8.at), more), tiny);
      error = add(error, mul(cost, m));
      Target<T> s8(sum, i, n);
      directed.put_up(s8.get(), m);
    }
    error = add(error, mul(share, add(error, add(abs(c), size))));
    const V middle = add(c, offset);
    Target<T> low8(lower, i, n), high8(upper, i, n);
    directed.put_down(low8.get(), sub(middle, error));
    directed.put_up(high8.get(), add(middle, error));
  }
}

template <class T>
PYROBUST_TARGET void scale(const T* lower, const T* upper, int64_t n, const T* scale, const double* shift,
                           const double* scale_error, const double* shift_error, const double* shift_excess,
                           const ScaleCosts& costs, T* lower_out, T* upper_out, T* sum) {
  const Directed<T> directed(costs.sound);
  const V share = splat(costs.share), flushed = splat(costs.flushed), none = splat(0);
  const V rounding = splat(costs.sound ? 0x1p-49 : 0), smallest = splat(costs.sound ? 0x1p-1070 : 0);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight<T> l8(lower, i, n), u8(upper, i, n), s8(scale, i, n);
    const Eight<double> t8(shift, i, n), se8(scale_error, i, n), te8(shift_error, i, n);
    const V l = load(l8.at), u = load(u8.at), s = load(s8.at), t = load(t8.at);
    const V m = max(abs(l), abs(u)), sized = mul(abs(s), m);
    const V first = mul(s, where_less(s, none, u, l)), second = mul(s, where_less(s, none, l, u));
    V error = none;
    if (costs.sound) {
      error = add(mul(load(se8.at), m), load(te8.at));
      error = add(error, mul(share, add(add(sized, abs(t)), add(flushed, mul(flushed, abs(s))))));
      if (shift_excess != nullptr) error = add(error, mul(share, load(Eight<double>(shift_excess, i, n).at)));
      // Zero where everything is zero: a zero scale of an exact range.
      const V total = add(error, add(sized, abs(t)));
      error = add(error, where_less(none, total, fused(total, rounding, smallest), mul(total, none)));
    }
    Target<T> low8(lower_out, i, n), high8(upper_out, i, n);
    directed.put_down(low8.get(), sub(add(first, t), error));
    directed.put_up(high8.get(), add(add(second, t), error));
    if (sum == nullptr) continue;
    Target<T> sum8(sum, i, n);
    directed.put_up(sum8.get(), add(sized, mul(sized, rounding)));
  }
}

template <class T>
PYROBUST_TARGET void add_term(const T* lower, const T* upper, int64_t n, double sign, bool sound, T* lower_out,
                              T* upper_out, T* sum) {
  const Directed<T> directed(sound);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight<T> l8(lower, i, n), u8(upper, i, n), a8(lower_out, i, n), b8(upper_out, i, n), m8(sum, i, n);
    const V l = load(l8.at), u = load(u8.at);
    Target<T> low8(lower_out, i, n), high8(upper_out, i, n);
    const V a = load(a8.at), b = load(b8.at);
    directed.put_down(low8.get(), sign > 0 ? add(a, l) : sub(a, u));
    directed.put_up(high8.get(), sign > 0 ? add(b, u) : sub(b, l));
    if (sum == nullptr) continue;
    Target<T> sum8(sum, i, n);
    directed.put_up(sum8.get(), add(load(m8.at), max(abs(l), abs(u))));
  }
}

template <class T>
PYROBUST_TARGET void relu(const T* lower, const T* upper, int64_t n, T* lower_out, T* upper_out) {
  for (int64_t i = 0; i < n; ++i) {
    lower_out[i] = lower[i] > 0 ? lower[i] : T(0);
    upper_out[i] = upper[i] > 0 ? upper[i] : T(0);
  }
}

template <class T>
PYROBUST_TARGET void check(int64_t n, double share, double flushed, double largest, const T* sum, T* lower, T* upper) {
  const Directed<T> directed(share > 0);
  const T most = static_cast<T>(largest), all = std::numeric_limits<T>::infinity();
  for (int64_t i = 0; share > 0 && i < n; i += 8) {
    const Eight<T> l8(lower, i, n), u8(upper, i, n);
    const V l = load(l8.at), u = load(u8.at);
    const V error = mul(splat(share), add(max(abs(l), abs(u)), splat(flushed)));
    Target<T> low8(lower, i, n), high8(upper, i, n);
    directed.put_down(low8.get(), sub(l, error));
    directed.put_up(high8.get(), add(u, error));
  }
  // Comparisons with NaN are false.
  for (int64_t i = 0; i < n; ++i) {
    const bool known = (lower[i] <= upper[i]) & (lower[i] >= -most) & (upper[i] <= most);
    lower[i] = known ? lower[i] : -all;
    upper[i] = known ? upper[i] : all;
  }
  for (int64_t i = 0; sum != nullptr && largest < all && i < n; ++i)
    if (!(sum[i] <= most)) lower[i] = -all, upper[i] = all;
}

// sum + a times low where a >= 0 and high where a < 0, for eight elements.
template <class T>
PYROBUST_TARGET V dot_eight(const T* a, const T* low, const T* high, V sum) {
  const V c = load(a);
  return fused(c, where_less(c, splat(0), load(high), load(low)), sum);
}

// A comparison with NaN is false, so that NaN stays NaN.
template <class T>
PYROBUST_TARGET void scale_eight(const T* a, const T* low, const T* high, T* out) {
  const V c = load(a);
  put_nearest(out, mul(c, where_less(c, splat(0), load(high), load(low))));
}

template <class T>
PYROBUST_TARGET double relax_row(T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* lower_intercept,
                                 const T* upper_intercept) {
  V even = splat(0), odd = even;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    even = dot_eight(a + i, lower_intercept + i, upper_intercept + i, even);
    odd = dot_eight(a + i + 8, lower_intercept + i + 8, upper_intercept + i + 8, odd);
    scale_eight(a + i, lower_slope + i, upper_slope + i, a + i);
    scale_eight(a + i + 8, lower_slope + i + 8, upper_slope + i + 8, a + i + 8);
  }
  for (; i < n; i += 8) {
    const Eight<T> a8(a, i, n), l8(lower_intercept, i, n), h8(upper_intercept, i, n);
    even = dot_eight(a8.at, l8.at, h8.at, even);
    Target<T> out(a, i, n);
    scale_eight(a8.at, Eight<T>(lower_slope, i, n).at, Eight<T>(upper_slope, i, n).at, out.get());
  }
  return lane_sum(add(even, odd));
}

template <class T>
PYROBUST_TARGET double dot_row(const T* a, int64_t n, const T* low, const T* high) {
  V sums[4] = {splat(0), splat(0), splat(0), splat(0)};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int j = 0; j < 4; ++j) sums[j] = dot_eight(a + i + 8 * j, low + i + 8 * j, high + i + 8 * j, sums[j]);
  for (; i < n; i += 8) {
    const Eight<T> a8(a, i, n), l8(low, i, n), h8(high, i, n);
    sums[0] = dot_eight(a8.at, l8.at, h8.at, sums[0]);
  }
  return lane_sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

template <class T>
PYROBUST_TARGET void scale_row(const T* a, int64_t n, const T* s, T sign, bool add_to, T* out) {
  if (s == nullptr && add_to)
    for (int64_t i = 0; i < n; ++i) out[i] += sign * a[i];
  else if (s == nullptr)
    for (int64_t i = 0; i < n; ++i) out[i] = sign * a[i];
  else if (add_to)
    for (int64_t i = 0; i < n; ++i) out[i] += sign * (a[i] * s[i]);
  else
    for (int64_t i = 0; i < n; ++i) out[i] = sign * (a[i] * s[i]);
}

template <class T>
constexpr BatchFirstKernels<T> kBatchFirst = {around<T>,    spread<T>,   spread_around<T>, range<T>,
                                              scale<T>,     add_term<T>, relu<T>,          check<T>,
                                              relax_row<T>, dot_row<T>,  scale_row<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const BatchFirstKernels<T>& batch_first_kernels() {
  return PYROBUST_AT_LEVEL(kBatchFirst<T>);
}
template const BatchFirstKernels<float>& batch_first_kernels();
template const BatchFirstKernels<double>& batch_first_kernels();

}  // namespace pyrobust::cpu

#endif

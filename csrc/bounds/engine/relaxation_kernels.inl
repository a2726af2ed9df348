// Linear relaxations and rounding errors of many neurons at once: the vector form of relaxation.cpp.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Outward::rounding_error, down_to and up_to on SIMD lanes.
template <class T>
struct Steps {
  V relative, smallest, step, tiny;
  explicit PYROBUST_TARGET Steps(bool sound)
      : relative(splat(sound ? 0x1p-49 : 0)),
        smallest(splat(sound && sizeof(T) == sizeof(double) ? 0x1p-1074 : 0)),
        step(splat(sound && sizeof(T) == sizeof(float) ? 0x1p-23 : 0)),
        tiny(splat(sound && sizeof(T) == sizeof(float) ? 0x1p-149 : 0)) {}
  PYROBUST_TARGET V rounding_error(V size) const { return fused(size, relative, smallest); }
  // Zero at zero.
  PYROBUST_TARGET V beyond(V a) const {
    const V size = abs(a), none = splat(0);
    return where_less(none, size, fused(size, step, tiny), mul(size, none));
  }
};

template <class T>
PYROBUST_TARGET inline void put_pair(const Steps<T>& steps, V share, V low, V high, T* low_out, T* high_out) {
  const V below = abs(low), above = abs(high);
  low = sub(low, fused(share, below, steps.rounding_error(below)));
  high = add(high, fused(share, above, steps.rounding_error(above)));
  put_nearest(low_out, sub(low, steps.beyond(low)));
  put_nearest(high_out, add(high, steps.beyond(high)));
}

// The bias minus and plus the error.
struct LowHigh {
  V low, high;
};
template <class T>
PYROBUST_TARGET inline LowHigh errors(const Steps<T>& steps, const StepCosts& costs, V sum, V bias, V known) {
  const V size = abs(bias);
  V error = fused(splat(costs.sum), sum, fused(splat(costs.bias), size, add(splat(costs.flushed), known)));
  error = add(error, steps.rounding_error(add(error, size)));
  return {sub(bias, error), add(bias, error)};
}

// Eight of n elements from i on, padded with zeros.
struct Eight {
  double copy[8];
  const double* at;
  Eight(const double* p, int64_t i, int64_t n) : at(p + i) {
    if (i + 8 <= n) return;
    for (int64_t j = 0; j < 8; ++j) copy[j] = i + j < n ? p[i + j] : 0;
    at = copy;
  }
};
template <class T>
inline void copy_out(const T* eight, T* out, int64_t i, int64_t n) {
  for (int64_t j = 0; j < 8 && i + j < n; ++j) out[i + j] = eight[j];
}

template <class T>
PYROBUST_TARGET void pairs(const double* low, const double* high, const double* origin, int64_t n, double share,
                           bool sound, T* low_out, T* high_out) {
  const Steps<T> steps(sound);
  const V share8 = splat(share);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight l(low, i, n), h(high, i, n);
    T a[8], b[8];
    V c = splat(0);
    if (origin != nullptr) c = load(Eight(origin, i, n).at);
    put_pair<T>(steps, share8, sub(load(l.at), c), sub(load(h.at), c), a, b);
    copy_out(a, low_out, i, n), copy_out(b, high_out, i, n);
  }
}

template <class T>
PYROBUST_TARGET void affine_pairs(const double* sum, const double* bias, const double* known, int64_t n,
                                  const StepCosts& costs, T* low_out, T* high_out) {
  const Steps<T> steps(costs.sound);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight s(sum, i, n), b(bias, i, n), e(known == nullptr ? bias : known, i, n);
    const LowHigh pair = errors(steps, costs, load(s.at), load(b.at), known == nullptr ? splat(0) : load(e.at));
    T low[8], high[8];
    put_pair<T>(steps, splat(costs.share), pair.low, pair.high, low, high);
    copy_out(low, low_out, i, n), copy_out(high, high_out, i, n);
  }
}

template <class T>
PYROBUST_TARGET void relu_relaxation(const double* lower, const double* upper, const double* origin,
                                     const double* own_origin, const double* sum, const double* bias,
                                     const double* known, int64_t n, const StepCosts& costs, T* lower_slope,
                                     T* upper_slope, T* lower_intercept, T* upper_intercept, uint8_t* alive) {
  const Steps<T> steps(costs.sound);
  const V none = splat(0), one = splat(1);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight lower8(lower, i, n), upper8(upper, i, n);
    const V l = load(lower8.at), u = load(upper8.at);
    // The chord's slope as rounded to T, in [0, 1]; 0 / 0 at a dead neuron is not used.
    T chord[8];
    put_nearest(chord, min(max(div(u, sub(u, l)), none), one));
    const V slope = load(chord);
    V high = max(mul(sub(none, slope), l), mul(sub(one, slope), u));
    // Both are 1 where l >= 0 and 0 where u <= 0.
    V s = where_less(sub(none, l), u, one, none), t = slope;
    const V dead = where_less(none, u, one, none), active = where_less(l, none, none, one);
    s = where_less(none, active, one, s), t = where_less(none, active, one, t);
    high = where_less(none, active, none, high);
    V low = none, m = max(abs(l), abs(u)), low_size = none, high_size = high;
    if (origin != nullptr) {
      const Eight origin8(origin, i, n), own8(own_origin, i, n);
      const V c = load(origin8.at), own = load(own8.at), lowest = mul(s, c), highest = mul(t, c);
      m = max(sub(u, c), sub(c, l));
      low = sub(lowest, own), low_size = add(abs(lowest), abs(own));
      high_size = add(high_size, add(abs(highest), abs(own)));
      high = add(high, sub(highest, own));
    }
    if (sum != nullptr) {
      const Eight sum8(sum, i, n), bias8(bias, i, n), known8(known == nullptr ? bias : known, i, n);
      const LowHigh pair =
          errors(steps, costs, load(sum8.at), load(bias8.at), known == nullptr ? none : load(known8.at));
      const V size = max(abs(pair.low), abs(pair.high));
      low = fused(s, pair.low, low), high = fused(t, pair.high, high);
      low_size = fused(s, size, low_size), high_size = fused(t, size, high_size);
      m = add(m, size);
    }
    const V low_cost = mul(mul(s, splat(costs.added)), m);
    const V high_cost = mul(mul(t, where_less(none, active, splat(costs.added), splat(costs.multiplied))), m);
    low = sub(low, add(low_cost, steps.rounding_error(add(low_size, low_cost))));
    high = add(high, add(high_cost, steps.rounding_error(add(high_size, high_cost))));
    // A dead neuron's are zero.
    const auto kept = [&](V a) PYROBUST_TARGET { return where_less(none, dead, a, none); };
    T s8[8], t8[8], low8[8], high8[8];
    put_nearest(s8, kept(s)), put_nearest(t8, kept(t));
    put_pair<T>(steps, splat(costs.share), kept(low), kept(high), low8, high8);
    copy_out(s8, lower_slope, i, n), copy_out(t8, upper_slope, i, n);
    copy_out(low8, lower_intercept, i, n), copy_out(high8, upper_intercept, i, n);
    const unsigned live = less_bits(none, dead);
    for (int64_t j = 0; j < 8 && i + j < n; ++j) alive[i + j] = static_cast<uint8_t>((live >> j) & 1u);
  }
}

PYROBUST_TARGET double total_distance(const double* lower, const double* upper, const double* origin, int64_t n) {
  V sum = splat(0);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight l(lower, i, n), u(upper, i, n);
    V c = splat(0);
    if (origin != nullptr) c = load(Eight(origin, i, n).at);
    sum = add(sum, add(abs(sub(load(u.at), c)), abs(sub(c, load(l.at)))));  // NaN and infinities stay
  }
  return lane_sum(sum);
}

PYROBUST_TARGET double total(const double* a, const double* b, int64_t n) {
  V sum = splat(0);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight a8(a, i, n), b8(b, i, n);
    sum = add(sum, add(load(a8.at), abs(load(b8.at))));
  }
  return lane_sum(sum);
}

template <class T>
constexpr RelaxationKernels<T> kRelaxationKernels = {pairs<T>, affine_pairs<T>, total_distance, total,
                                                     relu_relaxation<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

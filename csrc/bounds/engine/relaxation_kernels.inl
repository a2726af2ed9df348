// Linear relaxations and rounding errors of many neurons at once: the vector form of relaxation.cpp.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Outward::rounding_error, down_to and up_to on SIMD lanes.
template <class T>
struct Steps {
  V relative, smallest, step, tiny;
  V down, least;  // of float64
  explicit PYROBUST_TARGET Steps(bool sound)
      : relative(splat(sound ? 0x1p-49 : 0)),
        smallest(splat(sound && sizeof(T) == sizeof(double) ? 0x1p-1074 : 0)),
        step(splat(sound && sizeof(T) == sizeof(float) ? 0x1p-23 : 0)),
        tiny(splat(sound && sizeof(T) == sizeof(float) ? 0x1p-149 : 0)),
        down(splat(sound ? 0x1p-52 : 0)),
        least(splat(sound ? 0x1p-1074 : 0)) {}
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

struct Factors8 {
  V a, b, c, d;
  PYROBUST_TARGET Factors8(const Factors& from, int64_t i, int64_t n)
      : a(load(Eight(from.a, i, n).at)),
        b(load(Eight(from.b, i, n).at)),
        c(load(Eight(from.c, i, n).at)),
        d(load(Eight(from.d, i, n).at)) {}
};

template <class T>
PYROBUST_TARGET void product_ranges(const Factors& factors, int64_t n, bool sound, double* lower, double* upper) {
  const Steps<T> steps(sound);
  const V none = splat(0), infinity = splat(INFINITY);
  for (int64_t i = 0; i < n; i += 8) {
    const Factors8 f(factors, i, n);
    V low = infinity, high = sub(none, infinity), undefined = none;
    for (const V x : {f.a, f.b})
      for (const V y : {f.c, f.d}) {
        const V value = mul(x, y);
        // the product with zero is exact
        const V error = where_less(none, min(abs(x), abs(y)), add(mul(abs(value), steps.down), steps.least), none);
        low = min(sub(value, error), low), high = max(add(value, error), high);
        undefined = add(undefined, mul(none, value));
      }
    double low8[8], high8[8];
    put(low8, add(low, undefined)), put(high8, add(high, undefined));
    copy_out(low8, lower, i, n), copy_out(high8, upper, i, n);
  }
}

struct Plane8 {
  V p, q, c;
};

// Slopes as they are rounded to T.
template <class T>
PYROBUST_TARGET inline V rounded(V slope) {
  if constexpr (sizeof(T) == sizeof(double)) return slope;
  T nearest[8];
  put_nearest(nearest, slope);
  return load(nearest);
}

// Planes below x y: of those that are tried, the one with the largest minimum on the box.
template <class T>
PYROBUST_TARGET inline Plane8 plane_below(const Steps<T>& steps, V a, V b, V c, V d) {
  const V none = splat(0), infinity = splat(INFINITY), x[2] = {a, b}, y[2] = {c, d};
  V products[2][2];
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) products[i][j] = mul(x[i], y[j]);
  const V wide = sub(b, a), high = sub(d, c);
  // the shares of the ranges below zero
  const auto level = [&](V low, V span) PYROBUST_TARGET { return min(max(div(sub(none, low), span), none), splat(1)); };
  const V shares[5] = {splat(0.5), level(a, wide), level(c, high), none, splat(1)};
  Plane8 best{none, none, sub(none, infinity)};
  V most = best.c;
  for (const V share : shares) {
    const V p = rounded<T>(add(c, mul(share, high))), q = rounded<T>(add(a, mul(share, wide)));
    const V of_x[2] = {mul(p, a), mul(p, b)}, of_y[2] = {mul(q, c), mul(q, d)};
    // x y - p x - q y is bilinear: it is smallest in a corner, for the slopes as they were rounded.
    V constant = infinity, sum = none;
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 2; ++j) {
        const V size = add(add(abs(products[i][j]), abs(of_x[i])), abs(of_y[j]));
        const V exact = sub(sub(products[i][j], of_x[i]), of_y[j]);
        const V less = sub(exact, add(mul(size, steps.relative), steps.least));
        const V excess = sub(less, add(mul(abs(less), steps.down), steps.least));
        constant = min(constant, excess), sum = add(sum, excess);
      }
    // NaN, and so not chosen, where a corner's is not finite
    const V bound = add(add(min(of_x[0], of_x[1]), min(of_y[0], of_y[1])), constant);
    const V least = add(bound, mul(none, sum));
    best.p = where_less(most, least, p, best.p), best.q = where_less(most, least, q, best.q);
    best.c = where_less(most, least, constant, best.c), most = where_less(most, least, least, most);
  }
  return best;
}

template <class T>
PYROBUST_TARGET inline Plane8 plane_above(const Steps<T>& steps, V a, V b, V c, V d) {
  const V none = splat(0);
  const Plane8 opposite = plane_below<T>(steps, sub(none, b), sub(none, a), c, d);  // of -x y
  return {opposite.p, sub(none, opposite.q), sub(none, opposite.c)};
}

template <class T>
PYROBUST_TARGET void product_planes(const Factors& factors, int64_t n, bool sound, const Planes<T>& below,
                                    const Planes<T>& above) {
  const Steps<T> steps(sound);
  const auto store = [&](const Plane8& plane, const Planes<T>& out, int64_t i) PYROBUST_TARGET {
    T p[8], q[8];
    double constant[8];
    put_nearest(p, plane.p), put_nearest(q, plane.q), put(constant, plane.c);
    copy_out(p, out.p, i, n), copy_out(q, out.q, i, n), copy_out(constant, out.c, i, n);
  };
  for (int64_t i = 0; i < n; i += 8) {
    const Factors8 f(factors, i, n);
    store(plane_below<T>(steps, f.a, f.b, f.c, f.d), below, i);
    store(plane_above<T>(steps, f.a, f.b, f.c, f.d), above, i);
  }
}

// |slope| times the roundings, of a factor at most `far` from its origin.
PYROBUST_TARGET inline V factor_cost(const StepCosts& costs, V slope, V far) {
  const V size = abs(slope), none = splat(0), one = splat(1), multiplied = splat(costs.multiplied);
  const V each = where_less(size, one, multiplied, where_less(one, size, multiplied, splat(costs.added)));
  return where_less(none, size, mul(mul(size, each), far), none);
}

template <class T>
PYROBUST_TARGET void product_relaxation(const Factors& factors, int64_t n, const ProductStep& step, T* lower_slope,
                                        T* second_lower_slope, T* lower_intercept, T* upper_slope,
                                        T* second_upper_slope, T* upper_intercept, uint8_t* alive) {
  const Steps<T> steps(step.x.sound);
  const V none = splat(0), half = splat(0.5);
  const V known_low = splat(step.known_low), known_high = splat(step.known_high);
  for (int64_t i = 0; i < n; i += 8) {
    const Factors8 f(factors, i, n);
    const auto given = [&](const double* at)
                           PYROBUST_TARGET { return at == nullptr ? none : load(Eight(at, i, n).at); };
    const V x_origin = given(step.x_origin), y_origin = given(step.y_origin), own = given(step.origin);
    const V x_far = max(sub(f.b, x_origin), sub(x_origin, f.a)), y_far = max(sub(f.d, y_origin), sub(y_origin, f.c));
    const V x = add(mul(f.a, half), mul(f.b, half)), y = add(mul(f.c, half), mul(f.d, half)), error = given(step.error);
    const auto at_middle = [&](const Plane8& plane)
                               PYROBUST_TARGET { return add(add(mul(plane.p, x), mul(plane.q, y)), plane.c); };
    // The plane, or a constant where a is less than b.
    const auto or_constant = [&](const Plane8& plane, V a, V b, V constant) PYROBUST_TARGET {
      return Plane8{where_less(a, b, none, plane.p), where_less(a, b, none, plane.q),
                    where_less(a, b, constant, plane.c)};
    };
    Plane8 below = plane_below<T>(steps, f.a, f.b, f.c, f.d), above = plane_above<T>(steps, f.a, f.b, f.c, f.d);
    below = or_constant(below, at_middle(below), known_low, known_low);
    above = or_constant(above, known_high, at_middle(above), known_high);
    // Where a factor is unbounded.
    const V largest = splat(std::numeric_limits<double>::max());
    below = or_constant(below, below.c, sub(none, largest), load(Eight(step.lower, i, n).at));
    above = or_constant(above, largest, above.c, load(Eight(step.upper, i, n).at));
    // The constant between the origins, and the error of the step.
    const auto widened = [&](const Plane8& plane) PYROBUST_TARGET {
      const V of_x = mul(plane.p, x_origin), of_y = mul(plane.q, y_origin);
      const V size = add(add(add(abs(plane.c), abs(of_x)), abs(of_y)), abs(own));
      const V cost = add(add(factor_cost(step.x, plane.p, x_far), factor_cost(step.y, plane.q, y_far)), error);
      return std::pair{sub(add(add(plane.c, of_x), of_y), own), add(cost, steps.rounding_error(add(size, cost)))};
    };
    const auto [low, low_error] = widened(below);
    const auto [high, high_error] = widened(above);
    T p[8], q[8], s[8], t[8], low8[8], high8[8];
    put_nearest(p, below.p), put_nearest(q, below.q), put_nearest(s, above.p), put_nearest(t, above.q);
    put_pair<T>(steps, splat(step.x.share), sub(low, low_error), add(high, high_error), low8, high8);
    copy_out(p, lower_slope, i, n), copy_out(q, second_lower_slope, i, n), copy_out(low8, lower_intercept, i, n);
    copy_out(s, upper_slope, i, n), copy_out(t, second_upper_slope, i, n), copy_out(high8, upper_intercept, i, n);
    const unsigned live = less_bits(none, abs(below.p)) | less_bits(none, abs(above.p));
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
constexpr RelaxationKernels<T> kRelaxationKernels = {
    pairs<T>,           affine_pairs<T>,   total_distance,    total,
    relu_relaxation<T>, product_ranges<T>, product_planes<T>, product_relaxation<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

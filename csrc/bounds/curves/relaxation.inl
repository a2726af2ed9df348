// Linear relaxations of the functions of functions.inl, as pyrobust/bounds/graph/activations/curves.py explains them:
// the slope is that of the concave envelope in the middle of the range, a chord, a tangent in the middle or a tangent
// through an end; and any slope is sound, as the intercept bounds the maximum of F(z) - slope z. Points of contact come
// from tables, so they are not exact: that costs tightness only.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Relative error of a few sums and products.
constexpr double kRounded = 0x1p-50;

// Flags are 1 or 0.
PYROBUST_TARGET inline V where(V flag, V yes, V no) { return where_less(splat(0), flag, yes, no); }
PYROBUST_TARGET inline V less(V a, V b) { return where_less(a, b, splat(1), splat(0)); }
PYROBUST_TARGET inline V either(V a, V b) { return max(a, b); }
PYROBUST_TARGET inline V both(V a, V b) { return mul(a, b); }
PYROBUST_TARGET inline V neither(V a) { return sub(splat(1), a); }
PYROBUST_TARGET inline bool any(V flag) { return less_bits(splat(0), flag) != 0; }
// The larger, or NaN where either is NaN or infinite: an intercept that overflowed must not be lost.
PYROBUST_TARGET inline V larger(V a, V b) { return add(max(a, b), mul(splat(0), add(a, b))); }
PYROBUST_TARGET inline V between(V z, V low, V high) { return min(max(z, low), high); }

// The upper relaxation of F = kSign f on finite ranges.
template <class F, int kSign>
struct Side;

// Where the tangent of concave piece kPiece of F through a point before the piece touches it, by the distance of that
// point from the piece's near end; towards larger z (kDirection 1) or smaller z (-1). Knots are 1/128 of a power of two
// apart, and hold the distance over that of the point of contact; 0 for none.
constexpr int kSteps = 7;
constexpr double kNearest = 0x1p-10, kFarthest = 0x1p14;
constexpr size_t kKnots = (24 << kSteps) + 1;
using Knots = std::array<double, (kKnots + 7) / 8 * 8>;

inline uint64_t knot_of(double distance) { return bits<uint64_t>(distance) >> (52 - kSteps); }

// Computed once for each table, so not a template: its code would take longer to compile than to run.
using At = ValueSlope (*)(V z);
template <class F, int kSign>
PYROBUST_TARGET ValueSlope at_default(V z) {
  return Side<F, kSign>::at(F(), z);
}
PYROBUST_TARGET Knots contact_knots(const At at, const double near_end, const double far_end, const int direction) {
  Knots knots;
  for (size_t k = 0; k < knots.size(); k += 8) {
    double distances[8];
    for (size_t j = 0; j < 8; ++j) distances[j] = bits<double>((knot_of(kNearest) + k + j) << (52 - kSteps));
    const V distance = load(distances), near = splat(near_end);
    const V origin = sub(near, mul(splat(direction), distance)), height = at(origin).value;
    // The tangent's height above the origin grows from the near end to the far one.
    const auto above = [&](V t) PYROBUST_TARGET {
      const ValueSlope point = at(t);
      return neither(less(add(point.value, mul(point.slope, sub(origin, t))), height));
    };
    V low = near, high = splat(std::fabs(far_end) < kInfinity ? far_end : near_end + direction * 1e5);
    const V exists = above(high);
    for (int halving = 0; halving < 60; ++halving) {
      const V t = mul(splat(0.5), add(low, high)), reached = above(t);
      low = where(reached, low, t), high = where(reached, t, high);
    }
    put(knots.data() + k, where(exists, div(distance, abs(sub(high, near))), splat(0)));
  }
  return knots;
}

// The distance of the point of contact from the near end; infinite for none.
template <class F, int kSign, int kPiece, int kDirection>
PYROBUST_TARGET inline V contact(V distance) {
  constexpr double kEnds[4] = {-kInfinity, F::kFirst, F::kSecond, kInfinity};
  constexpr double kNear = kEnds[kDirection > 0 ? kPiece : kPiece + 1];
  constexpr double kFar = kEnds[kDirection > 0 ? kPiece + 1 : kPiece];
  static const Knots knots = contact_knots(at_default<F, kSign>, kNear, kFar, kDirection);
  const V known = max(min(distance, splat(kFarthest * (1 - 0x1p-50))), splat(kNearest));  // kNearest for NaN
  double lane[8];
  put(lane, known);
  for (double& element : lane) {
    const uint64_t knot = knot_of(element);
    const double left = knots[knot - knot_of(kNearest)], right = knots[knot + 1 - knot_of(kNearest)];
    const double from = bits<double>(knot << (52 - kSteps)), to = bits<double>((knot + 1) << (52 - kSteps));
    element = left + (right - left) * ((element - from) / (to - from));
  }
  return div(min(distance, splat(kFarthest)), load(lane));
}

struct Line {
  V slope, intercept;
};

template <class F, int kSign>
struct Side {
  const F& f;
  V l, u, at_l, at_u, middle;

  PYROBUST_TARGET static ValueSlope at(const F& f, V z) {
    const ValueSlope v = f.at(z);
    if constexpr (kSign > 0) return v;
    return {negative(v.value), negative(v.slope)};
  }

  PYROBUST_TARGET V value_error(V value) const {
    return fused(add(abs(value), splat(f.value_floor())), splat(kError), splat(kTiny));
  }

  // At least F(z) - s z.
  PYROBUST_TARGET V excess(V z, V value, V s) const {
    const V product = mul(s, z);
    const V rounding = mul(add(abs(value), abs(product)), splat(kRounded));
    return add(sub(value, product), add(rounding, value_error(value)));
  }

  // At least the maximum of F(z) - s z on a concave piece, from its tangent at t:
  // F(z) - s z <= F(t) - s t + (F'(t) - s) (z - t).
  PYROBUST_TARGET V excess_on_piece(V begin, V end, V t, ValueSlope tangent, V s) const {
    const V none = splat(0);
    const V error = fused(add(abs(tangent.slope), splat(F::kSlopeFloor)), splat(kError),
                          fused(abs(s), splat(kRounded), splat(kTiny)));
    const V rise = mul(max(add(sub(tangent.slope, s), error), none), sub(end, t));
    const V fall = mul(max(add(sub(s, tangent.slope), error), none), sub(t, begin));
    const V beyond = fused(max(rise, fall), splat(1 + kRounded), splat(kTiny));
    const V reached = add(excess(t, tangent.value, s), beyond);
    return where_less(begin, end, fused(abs(reached), splat(kRounded), reached),
                      splat(-std::numeric_limits<double>::max()));
  }

  // The slope of a chord; another one where rounding errors spoil the difference of values.
  PYROBUST_TARGET V chord(V begin, V at_begin, V end, V at_end, V otherwise) const {
    const V difference = sub(at_end, at_begin), noise = add(value_error(at_begin), value_error(at_end));
    return where_less(mul(noise, splat(1024)), abs(difference), div(difference, sub(end, begin)), otherwise);
  }

  PYROBUST_TARGET V excess_at_ends(V s) const { return larger(excess(l, at_l, s), excess(u, at_u, s)); }

  PYROBUST_TARGET Line line() const {
    if constexpr (F::kMiddleConvex == (kSign > 0))
      return valley();
    else
      return hill();
  }

  // F convex, concave, convex: a tangent of the middle piece, through an end or in the middle, or the chord. The ends
  // of convex pieces are those of the range or of the concave piece.
  PYROBUST_TARGET Line hill() const {
    const V none = splat(0), first = splat(F::kFirst), second = splat(F::kSecond);
    const V begin = max(l, first), end = min(u, second), has = less(begin, end);
    // the points that tangents from l and from u touch, if they begin outside the piece
    V from_left = none, from_right = none, missing = neither(has), right_missing = none;
    V right_point = begin, left_point = end;
    if constexpr (F::kFirst > -kInfinity) {
      from_left = both(has, less(l, first));
      if (any(from_left)) {
        const V t = add(first, contact<F, kSign, 1, 1>(sub(first, l)));
        right_missing = both(from_left, less(end, t));
        right_point = where(from_left, min(t, end), begin);
      }
    }
    if constexpr (F::kSecond < kInfinity) {
      from_right = both(has, less(second, u));
      if (any(from_right)) {
        const V t = sub(second, contact<F, kSign, 1, -1>(sub(u, second)));
        missing = either(missing, both(from_right, less(t, begin)));
        left_point = where(from_right, max(t, begin), end);
      }
    }
    missing = either(either(missing, right_missing), less(left_point, right_point));
    V t = between(middle, right_point, left_point);
    if (any(missing)) t = where(missing, where(right_missing, left_point, right_point), t);
    t = between(t, l, u);
    const ValueSlope touched = at(f, t);
    const V through_l = both(both(from_left, neither(missing)), less(middle, right_point));
    const V through_u = both(both(from_right, neither(missing)), less(left_point, middle));
    const V s = chord(where(through_u, t, l), where(through_u, touched.value, at_l), where(through_l, t, u),
                      where(through_l, touched.value, at_u), touched.slope);
    const V slope = where(either(missing, either(through_l, through_u)), s, touched.slope);
    return {slope, larger(excess_at_ends(slope), excess_on_piece(begin, end, t, touched, slope))};
  }

  // F concave, convex, concave: a tangent in the middle of the range, or through an end, or the chord.
  PYROBUST_TARGET Line valley() const {
    const V none = splat(0), first = splat(F::kFirst), second = splat(F::kSecond);
    const V in_left = F::kFirst > -kInfinity ? neither(less(first, u)) : none;
    const V in_right = F::kSecond < kInfinity ? neither(less(l, second)) : none;
    const V bridged = neither(either(in_left, in_right));
    V begin = l, end = u, at_begin = at_l, at_end = at_u, tangent = none, slope = none, right_exists = none;
    const V right_begin = max(l, second), left_end = min(u, first);
    V right_point = u, left_point = l;
    ValueSlope right{none, none}, left{none, none};
    if constexpr (F::kSecond < kInfinity) {
      V t = u;
      const V wanted = both(bridged, less(second, u));
      if (any(wanted)) {
        t = add(second, contact<F, kSign, 2, 1>(sub(second, l)));
        right_exists = both(wanted, neither(less(u, t)));
      }
      const V touching = either(in_right, right_exists);
      const V through_l = both(right_exists, less(middle, t));
      right_point = max(where(in_right, middle, where(right_exists, max(t, middle), u)), right_begin);
      right_point = where_less(right_begin, u, right_point, u);
      right = at(f, right_point);
      tangent = both(touching, neither(through_l));
      slope = right.slope;
      end = where(through_l, right_point, end), at_end = where(through_l, right.value, at_end);
    }
    if constexpr (F::kFirst > -kInfinity) {
      V t = l, exists = none;
      const V wanted = both(both(bridged, less(l, first)), neither(right_exists));
      if (any(wanted)) {
        t = sub(first, contact<F, kSign, 0, -1>(sub(u, first)));
        exists = both(wanted, neither(less(t, l)));
      }
      const V touching = either(in_left, exists);
      const V through_u = both(exists, less(t, middle));
      left_point = min(where(in_left, middle, where(exists, min(t, middle), l)), left_end);
      left_point = where_less(l, left_end, left_point, l);
      left = at(f, left_point);
      const V tangent_here = both(touching, neither(through_u));
      slope = where(tangent_here, left.slope, slope);
      tangent = either(tangent, tangent_here);
      begin = where(through_u, left_point, begin), at_begin = where(through_u, left.value, at_begin);
    }
    // where the chord is spoilt: the slope at a point of the range, if any is known
    const V spare = F::kFirst > -kInfinity ? left.slope : F::kSecond < kInfinity ? right.slope : at(f, middle).slope;
    slope = where(tangent, slope, chord(begin, at_begin, end, at_end, spare));
    V highest = excess_at_ends(slope);
    if constexpr (F::kSecond < kInfinity)
      highest = larger(highest, excess_on_piece(right_begin, u, right_point, right, slope));
    if constexpr (F::kFirst > -kInfinity)
      highest = larger(highest, excess_on_piece(l, left_end, left_point, left, slope));
    return {slope, highest};
  }
};

struct Interval {
  V low, high;
};

// The values at both ends, and their bounds.
template <class F>
struct Ends {
  V at_l, at_u;
  Interval values;

  PYROBUST_TARGET Ends(const F& f, V l, V u) : at_l(value_at(f, l)), at_u(value_at(f, u)) {
    V low = min(at_l, at_u), high = max(at_l, at_u);
    if constexpr (F::kStationary < kInfinity) {
      const V z = splat(F::kStationary), smallest = f.at(z).value;
      low = where_less(z, l, low, where_less(u, z, low, min(smallest, low)));
    }
    const V floor = splat(f.value_floor()), error = splat(kError), tiny = splat(kTiny);
    low = sub(low, fused(add(abs(low), floor), error, tiny));
    high = add(high, fused(add(abs(high), floor), error, tiny));
    low = between(low, splat(F::kLow), splat(F::kHigh)), high = between(high, splat(F::kLow), splat(F::kHigh));
    const V given = both(known(l), known(u)), nan = splat(std::numeric_limits<double>::quiet_NaN());
    const V partial = less(l, splat(F::kLeast)), infinite = splat(kInfinity);
    low = where(partial, negative(infinite), low), high = where(partial, infinite, high);
    values = {where(given, low, nan), where(given, high, nan)};
  }

 private:
  PYROBUST_TARGET static V known(V z) { return either(less(z, splat(1)), less(splat(0), z)); }  // not NaN
  PYROBUST_TARGET static V value_at(const F& f, V z) {
    constexpr double kLargest = std::numeric_limits<double>::max();
    const V value = f.at(between(z, splat(-kLargest), splat(kLargest))).value;
    return where_less(z, splat(-kLargest), splat(F::kLeft), where_less(splat(kLargest), z, splat(F::kRight), value));
  }
};

template <class F>
PYROBUST_TARGET void bound(const F& f, int64_t n, const double* l, const double* u, double* low, double* high) {
  for (int64_t i = 0; i < n; i += 8) {
    const Ends<F> ends(f, load_up_to(l, i, n), load_up_to(u, i, n));
    store_up_to(low, i, n, ends.values.low), store_up_to(high, i, n, ends.values.high);
  }
}

template <class F>
PYROBUST_TARGET void relax(const F& f, int64_t n, const double* lower, const double* upper, double* lower_slope,
                           double* lower_intercept, double* upper_slope, double* upper_intercept, double* low,
                           double* high) {
  const V none = splat(0), one = splat(1), half = splat(0.5), infinite = splat(kInfinity);
  for (int64_t i = 0; i < n; i += 8) {
    V l = load_up_to(lower, i, n), u = load_up_to(upper, i, n);
    const Ends<F> ends(f, l, u);
    const V finite = both(both(less(abs(l), infinite), less(abs(u), infinite)), neither(less(l, splat(F::kLeast))));
    V at_l = ends.at_l, at_u = ends.at_u;
    if (any(neither(finite))) {
      l = where(finite, l, one), u = where(finite, u, one);
      at_l = where(finite, at_l, none), at_u = where(finite, at_u, none);
    }
    const V middle = between(add(mul(l, half), mul(u, half)), l, u);
    // A constant where it is lower in the middle, and where numbers overflow: comparisons with NaN are false.
    const auto store = [&](const Line& line, V constant, int sign, double* slopes, double* intercepts) PYROBUST_TARGET {
      const V signs = splat(sign), height = fused(line.slope, middle, line.intercept);
      const V usable = both(finite, less(height, mul(signs, constant)));
      store_up_to(slopes, i, n, where(usable, mul(signs, line.slope), none));
      store_up_to(intercepts, i, n, where(usable, mul(signs, line.intercept), constant));
    };
    const Side<F, -1> below{f, l, u, negative(at_l), negative(at_u), middle};
    const Side<F, 1> above{f, l, u, at_l, at_u, middle};
    store(below.line(), ends.values.low, -1, lower_slope, lower_intercept);
    store(above.line(), ends.values.high, 1, upper_slope, upper_intercept);
    store_up_to(low, i, n, ends.values.low), store_up_to(high, i, n, ends.values.high);
  }
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

// Values and slopes of smooth functions. Each is a piece at most convex or concave: up to kFirst, between, and from
// kSecond; the pieces alternate. Errors: kError (|f| + value floor) of values, kError (|f'| + slope floor) of slopes.
// They are well below: a result takes tens of roundings of 2^-53, of which few count fully; kError is 128 of them. The
// floors stand for exponents whose rounding counts where the value is tiny.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

constexpr double kError = 0x1p-46, kTiny = 1e-300, kInfinity = std::numeric_limits<double>::infinity();

struct ValueSlope {
  V value, slope;
};

PYROBUST_TARGET inline V negative(V a) { return sub(splat(0), a); }

// 2^n and e^r - 1 for x = n log 2 + r, x <= 0: e^x = 2^n (1 + (e^r - 1)). Below e^-708 that.
struct Exponential {
  V power, rest;
  PYROBUST_TARGET V exp() const { return fused(power, rest, power); }
  PYROBUST_TARGET V expm1() const { return fused(power, rest, sub(power, splat(1))); }
};
PYROBUST_TARGET inline Exponential exponential(V x) {
  // Added to n, this leaves n + 1023, the exponent of 2^n, in the last bits.
  const V shift = splat(0x1.8p52 + 1023);
  x = max(x, splat(-708));
  const V shifted = fused(x, splat(0x1.71547652b82fep0), shift);
  const V n = sub(shifted, shift);
  // log 2 in two parts, the first with so few bits that n times it is exact
  const V r = fused(n, splat(-0x1.a39ef35793c76p-33), fused(n, splat(-0x1.62e42feep-1), x));
  V p = splat(1.0 / 6227020800);
  for (const double c : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                         1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2})
    p = fused(p, r, splat(c));
  double lane[8];
  put(lane, shifted);
  for (double& element : lane) element = bits<double>(bits<uint64_t>(element) << 52);
  return {load(lane), fused(mul(r, r), p, r)};
}
PYROBUST_TARGET inline V exp_of(V x) { return exponential(x).exp(); }

// f of each lane, by a function of the C library.
template <class F>
PYROBUST_TARGET inline V each(V z, const F& f) {
  double lane[8];
  put(lane, z);
  for (double& element : lane) element = f(element);
  return load(lane);
}

// Has a value for all numbers from kLeast on.
struct Everywhere {
  static constexpr double kLeast = -kInfinity;
};

// 1 / (1 + e^-z) and its slope, e^-|z| / (1 + e^-|z|)^2.
PYROBUST_TARGET inline ValueSlope logistic(V z) {
  const V e = exp_of(negative(abs(z))), one = splat(1), reciprocal = div(one, add(one, e));
  const V small = mul(e, reciprocal);
  return {where_less(z, splat(0), small, reciprocal), mul(small, reciprocal)};
}

// Convex below 0 and concave above.
struct SShaped : Everywhere {
  static constexpr double kFirst = 0, kSecond = kInfinity, kStationary = kInfinity;
  static constexpr bool kMiddleConvex = false;
  static constexpr double kSlopeFloor = 0;
  PYROBUST_TARGET double value_floor() const { return 0; }
};

struct Sigmoid : SShaped {
  static constexpr double kLow = 0, kHigh = 1, kLeft = 0, kRight = 1;
  PYROBUST_TARGET ValueSlope at(V z) const { return logistic(z); }
};

struct Tanh : SShaped {
  static constexpr double kLow = -1, kHigh = 1, kLeft = -1, kRight = 1;
  // (1 - e^-2|z|) / (1 + e^-2|z|), and 4 e^-2|z| / (1 + e^-2|z|)^2
  PYROBUST_TARGET ValueSlope at(V z) const {
    const Exponential e = exponential(mul(splat(-2), abs(z)));
    const V reciprocal = div(splat(1), add(splat(1), e.exp()));
    return {with_sign(mul(e.expm1(), reciprocal), z), mul(mul(splat(4), e.exp()), mul(reciprocal, reciprocal))};
  }
};

// Concave, convex and concave, with a minimum: z times a function that rises from 0 to 1.
struct Gated : Everywhere {
  static constexpr bool kMiddleConvex = true;
  static constexpr double kSlopeFloor = 1, kLeft = 0, kRight = kInfinity, kHigh = kInfinity;
  PYROBUST_TARGET double value_floor() const { return 1e-6; }
};

// Large negative z would be multiplied by the rest of a gate that vanishes.
PYROBUST_TARGET inline V gated(V z, V gate) { return mul(max(z, splat(-1000)), gate); }

struct Silu : Gated {
  static constexpr double kFirst = -2.3993572805154677, kSecond = 2.3993572805154677;
  static constexpr double kStationary = -1.2784645427610738, kLow = -kInfinity;
  PYROBUST_TARGET ValueSlope at(V z) const {
    const ValueSlope gate = logistic(z);
    const V bounded = min(max(z, splat(-1000)), splat(1000));
    return {gated(z, gate.value), fused(bounded, gate.slope, gate.value)};
  }
};

struct TanhGelu : Gated {
  static constexpr double kFirst = -1.4185040087908284, kSecond = 1.4185040087908284;
  static constexpr double kStationary = -0.7524614220710163, kLow = -kInfinity;
  // z / (1 + e^-y), y = c (z + 0.044715 z^3), c = 2 sqrt(2 / pi)
  PYROBUST_TARGET ValueSlope at(V z) const {
    const V c = splat(0x1.9884533d43651p0), cubic = splat(0.044715), one = splat(1);
    const V bounded = min(max(z, splat(-30)), splat(30)), square = mul(bounded, bounded);
    const ValueSlope gate = logistic(mul(mul(c, bounded), fused(cubic, square, one)));
    const V rise = mul(mul(c, bounded), fused(mul(splat(3), cubic), square, one));
    return {gated(z, gate.value), fused(rise, gate.slope, gate.value)};
  }
};

struct Gelu : Gated {
  static constexpr double kFirst = -1.4142135623730951, kSecond = 1.4142135623730951;
  static constexpr double kStationary = -0.7517915246935645, kLow = -kInfinity;
  // z P(z) + z p(z), P the distribution function and p the density of the normal distribution. With a = |z|,
  // P(-a) = e^(-a^2/2) q(t) / (1 + a), where t = (a - 5) / (a + 5), and q interpolates (1 + a) e^(a^2/2) P(-a) at the
  // Chebyshev points of t, to 2^-51 in all (as Shepherd and Laframboise, 1981, do for the error function).
  PYROBUST_TARGET ValueSlope at(V z) const {
    const V one = splat(1), a = min(abs(z), splat(100));
    const V t = div(sub(a, splat(5)), add(a, splat(5)));
    V q = splat(-0x1.b68e0ff032bdfp-32);
    for (const double c :
         {-0x1.366d98ad292d3p-32, 0x1.3549993351f3dp-28, 0x1.f2a34d8bf7f4dp-29,  -0x1.0c04c34596cadp-25,
          -0x1.c39f4d1ab5f12p-26, 0x1.a644eb4898418p-23, 0x1.129f0b9c73f28p-23,  -0x1.5f0d26c94594cp-20,
          -0x1.2e24d996e342dp-24, 0x1.3000e875b48fbp-17, -0x1.4c0ed2cf9231fp-17, -0x1.c1b18ed59b882p-15,
          0x1.7e61e60960fd0p-13,  0x1.057176cb3a52bp-17, -0x1.b75f4f9ef9049p-10, 0x1.ab6d038fa94fdp-8,
          -0x1.f11aab02a25f1p-7,  0x1.92037bab3edfbp-6,  -0x1.b08e0007b79e0p-6,  0x1.47c1d03054e46p-7,
          0x1.fc66cc64a14d2p-6,   -0x1.76ff86859eb14p-4, 0x1.d8979b0f2b39dp-2})
      q = fused(q, t, splat(c));
    const V bell = exp_of(mul(mul(a, a), splat(-0.5)));
    const V tail = div(mul(bell, q), add(one, a));
    const V gate = where_less(z, splat(0), tail, sub(one, tail));
    const V density = mul(bell, splat(0x1.9884533d43651p-2));
    return {gated(z, gate), fused(with_sign(a, z), density, gate)};
  }
};

struct Mish : Gated {
  static constexpr double kFirst = -2.256376396360793, kSecond = 1.4905711794854285;
  static constexpr double kStationary = -1.1924312145154952, kLow = -kInfinity;
  // z (w^2 + 2 w) / (w^2 + 2 w + 2) with w = e^z; for z > 0 with powers of 1 / w
  PYROBUST_TARGET ValueSlope at(V z) const {
    const V e = exp_of(negative(abs(z))), square = mul(e, e), one = splat(1), two = splat(2), zero = splat(0);
    const V linear = mul(two, e);
    const V size = where_less(zero, z, fused(two, square, add(one, linear)), add(square, add(linear, two)));
    const V reciprocal = div(one, size);
    const V gate = mul(where_less(zero, z, add(one, linear), add(square, linear)), reciprocal);
    const V rise = mul(where_less(zero, z, square, e), mul(splat(4), add(one, e)));
    const V bounded = min(max(z, splat(-1000)), splat(1000));
    return {gated(z, gate), fused(bounded, mul(rise, mul(reciprocal, reciprocal)), gate)};
  }
};

struct Softplus : Everywhere {
  static constexpr double kFirst = -kInfinity, kSecond = kInfinity, kStationary = kInfinity;
  static constexpr bool kMiddleConvex = true;
  static constexpr double kSlopeFloor = 1e-6, kLow = 0, kHigh = kInfinity, kLeft = 0, kRight = kInfinity;
  double beta = 1;
  PYROBUST_TARGET double value_floor() const { return 1e-6 / beta; }
  // max(z, 0) + log(1 + e) / beta with e = e^(-beta |z|), and log(1 + e) = 2 (s + s^3/3 + ...) with s = e / (2 + e)
  PYROBUST_TARGET ValueSlope at(V z) const {
    const V one = splat(1), e = exp_of(mul(splat(-beta), abs(z)));
    const V s = div(e, add(splat(2), e)), square = mul(s, s);
    V p = splat(1.0 / 33);
    for (int odd = 31; odd > 0; odd -= 2) p = fused(p, square, splat(1.0 / odd));
    const V smooth = div(mul(mul(splat(2), s), p), splat(beta));
    const V reciprocal = div(one, add(one, e));
    return {add(max(z, splat(0)), smooth), where_less(z, splat(0), mul(e, reciprocal), reciprocal)};
  }
};

// Convex or concave wherever they have a value.
struct OnePiece {
  static constexpr double kFirst = -kInfinity, kSecond = kInfinity, kStationary = kInfinity, kSlopeFloor = 0;
  static constexpr bool kMiddleConvex = true;
  PYROBUST_TARGET double value_floor() const { return 0; }
};

struct Exp : OnePiece, Everywhere {
  static constexpr double kLow = 0, kHigh = kInfinity, kLeft = 0, kRight = kInfinity;
  // Above 0 by the reciprocal; beyond 708 infinite.
  PYROBUST_TARGET ValueSlope at(V z) const {
    const V small = exp_of(negative(abs(z))), large = where_less(splat(708), z, splat(kInfinity), div(splat(1), small));
    const V value = where_less(splat(0), z, large, small);
    return {value, value};
  }
};

struct Square : OnePiece, Everywhere {
  static constexpr double kStationary = 0, kLow = 0, kHigh = kInfinity, kLeft = kInfinity, kRight = kInfinity;
  PYROBUST_TARGET ValueSlope at(V z) const { return {mul(z, z), add(z, z)}; }
};

// Of positive numbers; curves.cpp mirrors negative ones.
struct Reciprocal : OnePiece {
  static constexpr double kLeast = 5e-324, kLow = 0, kHigh = kInfinity, kLeft = kInfinity, kRight = 0;
  PYROBUST_TARGET ValueSlope at(V z) const {
    const V value = div(splat(1), z);
    return {value, negative(mul(value, value))};
  }
};

struct Sqrt : OnePiece {
  static constexpr bool kMiddleConvex = false;
  static constexpr double kLeast = 0, kLow = 0, kHigh = kInfinity, kLeft = kInfinity, kRight = kInfinity;
  PYROBUST_TARGET ValueSlope at(V z) const {
    const V value = each(z, [](double a) { return std::sqrt(a); });
    return {value, div(splat(0.5), value)};
  }
};

struct Rsqrt : OnePiece {
  static constexpr double kLeast = 5e-324, kLow = 0, kHigh = kInfinity, kLeft = kInfinity, kRight = 0;
  PYROBUST_TARGET ValueSlope at(V z) const {
    const V value = div(splat(1), each(z, [](double a) { return std::sqrt(a); }));
    return {value, mul(splat(-0.5), div(value, z))};
  }
};

struct Log : OnePiece {
  static constexpr bool kMiddleConvex = false;
  static constexpr double kLeast = 0, kLow = -kInfinity, kHigh = kInfinity, kLeft = -kInfinity, kRight = kInfinity;
  PYROBUST_TARGET ValueSlope at(V z) const {
    return {each(z, [](double a) { return std::log(a); }), div(splat(1), z)};
  }
};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

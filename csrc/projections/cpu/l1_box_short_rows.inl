// Projection of sixteen float32 rows of at most kShortRow elements, one SIMD lane each, in float32 arithmetic: one step
// of Newton's method in float64 corrects the rounding, and the sum of the result is measured.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

constexpr int kMaxShortRounds = 40;

// theta with a sum close to the radius, by Newton's steps in a bracket; lanes of `settled` stay at 0.
PYROBUST_TARGET inline W theta_newton(const W* a, const W* u, int64_t n, W radius, W top, unsigned settled) {
  const W zero = wide(0), one = wide(1), near = mul(radius, wide(0x1p-20f));
  W theta = zero, low = zero, high = top;
  for (int round = 0; round < kMaxShortRounds; ++round) {
    W sum = zero, free = zero;
    for (int64_t d = 0; d < n; ++d) {
      const W c = sub(a[d], theta);
      sum = add(sum, min(max(c, zero), u[d]));
      free = add(free, where_less(zero, c, where_less(c, u[d], one)));
    }
    const W excess = sub(sum, radius);
    if ((less_bits(near, abs(excess)) & ~settled) == 0) break;
    low = where_less(zero, excess, theta, low);
    high = where_less(zero, excess, high, theta);
    const W step = add(theta, div(excess, free)), middle = mul(add(low, high), wide(0.5f));
    const W next = where_less(low, step, where_less(step, high, step, middle), middle);
    theta = where_less(near, abs(excess), next, theta);
  }
  return theta;
}

// Projects sixteen rows that begin `apart` >= 4 elements apart. Bit i of the result is set where row i is left undone.
PYROBUST_TARGET inline unsigned sixteen_boxes(const float* y, const float* x, float* z, const double* r, int64_t n,
                                              int64_t apart, FloatBox ends) {
  W y16[kShortRow], x16[kShortRow], a[kShortRow], u[kShortRow];
  for_columns(apart, [&](int64_t d) PYROBUST_TARGET {
    load_columns(y + d, apart, y16 + d);
    load_columns(x + d, apart, x16 + d);
  });
  const W zero16 = wide(0), lower = wide(ends.lower), upper = wide(ends.upper);
  const V zero = splat(0);
  W top = zero16, all = zero16, worst = zero16;
  V2 total{{zero, zero}};
  for (int64_t d = 0; d < n; ++d) {
    const W above = sub(upper, x16[d]), below = sub(x16[d], lower);
    a[d] = abs(y16[d]);
    u[d] = where_less(zero16, y16[d], above, below);
    top = max(a[d], top);
    all = add(all, a[d]);
    worst = min(min(above, below), worst);
    total = add(total, widen(min(a[d], u[d])));
  }
  const V2 radius{{load(r), load(r + 8)}};
  const W radius16 = narrow(radius.half[0], radius.half[1]);
  // Rows certainly inside need no threshold; rows that are neither certainly inside nor outside, and bad rows, are left
  // to the exact search.
  const W difference = sub(all, all);
  const unsigned sound = less_bits(difference, wide(1)) & less_bits(wide(-1), difference) & ~less_bits(worst, zero16);
  unsigned inside = 0, outside = 0;
  for (int h = 0; h < 2; ++h) {
    const V less = mul(total.half[h], splat(1 - 0x1p-20)), more = mul(total.half[h], splat(1 + 0x1p-20));
    const V r8 = radius.half[h];
    const unsigned usual = less_bits(splat(0x1p-90), r8) & less_bits(r8, splat(0x1p100));
    inside |= (usual & less_bits(more, r8) & 0xffu) << (8 * h);
    outside |= (usual & less_bits(r8, less) & 0xffu) << (8 * h);
  }
  inside &= sound, outside &= sound;
  const W theta = theta_newton(a, u, n, radius16, top, ~outside);
  // Corrects the threshold by the difference of its sum from the radius, less 2^-22 of it for the rounding of the last
  // pass unless the sum is the radius itself.
  W free = zero16;
  V2 sum{{zero, zero}};
  for (int64_t d = 0; d < n; ++d) {
    const W c = sub(a[d], theta);
    sum = add(sum, widen(min(max(c, zero16), u[d])));
    free = add(free, where_less(zero16, c, where_less(c, u[d], wide(1))));
  }
  V high[2], low[2], least[2];
  const V2 theta2 = widen(theta), free2 = widen(free);
  for (int h = 0; h < 2; ++h) {
    const V r8 = radius.half[h], s8 = sum.half[h], less = mul(r8, splat(1 - 0x1p-22));
    const V excess = sub(s8, where_less(s8, r8, less, where_less(r8, s8, less, r8)));
    const V more = mul(total.half[h], splat(1 + 0x1p-20));
    high[h] = where_less(more, r8, zero, theta2.half[h]);
    low[h] = where_less(more, r8, zero, where_less(zero, free2.half[h], div(excess, free2.half[h]), zero));
    least[h] = where_less(more, r8, zero, mul(r8, splat(0x1p-29)));
    outside &= ~((~less_bits(abs(excess), mul(r8, splat(0.25))) & 0xffu) << (8 * h));
  }
  // Elements of more than 2^-29 of the radius are multiples of 2^-53 of the power of two above it: their float64 sum is
  // exact where it is not above the radius.
  const BoxLanes box{lower, upper, narrow(high[0], high[1]), narrow(low[0], low[1])};
  const W least16 = narrow(least[0], least[1]);
  V2 stored{{zero, zero}};
  for (int64_t d = 0; d < n; ++d) {
    const W c = min(abs(clipped_float32(y16[d], x16[d], box)), a[d]), z16 = where_less(least16, c, c);
    stored = add(stored, widen(z16));
    u[d] = with_sign(z16, y16[d]);
  }
  unsigned done = 0;
  for (int h = 0; h < 2; ++h) {
    const V r8 = radius.half[h], s8 = stored.half[h];
    const unsigned exact = less_bits(mul(r8, splat(1 - 0x1p-21)), s8) & ~less_bits(r8, s8);
    const unsigned rounded = less_bits(mul(s8, splat(1 + sum_error(n))), r8);
    done |= (((outside >> (8 * h)) & exact) | ((inside >> (8 * h)) & rounded)) << (8 * h);
  }
  for_columns(apart, [&](int64_t d) PYROBUST_TARGET { store_columns(z + d, apart, u + d); });
  return ~done & 0xffffu;
}

PYROBUST_TARGET unsigned short_boxes(const float* y, const float* x, float* z, const double* radius,
                                     int64_t radius_stride, int64_t n, int rows, FloatBox box) {
  double r[kShortRows];
  for (int row = 0; row < kShortRows; ++row) r[row] = radius[(row < rows ? row : 0) * radius_stride];
  if (rows == kShortRows && n >= 4) return sixteen_boxes(y, x, z, r, n, n, box);
  const int64_t apart = n < 4 ? 4 : n;
  float from_y[kShortRow * kShortRows], from_x[kShortRow * kShortRows], to[kShortRow * kShortRows];
  std::fill_n(from_y, apart * kShortRows, 0.0f);
  std::fill_n(from_x, apart * kShortRows, 0.0f);
  copy_rows(y, n, from_y, apart, n, rows);
  copy_rows(x, n, from_x, apart, n, rows);
  const unsigned open = sixteen_boxes(from_y, from_x, to, r, n, apart, box);
  copy_rows(to, apart, z, n, n, rows);
  return open & ((1u << rows) - 1u);
}

constexpr L1BoxFloat32Kernels kFloat32Kernels = {collect_float32,  rooms,          estimate_float32,
                                                 evaluate_float32, finish_float32, short_boxes};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

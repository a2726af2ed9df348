// Projection of sixteen float32 rows of at most kShortRow elements, one SIMD lane each, in float32 arithmetic: one step
// of Newton's method in float64 corrects the rounding, and the sum of the result is measured.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

template <bool absolute>
PYROBUST_TARGET inline W magnitude(W a) {
  if constexpr (absolute)
    return abs(a);
  else
    return a;
}

// Batcher's network (Knuth, TAOCP 3, 5.2.2, algorithm M) for n numbers.
struct Exchange {
  int first, second;
};
template <class Visit>
constexpr void batcher(int n, const Visit& visit) {
  int top = 1;
  while (2 * top < n) top *= 2;
  for (int p = top; p > 0; p /= 2) {
    int q = top, r = 0, apart = p;
    for (;;) {
      for (int i = 0; i < n - apart; ++i)
        if ((i & p) == r) visit(Exchange{i, i + apart});
      if (q == p) break;
      apart = q - p;
      q /= 2;
      r = p;
    }
  }
}
template <int n>
constexpr size_t kExchanges = [] {
  size_t count = 0;
  if (n > 1) batcher(n, [&](Exchange) { ++count; });
  return count;
}();
template <int n>
constexpr auto kNetwork = [] {
  std::array<Exchange, kExchanges<n>> network{};
  size_t count = 0;
  if (n > 1) batcher(n, [&](Exchange exchange) { network[count++] = exchange; });
  return network;
}();

template <int i, int j>
PYROBUST_TARGET inline void exchange(W* t) {
  const W low = min(t[i], t[j]);
  t[j] = max(t[i], t[j]);
  t[i] = low;
}

// The reach from the sums of the k smallest t (Held, Wolfe and Crowder 1974).
template <int n, size_t... i>
PYROBUST_TARGET W reach_sorted(const W* t, W radius, std::index_sequence<i...>) {
  W s[n];
  for (int k = 0; k < n; ++k) s[k] = t[k];
  (exchange<kNetwork<n>[i].first, kNetwork<n>[i].second>(s), ...);
  // The sum over any k of them is at most the radius, so the reach is the least of all that solve for k.
  W sum = radius, reach = radius;
  for (int k = 0; k < n; ++k) {
    sum = add(sum, s[k]);
    reach = min(mul(sum, wide(1 / static_cast<float>(k + 1))), reach);
  }
  return reach;
}
using ReachSorted = W (*)(const W* t, W radius);
template <int n>
PYROBUST_TARGET W reach_sorted(const W* t, W radius) {
  return reach_sorted<n>(t, radius, std::make_index_sequence<kExchanges<n>>());
}
// Up to this many elements, sorting is cheaper than a few Newton steps.
constexpr int64_t kSortedFloats = 16;
template <size_t... i>
constexpr std::array<ReachSorted, kSortedFloats> reaches(std::index_sequence<i...>) {
  return {reach_sorted<static_cast<int>(i + 1)>...};
}
constexpr auto kReachSorted = reaches(std::make_index_sequence<kSortedFloats>());

// The reach by Newton's method from the right.
PYROBUST_TARGET inline W reach_newton(const W* t, int64_t n, W radius, W reach) {
  const W zero = wide(0), one = wide(1);
  for (int round = 0; round < 64; ++round) {
    W count = zero, below = zero;
    for (int64_t d = 0; d < n; ++d) {
      count = add(count, where_less(t[d], reach, one));
      below = add(below, where_less(t[d], reach, t[d]));
    }
    const W next = min(div(add(radius, below), count), reach);
    const bool done = less_bits(next, reach) == 0;
    reach = next;
    if (done) break;
  }
  return reach;
}

// Projects sixteen rows that begin `apart` >= 4 elements apart. Bit i of the result is set where row i is left undone.
template <bool absolute>
PYROBUST_TARGET unsigned sixteen_rows(const float* v, float* z, const double* r, int64_t n, int64_t apart) {
  W v16[kShortRow], t[kShortRow];
  for_columns(apart, [&](int64_t d) PYROBUST_TARGET { load_columns(v + d, apart, v16 + d); });
  const W zero16 = wide(0);
  const V zero = splat(0);
  W top = magnitude<absolute>(v16[0]), total16 = zero16;
  for (int64_t d = 0; d < n; ++d) {
    const W a = magnitude<absolute>(v16[d]);
    top = max(a, top);
    total16 = add(total16, a);
  }
  for (int64_t d = 0; d < n; ++d) t[d] = sub(top, magnitude<absolute>(v16[d]));
  const V2 radius{{load(r), load(r + 8)}};
  const W radius16 = narrow(radius.half[0], radius.half[1]);
  // The sum in float64, unless the one in float32 puts all rows outside: it is off by less than 2^-17.
  V2 total{{splat(INFINITY), splat(INFINITY)}};
  if (n > kSortedFloats || (absolute && less_bits(mul(radius16, wide(1 + 0x1p-16f)), total16) != 0xffffu)) {
    total = {{zero, zero}};
    for (int64_t d = 0; d < n; ++d) total = add(total, widen(magnitude<absolute>(v16[d])));
  }
  W reach;
  if (n <= kSortedFloats) {
    reach = kReachSorted[static_cast<size_t>(n - 1)](t, radius16);
  } else {
    const W mean = div(sub(narrow(total.half[0], total.half[1]), radius16), wide(static_cast<float>(n)));
    reach = reach_newton(t, n, radius16, min(sub(top, mean), radius16));
  }
  // Corrects the threshold by the difference of its sum from the radius, less 2^-22 of it for the rounding of the last
  // pass unless the sum is the radius itself.
  const W theta = sub(top, reach);
  W count = zero16;
  V2 sum{{zero, zero}};
  for (int64_t d = 0; d < n; ++d) {
    const W a = magnitude<absolute>(v16[d]);
    sum = add(sum, widen(max(sub(a, theta), zero16)));
    count = add(count, where_less(theta, a, wide(1)));
  }
  const W difference = sub(total16, total16);  // NaN where not finite
  const unsigned finite = less_bits(difference, wide(1)) & less_bits(wide(-1), difference);
  unsigned done = 0;
  V high[2], low[2], least[2];
  const V2 theta2 = widen(theta), count2 = widen(count);
  for (int h = 0; h < 2; ++h) {
    const V r8 = radius.half[h], s8 = sum.half[h];
    const V less = mul(r8, splat(1 - 0x1p-22));
    const V target = where_less(s8, r8, less, where_less(r8, s8, less, r8));
    const V excess = sub(s8, target);
    high[h] = theta2.half[h], low[h] = div(excess, count2.half[h]);
    least[h] = mul(r8, splat(0x1p-29));
    unsigned good = finite >> (8 * h);
    good &=
        less_bits(splat(0x1p-90), r8) & less_bits(r8, splat(0x1p100)) & less_bits(abs(excess), mul(r8, splat(0.25)));
    if constexpr (absolute) {
      // Rows certainly inside need no threshold; rows that may be inside are left to exact arithmetic.
      const V most = mul(total.half[h], splat(1 + sum_error(n)));
      good &= less_bits(r8, mul(total.half[h], splat(1 - sum_error(n)))) | ~less_bits(r8, most);
      high[h] = where_less(r8, most, high[h], zero);
      low[h] = where_less(r8, most, low[h], zero);
      least[h] = where_less(r8, most, least[h], zero);
    }
    done |= (good & 0xffu) << (8 * h);
  }
  // Elements of more than 2^-29 of the radius are multiples of 2^-53 of the power of two above it: their float64 sum is
  // exact where it is not above the radius.
  const W high16 = narrow(high[0], high[1]), low16 = narrow(low[0], low[1]), least16 = narrow(least[0], least[1]);
  V2 stored{{zero, zero}};
  for (int64_t d = 0; d < n; ++d) {
    const W a = magnitude<absolute>(v16[d]), shrunken = sub(sub(a, high16), low16);
    W z16 = where_less(least16, shrunken, shrunken);
    if constexpr (absolute) z16 = min(z16, a);
    stored = add(stored, widen(z16));
    t[d] = absolute ? with_sign(z16, v16[d]) : z16;
  }
  unsigned inside = 0;
  for (int h = 0; h < 2; ++h) {
    const V r8 = radius.half[h], s8 = stored.half[h];
    unsigned within = less_bits(mul(r8, splat(1 - 0x1p-21)), s8) & ~less_bits(r8, s8);
    if constexpr (absolute) within |= ~less_bits(r8, mul(total.half[h], splat(1 + sum_error(n))));
    inside |= (within & 0xffu) << (8 * h);
  }
  for_columns(apart, [&](int64_t d) PYROBUST_TARGET { store_columns(z + d, apart, t + d); });
  return ~(done & inside) & 0xffffu;
}

template <bool absolute>
PYROBUST_TARGET unsigned short_floats(const float* v, float* z, const double* radius, int64_t radius_stride, int64_t n,
                                      int rows) {
  double r[kShortRows];
  for (int row = 0; row < kShortRows; ++row) r[row] = radius[(row < rows ? row : 0) * radius_stride];
  if (rows == kShortRows && n >= 4) return sixteen_rows<absolute>(v, z, r, n, n);
  const int64_t apart = n < 4 ? 4 : n;
  float from[kShortRow * kShortRows], to[kShortRow * kShortRows];
  std::fill_n(from, apart * kShortRows, 0.0f);
  copy_rows(v, n, from, apart, n, rows);
  const unsigned open = sixteen_rows<absolute>(from, to, r, n, apart);
  copy_rows(to, apart, z, n, n, rows);
  return open & ((1u << rows) - 1u);
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

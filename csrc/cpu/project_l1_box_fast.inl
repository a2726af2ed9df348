// FastBoxFinish of project_l1_box_leaves.h, over the lanes that the including file chose.

namespace pyrobust::cpu {
namespace {

struct FastBox {
  W lower, upper, high, low;
};

PYROBUST_TARGET inline W clipped_fast(W y, W x, const FastBox& box) {
  const W zero = wide(0);
  // The room, rounded down: the difference s and its error e (Knuth's TwoSum), then the number below where e < 0.
  const W p = where_less(zero, y, box.upper, x), q = where_less(zero, y, x, box.lower);
  const W s = sub(p, q), back = sub(s, p);
  const W e = sub(sub(p, sub(s, back)), add(q, back));
  const W room = one_less_where_less(e, zero, s);
  return with_sign(min(max(sub(sub(abs(y), box.high), box.low), zero), room), y);
}

PYROBUST_TARGET double finish_fast(const float* y, const float* x, float* z, int64_t n, float lower, float upper,
                                   float high, float low) {
  const FastBox box{wide(lower), wide(upper), wide(high), wide(low)};
  V sum0 = splat(0), sum1 = sum0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    // The next row arrives while this one is computed.
    __builtin_prefetch(y + n + i);
    __builtin_prefetch(x + n + i);
    __builtin_prefetch(z + n + i, 1);
    put(z + i, clipped_fast(load_wide(y + i), load_wide(x + i), box));
    sum0 = add(sum0, abs(load(z + i)));
    sum1 = add(sum1, abs(load(z + i + 8)));
  }
  double sum = lane_sum(add(sum0, sum1));
  if (i == n) return sum;
  float y16[16], x16[16], z16[16];
  for (int64_t l = 0; l < 16; ++l) y16[l] = i + l < n ? y[i + l] : 0.0f, x16[l] = i + l < n ? x[i + l] : lower;
  put(z16, clipped_fast(load_wide(y16), load_wide(x16), box));
  for (int64_t l = 0; i + l < n; ++l) {
    z[i + l] = z16[l];
    sum += std::fabs(static_cast<double>(z16[l]));
  }
  return sum;
}

}  // namespace
}  // namespace pyrobust::cpu

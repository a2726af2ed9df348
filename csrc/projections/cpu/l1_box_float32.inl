// The inner loops of L1BoxFloat32Kernels.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// The last n < 16 elements, padded with elements that stay zero.
struct LastPair {
  float y[16], x[16];
  LastPair(const float* y_last, const float* x_last, int64_t n, float lower) {
    for (int64_t l = 0; l < 16; ++l) y[l] = l < n ? y_last[l] : 0.0f, x[l] = l < n ? x_last[l] : lower;
  }
};

PYROBUST_TARGET Float32BoxUndecided collect_float32(const float* y, const float* x, int64_t n, FloatBox box, float low,
                                                    float high, float* a_open, float* u_open, int64_t room) {
  const W lower = wide(box.lower), upper = wide(box.upper), low16 = wide(low), high16 = wide(high), zero = wide(0);
  V total0 = splat(0), total1 = total0;
  // A NaN of x shows in the sum of at_high, NaN and infinities of y in the sum of a, x outside the box in the smallest
  // room.
  W at_high = zero, all = zero, least = zero;
  int64_t linear = 0, count = 0;
  bool overflow = false;
  const auto block = [&](W y16, W x16) PYROBUST_TARGET {
    const W a = abs(y16), above = sub(upper, x16), below = sub(x16, lower);
    const W u = where_less(zero, y16, above, below);
    all = add(all, a);
    least = min(min(above, below), least);
    const W c_low = sub(a, low16), c_high = sub(a, high16);
    at_high = add(at_high, min(max(c_high, zero), u));
    const unsigned unfilled = less_bits(c_high, u), fills = less_bits(u, c_low), sinks = less_bits(c_high, zero);
    const unsigned open = less_bits(zero, c_low) & unfilled & (fills | sinks);
    linear += __builtin_popcount(unfilled & ~(fills | sinks));
    // No branch on `open`: it is unpredictable.
    overflow |= count + 16 > room;
    count = overflow ? 0 : count;
    pack(u_open + count, u, open);
    count += pack(a_open + count, a, open);
  };
  const auto flush = [&]() PYROBUST_TARGET {
    total0 = add(total0, first(at_high));
    total1 = add(total1, last(at_high));
    at_high = zero;
  };
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int64_t j = i; j < i + 64; j += 16) block(load_wide(y + j), load_wide(x + j));
    flush();
  }
  for (; i + 16 <= n; i += 16) block(load_wide(y + i), load_wide(x + i));
  if (i < n) {
    const LastPair rest(y + i, x + i, n - i, box.lower);
    block(load_wide(rest.y), load_wide(rest.x));
  }
  flush();
  const double sum = lane_sum(add(total0, total1));
  const bool good =
      std::isfinite(sum) && std::isfinite(lane_sum(add(first(all), last(all)))) && less_bits(least, zero) == 0;
  return {sum, linear, overflow ? -1 : count, good};
}

PYROBUST_TARGET float rooms(float* y, float* x, int64_t n, FloatBox box) {
  const W lower = wide(box.lower), upper = wide(box.upper);
  W top = wide(0);
  for (int64_t i = 0; i < n; i += 16) {
    const W y16 = load_wide(y + i), x16 = load_wide(x + i), a = abs(y16);
    top = max(a, top);
    put(x + i, where_less(wide(0), y16, sub(upper, x16), sub(x16, lower)));
    put(y + i, a);
  }
  float l[16];
  put(l, top);
  return *std::max_element(l, l + 16);
}

PYROBUST_TARGET BoxShare estimate_float32(const float* a, const float* u, int64_t n, float theta) {
  const W theta16 = wide(theta), zero = wide(0);
  W total = zero;
  int64_t free = 0;
  const auto block = [&](W a16, W u16) PYROBUST_TARGET {
    const W c = sub(a16, theta16);
    total = add(total, min(max(c, zero), u16));
    free += __builtin_popcount(less_bits(zero, c) & less_bits(c, u16));
  };
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) block(load_wide(a + i), load_wide(u + i));
  if (i < n) {
    const LastPair rest(a + i, u + i, n - i, 0);
    block(load_wide(rest.y), load_wide(rest.x));
  }
  return {lane_sum(add(first(total), last(total))), free};
}

PYROBUST_TARGET BoxShare evaluate_float32(const float* a, const float* u, int64_t n, double theta) {
  const V theta8 = splat(theta);
  V total = splat(0);
  int64_t free = 0;
  const auto block = [&](V a8, V u8) PYROBUST_TARGET {
    const V c = sub(a8, theta8);
    total = add(total, clipped(c, u8));
    free += __builtin_popcount(free_bits(c, u8));
  };
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) block(load(a + i), load(u + i));
  if (i < n) {
    const Tail<float> a_tail(a + i, n - i, 0.0f), u_tail(u + i, n - i, 0.0f);
    block(load(a_tail.element), load(u_tail.element));
  }
  return {lane_sum(total), free};
}

struct BoxLanes {
  W lower, upper, high, low;
};

PYROBUST_TARGET inline W clipped_float32(W y, W x, const BoxLanes& box) {
  const W zero = wide(0);
  // The room, rounded down: the difference s and its error e (Knuth's TwoSum), then the number below where e < 0.
  const W p = where_less(zero, y, box.upper, x), q = where_less(zero, y, x, box.lower);
  const W s = sub(p, q), back = sub(s, p);
  const W e = sub(sub(p, sub(s, back)), add(q, back));
  const W room = one_less_where_less(e, zero, s);
  return with_sign(min(max(sub(sub(abs(y), box.high), box.low), zero), room), y);
}

PYROBUST_TARGET double finish_float32(const float* y, const float* x, float* z, int64_t n, FloatBox ends, float high,
                                      float low) {
  const BoxLanes box{wide(ends.lower), wide(ends.upper), wide(high), wide(low)};
  V sum0 = splat(0), sum1 = sum0;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    // Prefetch the next row while this one is computed.
    __builtin_prefetch(y + n + i);
    __builtin_prefetch(x + n + i);
    __builtin_prefetch(z + n + i, 1);
    const W z16 = clipped_float32(load_wide(y + i), load_wide(x + i), box);
    put(z + i, z16);
    sum0 = add(sum0, abs(first(z16)));
    sum1 = add(sum1, abs(last(z16)));
  }
  double sum = lane_sum(add(sum0, sum1));
  if (i == n) return sum;
  float z16[16];
  const LastPair rest(y + i, x + i, n - i, ends.lower);
  put(z16, clipped_float32(load_wide(rest.y), load_wide(rest.x), box));
  for (int64_t l = 0; i + l < n; ++l) {
    z[i + l] = z16[l];
    sum += std::fabs(static_cast<double>(z16[l]));
  }
  return sum;
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

// The inner loops of SimplexL1Float32Kernels.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// 32 elements from v + i on, or the last ones of n and zeros.
struct Block32 {
  W first, second;
};
PYROBUST_TARGET inline Block32 load32(const float* v, int64_t i, int64_t n) {
  if (n - i >= 32) return {load_wide(v + i), load_wide(v + i + 16)};
  float last[32];
  for (int64_t l = 0; l < 32; ++l) last[l] = i + l < n ? v[i + l] : 0.0f;
  return {load_wide(last), load_wide(last + 16)};
}

PYROBUST_TARGET inline float chain_sum(W a, W b) {
  float l[16];
  put(l, add(a, b));
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) l[i] += l[i + half];
  return l[0];
}

PYROBUST_TARGET Float32Scan scan_float32(const float* v, int64_t n) {
  W top0 = wide(0), top1 = top0, total0 = top0, total1 = top0;
  for (int64_t i = 0; i < n; i += 32) {
    const Block32 block = load32(v, i, n);
    const W a = abs(block.first), b = abs(block.second);
    top0 = max(a, top0), top1 = max(b, top1);
    total0 = add(total0, a), total1 = add(total1, b);
  }
  float l[16];
  put(l, max(top0, top1));
  float top = l[0];
  for (int i = 1; i < 16; ++i) top = l[i] > top ? l[i] : top;
  return {top, chain_sum(total0, total1)};
}

PYROBUST_TARGET Float32Kept keep_float32(const float* v, float* kept, int64_t n, float theta) {
  const W theta16 = wide(theta);
  W total0 = wide(0), total1 = total0;
  int64_t count = 0, i = 0;
  for (; i + 32 <= n; i += 32) {
    // Never writes past what has been read, so v may be kept.
    const W a = abs(load_wide(v + i)), b = abs(load_wide(v + i + 16));
    total0 = add(total0, where_less(theta16, a, a));
    total1 = add(total1, where_less(theta16, b, b));
    count += pack(kept + count, a, less_bits(theta16, a));
    count += pack(kept + count, b, less_bits(theta16, b));
  }
  if (i < n) {
    const Block32 block = load32(v, i, n);
    const W a = abs(block.first), b = abs(block.second);
    total0 = add(total0, where_less(theta16, a, a));
    total1 = add(total1, where_less(theta16, b, b));
    float packed[48];
    int more = pack(packed, a, less_bits(theta16, a));
    more += pack(packed + more, b, less_bits(theta16, b));
    for (int l = 0; l < more; ++l) kept[count + l] = packed[l];
    count += more;
  }
  return {count, chain_sum(total0, total1)};
}

PYROBUST_TARGET inline W shrunk_float32(W v, W high, W low) {
  return with_sign(max(sub(sub(abs(v), high), low), wide(0)), v);
}

PYROBUST_TARGET double finish_float32(const float* v, float* z, int64_t n, float high, float low) {
  const W high16 = wide(high), low16 = wide(low);
  V sum0 = splat(0), sum1 = sum0;
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    // Prefetch the next row while this one is computed.
    __builtin_prefetch(v + n + i);
    __builtin_prefetch(v + n + i + 16);
    __builtin_prefetch(z + n + i, 1);
    __builtin_prefetch(z + n + i + 16, 1);
    put(z + i, shrunk_float32(load_wide(v + i), high16, low16));
    put(z + i + 16, shrunk_float32(load_wide(v + i + 16), high16, low16));
    sum0 = add(add(sum0, abs(load(z + i))), abs(load(z + i + 8)));
    sum1 = add(add(sum1, abs(load(z + i + 16))), abs(load(z + i + 24)));
  }
  if (i == n) return lane_sum(add(sum0, sum1));
  const Block32 block = load32(v, i, n);
  float last[32];
  put(last, shrunk_float32(block.first, high16, low16));
  put(last + 16, shrunk_float32(block.second, high16, low16));
  double sum = lane_sum(add(sum0, sum1));
  for (int64_t l = 0; i + l < n; ++l) {
    z[i + l] = last[l];
    sum += std::fabs(static_cast<double>(last[l]));
  }
  return sum;
}

constexpr SimplexL1Float32Kernels kFloat32Kernels = {scan_float32, keep_float32, finish_float32};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

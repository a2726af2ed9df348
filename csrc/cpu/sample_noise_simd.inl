// core/noise.h on vectors, the same operations on every lane; compiled once for each SIMD level. The includer defines
// PYROBUST_TARGET, the vector types F and I of kLanes floats and 32-bit words, kHalves, and their elementary operations.

// Counters in the low halves of 64-bit lanes: products and their high halves need no shuffle, and what is left in the upper
// halves is never read.
struct HalfState {
  I c0, c1, c2, c3;
};

PYROBUST_TARGET inline void philox_round(HalfState& s, I k0, I k1) {
  const I p0 = wide_product(s.c0, splat(kPhiloxMul0));
  const I p1 = wide_product(s.c2, splat(kPhiloxMul1));
  s.c0 = xor3(upper_halves(p1), s.c1, k0);
  s.c2 = xor3(upper_halves(p0), s.c3, k1);
  s.c1 = p1;
  s.c3 = p0;
}

// The keys of the rounds, spread over a register once for many counters.
struct RoundKeys {
  I k0[kPhiloxRounds], k1[kPhiloxRounds];
};

PYROBUST_TARGET inline RoundKeys round_keys(uint64_t seed) {
  RoundKeys keys;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    keys.k0[round] = splat(k0);
    keys.k1[round] = splat(k1);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return keys;
}

// The words of kLeafBlocks counters from `block` on, to z: for each group of kLanes counters word 0 of all, word 1, word 2,
// word 3. Several chains of products at once hide some of each other's latency.
PYROBUST_TARGET inline void store_words(const RoundKeys& keys, uint32_t domain, uint32_t image, uint32_t sample,
                                        uint32_t block, float* z) {
  HalfState half[kHalves];
#pragma GCC unroll 4
  for (int h = 0; h < kHalves; ++h)
    half[h] = {add(splat(block), counters_of_half(h)), splat(sample), splat(image), splat(domain)};
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
    for (int h = 0; h < kHalves; ++h) philox_round(half[h], keys.k0[round], keys.k1[round]);
  }
#pragma GCC unroll 2
  for (int group = 0; group < kHalves / 2; ++group) {
    const HalfState &first = half[2 * group], &second = half[2 * group + 1];
    float* words = z + 4 * kLanes * group;
    store(words, lower_halves(first.c0, second.c0));
    store(words + kLanes, lower_halves(first.c1, second.c1));
    store(words + 2 * kLanes, lower_halves(first.c2, second.c2));
    store(words + 3 * kLanes, lower_halves(first.c3, second.c3));
  }
}

// Brings the four values of each counter together inside 128-bit lanes; counters_of_half chose the lanes so that the blocks
// then stand in order.
PYROBUST_TARGET inline void store_blocks(float* z, F z0, F z1, F z2, F z3) {
  const F a = unpack_low(z0, z1), b = unpack_high(z0, z1), c = unpack_low(z2, z3), d = unpack_high(z2, z3);
  store(z, unpack_low_pairs(a, c));
  store(z + kLanes, unpack_high_pairs(a, c));
  store(z + 2 * kLanes, unpack_low_pairs(b, d));
  store(z + 3 * kLanes, unpack_high_pairs(b, d));
}

PYROBUST_TARGET inline F minus_two_log(I w) {
  using namespace noise;
  const F v = add(to_float(w), splat(0.5f));
  const I shifted = sub(as_words(v), splat(kSqrtHalfBits));
  const F m = as_floats(add(bit_and(shifted, splat(0x007fffffu)), splat(kSqrtHalfBits)));
  const F c = mul(to_float(sub(splat(31u), shift_right_signed<23>(shifted))), splat(kTwoLn2));
  const F t = sub(m, splat(1.0f));
  F p = fma(splat(kLog8), t, splat(kLog7));
  p = fma(p, t, splat(kLog6));
  p = fma(p, t, splat(kLog5));
  p = fma(p, t, splat(kLog4));
  p = fma(p, t, splat(kLog3));
  p = fma(p, t, splat(kLog2));
  p = fma(p, t, splat(kLog1));
  p = fma(p, t, splat(kLog0));
  return fma(t, p, c);
}

PYROBUST_TARGET inline F with_sign(F magnitude, I word) {
  return as_floats(bit_or(as_words(magnitude), bit_and(word, splat(0x80000000u))));
}

PYROBUST_TARGET inline void gaussian_pair(I radius_word, I angle_word, F& z0, F& z1) {
  using namespace noise;
  const F r = with_sign(root(minus_two_log(shift_right<1>(radius_word))), angle_word);
  const F x = mul(to_float(shift_left<2>(angle_word)), splat(kTwoToMinus31));
  const F q = mul(x, x);
  const F s = mul(fma(fma(fma(splat(kSin3), q, splat(kSin2)), q, splat(kSin1)), q, splat(kSin0)), x);
  const F c = fma(fma(fma(splat(kCos3), q, splat(kCos2)), q, splat(kCos1)), q, splat(kCos0));
  const I turn = shift_left<1>(angle_word);
  z0 = mul(r, select_by_sign(turn, s, c));
  z1 = mul(r, select_by_sign(turn, c, s));
}

template <Family family>
PYROBUST_TARGET inline F single(I w) {
  using namespace noise;
  if constexpr (family == Family::kUniform)
    return fma(to_float(w), splat(kUniformScale), splat(kUniformOffset));
  else
    return with_sign(mul(minus_two_log(bit_and(w, splat(0x7fffffffu))), splat(kLaplaceScale)), w);
}

// Two passes over a tile that stays in the first-level cache: the words, then the noise in their place. Together in one
// loop, the long chains of both would fill the reorder window before the next counters start.
template <Family family>
PYROBUST_TARGET void unit_noise(NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks,
                                float* z) {
  const RoundKeys keys = round_keys(key.seed);
  for (int64_t b = 0; b < blocks; b += kLeafBlocks)
    store_words(keys, key.domain, image, sample, block + static_cast<uint32_t>(b), z + 4 * b);
  for (int64_t b = 0; b < blocks; b += kLanes) {
    float* block_z = z + 4 * b;
    const I w0 = load(block_z), w1 = load(block_z + kLanes), w2 = load(block_z + 2 * kLanes),
            w3 = load(block_z + 3 * kLanes);
    F z0, z1, z2, z3;
    if constexpr (family == Family::kGaussian) {
      gaussian_pair(w0, w1, z0, z1);
      gaussian_pair(w2, w3, z2, z3);
    } else {
      z0 = single<family>(w0);
      z1 = single<family>(w1);
      z2 = single<family>(w2);
      z3 = single<family>(w3);
    }
    store_blocks(block_z, z0, z1, z2, z3);
  }
}

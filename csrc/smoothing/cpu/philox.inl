// Random words of the Philox generator, on the vectors of random_vec_<level>.h.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Counters in the low halves of 64-bit lanes: products and their high halves need no shuffle; the upper halves are
// never read.
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

PYROBUST_TARGET inline RoundKeys round_keys(uint64_t key) {
  RoundKeys keys;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    keys.k0[round] = splat(k0);
    keys.k1[round] = splat(k1);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return keys;
}

// Stores the words of kKernelBlocks counters from `block` on, to z: for each group of kLanes counters word 0 of all,
// word 1, word 2, word 3. Independent chains of products hide each other's latency.
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

// Brings the four values of each counter together inside 128-bit lanes; counters_of_half chose the lanes so that the
// blocks then stand in order.
PYROBUST_TARGET inline void store_blocks(float* z, F z0, F z1, F z2, F z3) {
  const F a = unpack_low(z0, z1), b = unpack_high(z0, z1), c = unpack_low(z2, z3), d = unpack_high(z2, z3);
  store(z, unpack_low_pairs(a, c));
  store(z + kLanes, unpack_high_pairs(a, c));
  store(z + 2 * kLanes, unpack_low_pairs(b, d));
  store(z + 3 * kLanes, unpack_high_pairs(b, d));
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

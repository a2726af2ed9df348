// sample_noise for AVX2 and FMA: eight counters at a time, the same operations as core/noise.h on each lane.
#ifdef __x86_64__
#include <immintrin.h>

#include "cpu/sample_noise_leaves.h"

#define PYROBUST_TARGET __attribute__((target("avx2,fma,f16c")))

namespace pyrobust::cpu {
namespace {

PYROBUST_TARGET inline void narrow(const float* y, Half* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(y + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; ++i) out[i] = to_half(y[i]);
}

#include "cpu/sample_noise_finish.inl"

// Four counters a register, one in the low half of each 64-bit lane: products and their high halves need no shuffle,
// and what is left in the upper halves is never read.
struct Half8 {
  __m256i c0, c1, c2, c3;
};

PYROBUST_TARGET inline void philox_round(Half8& s, __m256i k0, __m256i k1) {
  const __m256i p0 = _mm256_mul_epu32(s.c0, _mm256_set1_epi64x(kPhiloxMul0));
  const __m256i p1 = _mm256_mul_epu32(s.c2, _mm256_set1_epi64x(kPhiloxMul1));
  // The key goes to the word that is there already, off the chain of products.
  s.c0 = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(s.c1, k0));
  s.c2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(s.c3, k1));
  s.c1 = p1;
  s.c3 = p0;
}

PYROBUST_TARGET inline __m256i merge(__m256i first, __m256i second) {
  return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(first), _mm256_castsi256_ps(second), 0x88));
}

// The keys of the rounds, spread over a register once for many counters.
struct RoundKeys {
  __m256i k0[kPhiloxRounds], k1[kPhiloxRounds];
};

PYROBUST_TARGET inline RoundKeys round_keys(uint64_t seed) {
  RoundKeys keys;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    keys.k0[round] = _mm256_set1_epi32(static_cast<int>(k0));
    keys.k1[round] = _mm256_set1_epi32(static_cast<int>(k1));
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return keys;
}

// The words of counters block .. block+15 to z, as two groups of eight: word 0 of the eight, word 1, word 2, word 3.
// The lanes of a group hold counters 0 2 4 6 | 1 3 5 7: after the four words of a counter are brought together inside
// 128-bit lanes, the blocks stand in order. Four chains of products at once hide most of each other's latency.
PYROBUST_TARGET inline void store_words(const RoundKeys& keys, uint32_t domain, uint32_t image, uint32_t sample,
                                        uint32_t block, float* z) {
  const __m256i base = _mm256_set1_epi32(static_cast<int>(block));
  const __m256i c1 = _mm256_set1_epi32(static_cast<int>(sample)), c2 = _mm256_set1_epi32(static_cast<int>(image)),
                c3 = _mm256_set1_epi32(static_cast<int>(domain));
  Half8 half[4] = {{_mm256_add_epi32(base, _mm256_setr_epi64x(0, 2, 1, 3)), c1, c2, c3},
                   {_mm256_add_epi32(base, _mm256_setr_epi64x(4, 6, 5, 7)), c1, c2, c3},
                   {_mm256_add_epi32(base, _mm256_setr_epi64x(8, 10, 9, 11)), c1, c2, c3},
                   {_mm256_add_epi32(base, _mm256_setr_epi64x(12, 14, 13, 15)), c1, c2, c3}};
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
    for (int h = 0; h < 4; ++h) philox_round(half[h], keys.k0[round], keys.k1[round]);
  }
#pragma GCC unroll 2
  for (int group = 0; group < 2; ++group) {
    const Half8 &first = half[2 * group], &second = half[2 * group + 1];
    auto* words = reinterpret_cast<__m256i*>(z + 32 * group);
    _mm256_storeu_si256(words, merge(first.c0, second.c0));
    _mm256_storeu_si256(words + 1, merge(first.c1, second.c1));
    _mm256_storeu_si256(words + 2, merge(first.c2, second.c2));
    _mm256_storeu_si256(words + 3, merge(first.c3, second.c3));
  }
}

// Eight blocks of four: word j of block i to z[4 i + j].
PYROBUST_TARGET inline void store_blocks(float* z, __m256 z0, __m256 z1, __m256 z2, __m256 z3) {
  const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(z0, z1)), b = _mm256_castps_pd(_mm256_unpackhi_ps(z0, z1));
  const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(z2, z3)), d = _mm256_castps_pd(_mm256_unpackhi_ps(z2, z3));
  _mm256_storeu_ps(z, _mm256_castpd_ps(_mm256_unpacklo_pd(a, c)));
  _mm256_storeu_ps(z + 8, _mm256_castpd_ps(_mm256_unpackhi_pd(a, c)));
  _mm256_storeu_ps(z + 16, _mm256_castpd_ps(_mm256_unpacklo_pd(b, d)));
  _mm256_storeu_ps(z + 24, _mm256_castpd_ps(_mm256_unpackhi_pd(b, d)));
}

PYROBUST_TARGET inline __m256 minus_two_log(__m256i w) {
  using namespace noise;
  const __m256 v = _mm256_add_ps(_mm256_cvtepi32_ps(w), _mm256_set1_ps(0.5f));
  const __m256i root = _mm256_set1_epi32(static_cast<int>(kSqrtHalfBits));
  const __m256i shifted = _mm256_sub_epi32(_mm256_castps_si256(v), root);
  const __m256 m =
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_and_si256(shifted, _mm256_set1_epi32(0x007fffff)), root));
  const __m256i exponent = _mm256_sub_epi32(_mm256_set1_epi32(31), _mm256_srai_epi32(shifted, 23));
  const __m256 c = _mm256_mul_ps(_mm256_cvtepi32_ps(exponent), _mm256_set1_ps(kTwoLn2));
  const __m256 t = _mm256_sub_ps(m, _mm256_set1_ps(1.0f));
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kLog8), t, _mm256_set1_ps(kLog7));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(kLog6));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(kLog5));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(kLog4));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(kLog3));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(kLog2));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(kLog1));
  p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(kLog0));
  return _mm256_fmadd_ps(t, p, c);
}

PYROBUST_TARGET inline __m256 with_sign(__m256 magnitude, __m256i word) {
  return _mm256_or_ps(magnitude, _mm256_and_ps(_mm256_castsi256_ps(word), _mm256_set1_ps(-0.0f)));
}

PYROBUST_TARGET inline void gaussian_pair(__m256i radius_word, __m256i angle_word, __m256& z0, __m256& z1) {
  using namespace noise;
  const __m256 r = with_sign(_mm256_sqrt_ps(minus_two_log(_mm256_srli_epi32(radius_word, 1))), angle_word);
  const __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_slli_epi32(angle_word, 2)), _mm256_set1_ps(kTwoToMinus31));
  const __m256 q = _mm256_mul_ps(x, x);
  __m256 s = _mm256_fmadd_ps(_mm256_set1_ps(kSin3), q, _mm256_set1_ps(kSin2));
  s = _mm256_fmadd_ps(s, q, _mm256_set1_ps(kSin1));
  s = _mm256_mul_ps(_mm256_fmadd_ps(s, q, _mm256_set1_ps(kSin0)), x);
  __m256 c = _mm256_fmadd_ps(_mm256_set1_ps(kCos3), q, _mm256_set1_ps(kCos2));
  c = _mm256_fmadd_ps(c, q, _mm256_set1_ps(kCos1));
  c = _mm256_fmadd_ps(c, q, _mm256_set1_ps(kCos0));
  const __m256 turn = _mm256_castsi256_ps(_mm256_slli_epi32(angle_word, 1));  // bit 30 to the sign, which blends
  z0 = _mm256_mul_ps(r, _mm256_blendv_ps(c, s, turn));
  z1 = _mm256_mul_ps(r, _mm256_blendv_ps(s, c, turn));
}

template <Family family>
PYROBUST_TARGET inline __m256 single(__m256i w) {
  using namespace noise;
  if constexpr (family == Family::kUniform)
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(w), _mm256_set1_ps(kUniformScale), _mm256_set1_ps(kUniformOffset));
  else
    return with_sign(
        _mm256_mul_ps(minus_two_log(_mm256_and_si256(w, _mm256_set1_epi32(0x7fffffff))), _mm256_set1_ps(kLaplaceScale)),
        w);
}

// Two passes over a tile that stays in the first-level cache: the words, then the noise in their place. One after the
// other each has short chains of dependent operations next to many independent ones; interleaved, they fill the reorder
// window before the next counters start.
template <Family family>
PYROBUST_TARGET void unit_noise(NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks,
                                float* z) {
  const RoundKeys keys = round_keys(key.seed);
  for (int64_t b = 0; b < blocks; b += 16)
    store_words(keys, key.domain, image, sample, block + static_cast<uint32_t>(b), z + 4 * b);
  for (int64_t b = 0; b < blocks; b += 8) {
    const auto* words = reinterpret_cast<const __m256i*>(z + 4 * b);
    const __m256i w0 = _mm256_loadu_si256(words), w1 = _mm256_loadu_si256(words + 1),
                  w2 = _mm256_loadu_si256(words + 2), w3 = _mm256_loadu_si256(words + 3);
    __m256 z0, z1, z2, z3;
    if constexpr (family == Family::kGaussian) {
      gaussian_pair(w0, w1, z0, z1);
      gaussian_pair(w2, w3, z2, z3);
    } else {
      z0 = single<family>(w0);
      z1 = single<family>(w1);
      z2 = single<family>(w2);
      z3 = single<family>(w3);
    }
    store_blocks(z + 4 * b, z0, z1, z2, z3);
  }
}

}  // namespace

const NoiseLeaves kNoiseAvx2 = {
    {unit_noise<Family::kGaussian>, unit_noise<Family::kUniform>, unit_noise<Family::kLaplace>},
    finish<float, float>,
    finish<double, double>,
    finish<Half, float>,
    finish<BFloat16, float>};

}  // namespace pyrobust::cpu
#endif  // __x86_64__

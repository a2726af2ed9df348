// sample_noise for AVX-512: sixteen counters at a time, the same operations as core/noise.h on each lane.
#ifdef __x86_64__
#include <immintrin.h>

#include "cpu/sample_noise_leaves.h"

#define PYROBUST_TARGET __attribute__((target("avx512f,avx512vl,avx2,fma,f16c")))

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

struct Words16 {
  __m512i w[4];
};

// Eight counters a register, one in the low half of each 64-bit lane; the upper halves are never read.
struct Half16 {
  __m512i c0, c1, c2, c3;
};

inline constexpr int kXor3 = 0x96;

PYROBUST_TARGET inline void philox_round(Half16& s, __m512i k0, __m512i k1) {
  const __m512i p0 = _mm512_mul_epu32(s.c0, _mm512_set1_epi64(kPhiloxMul0));
  const __m512i p1 = _mm512_mul_epu32(s.c2, _mm512_set1_epi64(kPhiloxMul1));
  s.c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), s.c1, k0, kXor3);
  s.c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), s.c3, k1, kXor3);
  s.c1 = p1;
  s.c3 = p0;
}

PYROBUST_TARGET inline __m512i merge(__m512i first, __m512i second) {
  return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(first), _mm512_castsi512_ps(second), 0x88));
}

// The keys of the rounds, spread over a register once for many counters.
struct RoundKeys {
  __m512i k0[kPhiloxRounds], k1[kPhiloxRounds];
};

PYROBUST_TARGET inline RoundKeys round_keys(uint64_t seed) {
  RoundKeys keys;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    keys.k0[round] = _mm512_set1_epi32(static_cast<int>(k0));
    keys.k1[round] = _mm512_set1_epi32(static_cast<int>(k1));
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return keys;
}

// The words of counters block .. block+15. The lanes hold counters 0 4 8 12 | 1 5 9 13 | 2 6 10 14 | 3 7 11 15: after
// the four words of a counter are brought together inside 128-bit lanes, the blocks stand in order.
PYROBUST_TARGET inline Words16 philox16(const RoundKeys& keys, uint32_t domain, uint32_t image, uint32_t sample,
                                        uint32_t block) {
  const __m512i base = _mm512_set1_epi32(static_cast<int>(block));
  const __m512i c1 = _mm512_set1_epi32(static_cast<int>(sample)), c2 = _mm512_set1_epi32(static_cast<int>(image)),
                c3 = _mm512_set1_epi32(static_cast<int>(domain));
  Half16 first{_mm512_add_epi32(base, _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7)), c1, c2, c3};
  Half16 second{_mm512_add_epi32(base, _mm512_setr_epi64(8, 12, 9, 13, 10, 14, 11, 15)), c1, c2, c3};
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(first, keys.k0[round], keys.k1[round]);
    philox_round(second, keys.k0[round], keys.k1[round]);
  }
  return {
      {merge(first.c0, second.c0), merge(first.c1, second.c1), merge(first.c2, second.c2), merge(first.c3, second.c3)}};
}

// Sixteen blocks of four: word j of block i to z[4 i + j].
PYROBUST_TARGET inline void store_blocks(float* z, __m512 z0, __m512 z1, __m512 z2, __m512 z3) {
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(z0, z1)), b = _mm512_castps_pd(_mm512_unpackhi_ps(z0, z1));
  const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(z2, z3)), d = _mm512_castps_pd(_mm512_unpackhi_ps(z2, z3));
  _mm512_storeu_ps(z, _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)));
  _mm512_storeu_ps(z + 16, _mm512_castpd_ps(_mm512_unpackhi_pd(a, c)));
  _mm512_storeu_ps(z + 32, _mm512_castpd_ps(_mm512_unpacklo_pd(b, d)));
  _mm512_storeu_ps(z + 48, _mm512_castpd_ps(_mm512_unpackhi_pd(b, d)));
}

PYROBUST_TARGET inline __m512 minus_two_log(__m512i w) {
  using namespace noise;
  const __m512 v = _mm512_add_ps(_mm512_cvtepi32_ps(w), _mm512_set1_ps(0.5f));
  const __m512i root = _mm512_set1_epi32(static_cast<int>(kSqrtHalfBits));
  const __m512i shifted = _mm512_sub_epi32(_mm512_castps_si512(v), root);
  const __m512 m =
      _mm512_castsi512_ps(_mm512_add_epi32(_mm512_and_si512(shifted, _mm512_set1_epi32(0x007fffff)), root));
  const __m512i exponent = _mm512_sub_epi32(_mm512_set1_epi32(31), _mm512_srai_epi32(shifted, 23));
  const __m512 c = _mm512_mul_ps(_mm512_cvtepi32_ps(exponent), _mm512_set1_ps(kTwoLn2));
  const __m512 t = _mm512_sub_ps(m, _mm512_set1_ps(1.0f));
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kLog8), t, _mm512_set1_ps(kLog7));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(kLog6));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(kLog5));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(kLog4));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(kLog3));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(kLog2));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(kLog1));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(kLog0));
  return _mm512_fmadd_ps(t, p, c);
}

PYROBUST_TARGET inline __m512 with_sign(__m512 magnitude, __m512i word) {
  const __m512i sign = _mm512_and_si512(word, _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(magnitude), sign));
}

PYROBUST_TARGET inline void gaussian_pair(__m512i radius_word, __m512i angle_word, __m512& z0, __m512& z1) {
  using namespace noise;
  const __m512 r = with_sign(_mm512_sqrt_ps(minus_two_log(_mm512_srli_epi32(radius_word, 1))), angle_word);
  const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_slli_epi32(angle_word, 2)), _mm512_set1_ps(kTwoToMinus31));
  const __m512 q = _mm512_mul_ps(x, x);
  __m512 s = _mm512_fmadd_ps(_mm512_set1_ps(kSin3), q, _mm512_set1_ps(kSin2));
  s = _mm512_fmadd_ps(s, q, _mm512_set1_ps(kSin1));
  s = _mm512_mul_ps(_mm512_fmadd_ps(s, q, _mm512_set1_ps(kSin0)), x);
  __m512 c = _mm512_fmadd_ps(_mm512_set1_ps(kCos3), q, _mm512_set1_ps(kCos2));
  c = _mm512_fmadd_ps(c, q, _mm512_set1_ps(kCos1));
  c = _mm512_fmadd_ps(c, q, _mm512_set1_ps(kCos0));
  const __mmask16 turn = _mm512_test_epi32_mask(angle_word, _mm512_set1_epi32(0x40000000));
  z0 = _mm512_mul_ps(r, _mm512_mask_blend_ps(turn, c, s));
  z1 = _mm512_mul_ps(r, _mm512_mask_blend_ps(turn, s, c));
}

template <Family family>
PYROBUST_TARGET inline __m512 single(__m512i w) {
  using namespace noise;
  if constexpr (family == Family::kUniform)
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(w), _mm512_set1_ps(kUniformScale), _mm512_set1_ps(kUniformOffset));
  else
    return with_sign(
        _mm512_mul_ps(minus_two_log(_mm512_and_si512(w, _mm512_set1_epi32(0x7fffffff))), _mm512_set1_ps(kLaplaceScale)),
        w);
}

// Two passes over a tile that stays in the first-level cache: the words, then the noise in their place. One after the
// other each has short chains of dependent operations next to many independent ones; interleaved, they fill the reorder
// window before the next counters start.
template <Family family>
PYROBUST_TARGET void unit_noise(NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks,
                                float* z) {
  const RoundKeys keys = round_keys(key.seed);
  for (int64_t b = 0; b < blocks; b += 16) {
    const Words16 words = philox16(keys, key.domain, image, sample, block + static_cast<uint32_t>(b));
    for (int j = 0; j < 4; ++j) _mm512_storeu_si512(reinterpret_cast<__m512i*>(z + 4 * b) + j, words.w[j]);
  }
  for (int64_t b = 0; b < blocks; b += 16) {
    const auto* words = reinterpret_cast<const __m512i*>(z + 4 * b);
    const __m512i w0 = _mm512_loadu_si512(words), w1 = _mm512_loadu_si512(words + 1),
                  w2 = _mm512_loadu_si512(words + 2), w3 = _mm512_loadu_si512(words + 3);
    __m512 z0, z1, z2, z3;
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

const NoiseLeaves kNoiseAvx512 = {
    {unit_noise<Family::kGaussian>, unit_noise<Family::kUniform>, unit_noise<Family::kLaplace>},
    finish<float, float>,
    finish<double, double>,
    finish<Half, float>,
    finish<BFloat16, float>};

}  // namespace pyrobust::cpu
#endif  // __x86_64__

// Eight SIMD lanes of floats and 32-bit words, for the noise kernels.
#pragma once

#include <immintrin.h>

#include "common/half.h"

namespace pyrobust::cpu::avx2 {
namespace {

constexpr bool kFastFused = true;  // a fused multiply-add is an instruction
using F = __m256;
using I = __m256i;
inline constexpr int64_t kLanes = 8;
inline constexpr int kHalves = 4;  // of kLanes / 2 counters, kKernelBlocks together

PYROBUST_TARGET inline F splat(float x) { return _mm256_set1_ps(x); }
PYROBUST_TARGET inline I splat(uint32_t w) { return _mm256_set1_epi32(static_cast<int>(w)); }
PYROBUST_TARGET inline I load(const float* z) { return _mm256_loadu_si256(reinterpret_cast<const I*>(z)); }
PYROBUST_TARGET inline void store(float* z, I w) { _mm256_storeu_si256(reinterpret_cast<I*>(z), w); }
PYROBUST_TARGET inline void store(float* z, F x) { _mm256_storeu_ps(z, x); }
PYROBUST_TARGET inline F as_floats(I w) { return _mm256_castsi256_ps(w); }
PYROBUST_TARGET inline I as_words(F x) { return _mm256_castps_si256(x); }

PYROBUST_TARGET inline I add(I a, I b) { return _mm256_add_epi32(a, b); }
PYROBUST_TARGET inline I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
PYROBUST_TARGET inline I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
PYROBUST_TARGET inline I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
template <int n>
PYROBUST_TARGET inline I shift_left(I a) {
  return _mm256_slli_epi32(a, n);
}
template <int n>
PYROBUST_TARGET inline I shift_right(I a) {
  return _mm256_srli_epi32(a, n);
}
template <int n>
PYROBUST_TARGET inline I shift_right_signed(I a) {
  return _mm256_srai_epi32(a, n);
}
// The key is combined with the word that is ready first, so that it does not lengthen the chain of products.
PYROBUST_TARGET inline I xor3(I a, I b, I key) { return _mm256_xor_si256(a, _mm256_xor_si256(b, key)); }

PYROBUST_TARGET inline I bit_xor(I a, I b) { return _mm256_xor_si256(a, b); }
PYROBUST_TARGET inline I shift_right_by(I a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
PYROBUST_TARGET inline I max_signed(I a, I b) { return _mm256_max_epi32(a, b); }
// a + 1 where x < y, both below 2^31.
PYROBUST_TARGET inline I add_where_below(I a, I x, I y) { return _mm256_sub_epi32(a, _mm256_cmpgt_epi32(y, x)); }
// a | w where x == y.
PYROBUST_TARGET inline I or_where_equal(I a, I x, I y, I w) {
  return _mm256_or_si256(a, _mm256_and_si256(_mm256_cmpeq_epi32(x, y), w));
}
PYROBUST_TARGET inline bool any_at_least(I a, int bound) {
  return _mm256_movemask_epi8(_mm256_cmpgt_epi32(a, _mm256_set1_epi32(bound - 1))) != 0;
}

PYROBUST_TARGET inline F to_float(I w) { return _mm256_cvtepi32_ps(w); }
PYROBUST_TARGET inline F add(F a, F b) { return _mm256_add_ps(a, b); }
PYROBUST_TARGET inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
PYROBUST_TARGET inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
PYROBUST_TARGET inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
PYROBUST_TARGET inline F root(F a) { return _mm256_sqrt_ps(a); }
PYROBUST_TARGET inline F select_by_sign(I sign, F yes, F no) { return _mm256_blendv_ps(no, yes, as_floats(sign)); }

PYROBUST_TARGET inline I wide_product(I a, I b) { return _mm256_mul_epu32(a, b); }
PYROBUST_TARGET inline I upper_halves(I a) { return _mm256_srli_epi64(a, 32); }
// The low halves of both, those of `first` before those of `second` in every 128-bit lane.
PYROBUST_TARGET inline I lower_halves(I first, I second) {
  return as_words(_mm256_shuffle_ps(as_floats(first), as_floats(second), 0x88));
}
PYROBUST_TARGET inline F unpack_low(F a, F b) { return _mm256_unpacklo_ps(a, b); }
PYROBUST_TARGET inline F unpack_high(F a, F b) { return _mm256_unpackhi_ps(a, b); }
PYROBUST_TARGET inline F unpack_low_pairs(F a, F b) {
  return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
PYROBUST_TARGET inline F unpack_high_pairs(F a, F b) {
  return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}

// After lower_halves a group's lanes hold counters 0 2 4 6 | 1 3 5 7.
PYROBUST_TARGET inline I counters_of_half(int half) {
  const I group = _mm256_set1_epi64x(8 * (half / 2));
  return add(group, half % 2 == 0 ? _mm256_setr_epi64x(0, 2, 1, 3) : _mm256_setr_epi64x(4, 6, 5, 7));
}

PYROBUST_TARGET inline void narrow(const float* y, Half* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(y + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; ++i) out[i] = to_half(y[i]);
}

}  // namespace
}  // namespace pyrobust::cpu::avx2

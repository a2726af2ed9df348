// Sixteen SIMD lanes of floats and 32-bit words, for the noise kernels.
#pragma once

#include <immintrin.h>

#include "common/half.h"

namespace pyrobust::cpu::avx512 {
namespace {

constexpr bool kFastFused = true;  // a fused multiply-add is an instruction
using F = __m512;
using I = __m512i;
inline constexpr int64_t kLanes = 16;
inline constexpr int kHalves = 2;  // of kLanes / 2 counters, kKernelBlocks together

PYROBUST_TARGET inline F splat(float x) { return _mm512_set1_ps(x); }
PYROBUST_TARGET inline I splat(uint32_t w) { return _mm512_set1_epi32(static_cast<int>(w)); }
PYROBUST_TARGET inline I load(const float* z) { return _mm512_loadu_si512(reinterpret_cast<const I*>(z)); }
PYROBUST_TARGET inline void store(float* z, I w) { _mm512_storeu_si512(reinterpret_cast<I*>(z), w); }
PYROBUST_TARGET inline void store(float* z, F x) { _mm512_storeu_ps(z, x); }
PYROBUST_TARGET inline F as_floats(I w) { return _mm512_castsi512_ps(w); }
PYROBUST_TARGET inline I as_words(F x) { return _mm512_castps_si512(x); }

PYROBUST_TARGET inline I add(I a, I b) { return _mm512_add_epi32(a, b); }
PYROBUST_TARGET inline I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
PYROBUST_TARGET inline I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
PYROBUST_TARGET inline I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
template <int n>
PYROBUST_TARGET inline I shift_left(I a) {
  return _mm512_slli_epi32(a, n);
}
template <int n>
PYROBUST_TARGET inline I shift_right(I a) {
  return _mm512_srli_epi32(a, n);
}
template <int n>
PYROBUST_TARGET inline I shift_right_signed(I a) {
  return _mm512_srai_epi32(a, n);
}
PYROBUST_TARGET inline I xor3(I a, I b, I key) { return _mm512_ternarylogic_epi64(a, b, key, 0x96); }

PYROBUST_TARGET inline I bit_xor(I a, I b) { return _mm512_xor_si512(a, b); }
PYROBUST_TARGET inline I shift_right_by(I a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
PYROBUST_TARGET inline I max_signed(I a, I b) { return _mm512_max_epi32(a, b); }
// a + 1 where x < y, both below 2^31.
PYROBUST_TARGET inline I add_where_below(I a, I x, I y) {
  return _mm512_mask_add_epi32(a, _mm512_cmplt_epi32_mask(x, y), a, _mm512_set1_epi32(1));
}
// a | w where x == y.
PYROBUST_TARGET inline I or_where_equal(I a, I x, I y, I w) {
  return _mm512_mask_or_epi32(a, _mm512_cmpeq_epi32_mask(x, y), a, w);
}
PYROBUST_TARGET inline bool any_at_least(I a, int bound) {
  return _mm512_cmpge_epi32_mask(a, _mm512_set1_epi32(bound)) != 0;
}

PYROBUST_TARGET inline F to_float(I w) { return _mm512_cvtepi32_ps(w); }
PYROBUST_TARGET inline F add(F a, F b) { return _mm512_add_ps(a, b); }
PYROBUST_TARGET inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
PYROBUST_TARGET inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
PYROBUST_TARGET inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
PYROBUST_TARGET inline F root(F a) { return _mm512_sqrt_ps(a); }
PYROBUST_TARGET inline F select_by_sign(I sign, F yes, F no) {
  return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(sign, _mm512_setzero_si512()), no, yes);
}

PYROBUST_TARGET inline I wide_product(I a, I b) { return _mm512_mul_epu32(a, b); }
PYROBUST_TARGET inline I upper_halves(I a) { return _mm512_srli_epi64(a, 32); }
// The low halves of both, those of `first` before those of `second` in every 128-bit lane.
PYROBUST_TARGET inline I lower_halves(I first, I second) {
  return as_words(_mm512_shuffle_ps(as_floats(first), as_floats(second), 0x88));
}
PYROBUST_TARGET inline F unpack_low(F a, F b) { return _mm512_unpacklo_ps(a, b); }
PYROBUST_TARGET inline F unpack_high(F a, F b) { return _mm512_unpackhi_ps(a, b); }
PYROBUST_TARGET inline F unpack_low_pairs(F a, F b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
PYROBUST_TARGET inline F unpack_high_pairs(F a, F b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

// After lower_halves the lanes hold counters 0 4 8 12 | 1 5 9 13 | 2 6 10 14 | 3 7 11 15.
PYROBUST_TARGET inline I counters_of_half(int half) {
  return half == 0 ? _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7) : _mm512_setr_epi64(8, 12, 9, 13, 10, 14, 11, 15);
}

PYROBUST_TARGET inline void narrow(const float* y, Half* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(y + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; ++i) out[i] = to_half(y[i]);
}

}  // namespace
}  // namespace pyrobust::cpu::avx512

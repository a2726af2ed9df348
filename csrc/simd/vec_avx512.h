// Eight float64 lanes in one AVX-512 register; vec_scalar.h documents each function.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "common/directed_rounding.h"
#include "common/half.h"

namespace pyrobust::cpu::avx512 {
namespace {

using V = __m512d;
constexpr int64_t kRegisters = 1;  // of the machine, in V and in W
constexpr int kSums = 24;          // number of vectors of sums that the registers hold beside their factors

PYROBUST_TARGET inline V splat(double a) { return _mm512_set1_pd(a); }
PYROBUST_TARGET inline V load(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
PYROBUST_TARGET inline V load(const double* p) { return _mm512_loadu_pd(p); }
PYROBUST_TARGET inline V add(V a, V b) { return _mm512_add_pd(a, b); }
PYROBUST_TARGET inline V sub(V a, V b) { return _mm512_sub_pd(a, b); }
PYROBUST_TARGET inline V mul(V a, V b) { return _mm512_mul_pd(a, b); }
PYROBUST_TARGET inline V fused(V a, V b, V c) { return _mm512_fmadd_pd(a, b, c); }
PYROBUST_TARGET inline V div(V a, V b) { return _mm512_div_pd(a, b); }
PYROBUST_TARGET inline V min(V a, V b) { return _mm512_min_pd(a, b); }
PYROBUST_TARGET inline V max(V a, V b) { return _mm512_max_pd(a, b); }
PYROBUST_TARGET inline V abs(V a) { return _mm512_abs_pd(a); }
PYROBUST_TARGET inline V with_sign(V a, V b) {
  const __m512i sign = _mm512_set1_epi64(INT64_MIN);
  return _mm512_castsi512_pd(
      _mm512_ternarylogic_epi64(_mm512_castpd_si512(a), _mm512_castpd_si512(b), sign, 0xd8));  // c ? b : a
}
PYROBUST_TARGET inline V where_less(V a, V b, V yes, V no) {
  return _mm512_mask_blend_pd(_mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), no, yes);
}
PYROBUST_TARGET inline unsigned less_bits(V a, V b) { return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ); }
PYROBUST_TARGET inline void put(double* p, V a) { _mm512_storeu_pd(p, a); }

PYROBUST_TARGET inline void put_toward(float* p, V a, V target) {
  const __m256 down = _mm512_cvt_roundpd_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const __m256 up = _mm512_cvt_roundpd_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  _mm256_storeu_ps(p, _mm256_mask_blend_ps(_mm512_cmp_pd_mask(a, target, _CMP_GT_OQ), up, down));
}
PYROBUST_TARGET inline void put_toward(double* p, V a, V) { _mm512_storeu_pd(p, a); }

PYROBUST_TARGET inline void put_nearest(float* p, V a) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(a)); }
PYROBUST_TARGET inline void put_nearest(double* p, V a) { put(p, a); }

PYROBUST_TARGET inline __m256 truncated(V a) {
  return _mm512_cvt_roundpd_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
PYROBUST_TARGET inline V widened(__m256 a) { return _mm512_cvtps_pd(a); }
PYROBUST_TARGET inline V put_truncated(float* p, V a) {
  const __m256 rounded = truncated(a);
  _mm256_storeu_ps(p, rounded);
  return widened(rounded);
}
PYROBUST_TARGET inline V put_truncated(double* p, V a) {
  _mm512_storeu_pd(p, a);
  return a;
}

// In a register: a compressing store is an order of magnitude slower on some machines.
PYROBUST_TARGET inline __m256 packed(__m256 a, unsigned keep) {
  return _mm256_maskz_compress_ps(static_cast<__mmask8>(keep), a);
}
PYROBUST_TARGET inline int pack(float* out, const float* in, unsigned keep) {
  _mm256_storeu_ps(out, packed(_mm256_loadu_ps(in), keep));
  return __builtin_popcount(keep);
}
PYROBUST_TARGET inline int pack(double* out, V a, unsigned keep) {
  _mm512_storeu_pd(out, _mm512_maskz_compress_pd(static_cast<__mmask8>(keep), a));
  return __builtin_popcount(keep);
}
PYROBUST_TARGET inline int pack(double* out, const double* in, unsigned keep) { return pack(out, load(in), keep); }

// Eight float32 lanes.
using H = __m256;

PYROBUST_TARGET inline H eight(float a) { return _mm256_set1_ps(a); }
PYROBUST_TARGET inline H load_eight(const float* p) { return _mm256_loadu_ps(p); }
PYROBUST_TARGET inline void put(float* p, H a) { _mm256_storeu_ps(p, a); }
PYROBUST_TARGET inline H add(H a, H b) { return _mm256_add_ps(a, b); }
PYROBUST_TARGET inline H fused(H a, H b, H c) { return _mm256_fmadd_ps(a, b, c); }

// Sixteen float32 lanes.
using W = __m512;

PYROBUST_TARGET inline W wide(float a) { return _mm512_set1_ps(a); }
PYROBUST_TARGET inline W load_wide(const float* p) { return _mm512_loadu_ps(p); }
PYROBUST_TARGET inline void put(float* p, W a) { _mm512_storeu_ps(p, a); }
PYROBUST_TARGET inline W add(W a, W b) { return _mm512_add_ps(a, b); }
PYROBUST_TARGET inline W sub(W a, W b) { return _mm512_sub_ps(a, b); }
PYROBUST_TARGET inline W mul(W a, W b) { return _mm512_mul_ps(a, b); }
PYROBUST_TARGET inline W fused(W a, W b, W c) { return _mm512_fmadd_ps(a, b, c); }
PYROBUST_TARGET inline W max(W a, W b) { return _mm512_max_ps(a, b); }
PYROBUST_TARGET inline W abs(W a) { return _mm512_abs_ps(a); }
PYROBUST_TARGET inline W div(W a, W b) { return _mm512_div_ps(a, b); }
PYROBUST_TARGET inline W narrow(V a, V b) {
  const __m512d low = _mm512_castps_pd(_mm512_castps256_ps512(_mm512_cvtpd_ps(a)));
  return _mm512_castpd_ps(_mm512_insertf64x4(low, _mm256_castps_pd(_mm512_cvtpd_ps(b)), 1));
}

// Each block of four lanes of a, b, c, d as a 4 x 4 matrix, transposed.
PYROBUST_TARGET inline void transpose(const W* in, W* out) {
  const __m512d ab = _mm512_castps_pd(_mm512_unpacklo_ps(in[0], in[1]));
  const __m512d ab_high = _mm512_castps_pd(_mm512_unpackhi_ps(in[0], in[1]));
  const __m512d cd = _mm512_castps_pd(_mm512_unpacklo_ps(in[2], in[3]));
  const __m512d cd_high = _mm512_castps_pd(_mm512_unpackhi_ps(in[2], in[3]));
  out[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
  out[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
  out[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_high, cd_high));
  out[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_high, cd_high));
}
PYROBUST_TARGET inline void load_columns(const float* rows, int64_t apart, W* columns) {
  W four[4];
  for (int i = 0; i < 4; ++i) {
    const float* p = rows + i * apart;
    W row = _mm512_castps128_ps512(_mm_loadu_ps(p));
    row = _mm512_insertf32x4(row, _mm_loadu_ps(p + 4 * apart), 1);
    row = _mm512_insertf32x4(row, _mm_loadu_ps(p + 8 * apart), 2);
    four[i] = _mm512_insertf32x4(row, _mm_loadu_ps(p + 12 * apart), 3);
  }
  transpose(four, columns);
}
PYROBUST_TARGET inline void store_columns(float* rows, int64_t apart, const W* columns) {
  W four[4];
  transpose(columns, four);
  for (int i = 0; i < 4; ++i) {
    float* p = rows + i * apart;
    _mm_storeu_ps(p, _mm512_castps512_ps128(four[i]));
    _mm_storeu_ps(p + 4 * apart, _mm512_extractf32x4_ps(four[i], 1));
    _mm_storeu_ps(p + 8 * apart, _mm512_extractf32x4_ps(four[i], 2));
    _mm_storeu_ps(p + 12 * apart, _mm512_extractf32x4_ps(four[i], 3));
  }
}
PYROBUST_TARGET inline V first(W a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
PYROBUST_TARGET inline V last(W a) {
  return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1)));
}
PYROBUST_TARGET inline W with_sign(W a, W b) {
  return _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b), _mm512_set1_epi32(INT32_MIN), 0xd8));
}
PYROBUST_TARGET inline W where_less(W a, W b, W yes) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes);
}
PYROBUST_TARGET inline W min(W a, W b) { return _mm512_min_ps(a, b); }
PYROBUST_TARGET inline W where_less(W a, W b, W yes, W no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
PYROBUST_TARGET inline W one_less_where_less(W a, W b, W s) {
  const __m512i word = _mm512_castps_si512(s);
  return _mm512_castsi512_ps(
      _mm512_mask_sub_epi32(word, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), word, _mm512_set1_epi32(1)));
}
PYROBUST_TARGET inline unsigned less_bits(W a, W b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
PYROBUST_TARGET inline int pack(float* out, W a, unsigned keep) {
  _mm512_storeu_ps(out, _mm512_maskz_compress_ps(static_cast<__mmask16>(keep), a));
  return __builtin_popcount(keep);
}

// Load and store the first n lanes, n less than a vector holds; the others are zero or untouched.
constexpr bool kMaskedLanes = true;
PYROBUST_TARGET inline W load_first(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
PYROBUST_TARGET inline V load_first(const double* p, int64_t n) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1), p);
}
PYROBUST_TARGET inline void store_first(float* p, int64_t n, W a) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), a);
}
PYROBUST_TARGET inline void store_first(double* p, int64_t n, V a) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1), a);
}

// Keeps a in a register: compilers otherwise reload it for every use.
PYROBUST_TARGET inline void in_register(V& a) { asm("" : "+v"(a)); }
PYROBUST_TARGET inline void in_register(W& a) { asm("" : "+v"(a)); }

}  // namespace
}  // namespace pyrobust::cpu::avx512

#include "simd/vec_half.inl"

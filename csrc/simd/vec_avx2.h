// Eight float64 lanes in two AVX2 registers; vec_scalar.h documents each function.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstdint>

#include "common/directed_rounding.h"
#include "common/half.h"

namespace pyrobust::cpu::avx2 {
namespace {

struct V {
  __m256d low, high;
};
constexpr int64_t kRegisters = 2;  // of the machine, in V and in W
constexpr int kSums = 4;           // number of vectors of sums that the registers hold beside their factors

PYROBUST_TARGET inline V splat(double a) { return {_mm256_set1_pd(a), _mm256_set1_pd(a)}; }
PYROBUST_TARGET inline V load(const float* p) {
  return {_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))};
}
PYROBUST_TARGET inline V load(const double* p) { return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
PYROBUST_TARGET inline V add(V a, V b) { return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)}; }
PYROBUST_TARGET inline V sub(V a, V b) { return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)}; }
PYROBUST_TARGET inline V mul(V a, V b) { return {_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high)}; }
PYROBUST_TARGET inline V fused(V a, V b, V c) {
  return {_mm256_fmadd_pd(a.low, b.low, c.low), _mm256_fmadd_pd(a.high, b.high, c.high)};
}
PYROBUST_TARGET inline V div(V a, V b) { return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)}; }
PYROBUST_TARGET inline V min(V a, V b) { return {_mm256_min_pd(a.low, b.low), _mm256_min_pd(a.high, b.high)}; }
PYROBUST_TARGET inline V max(V a, V b) { return {_mm256_max_pd(a.low, b.low), _mm256_max_pd(a.high, b.high)}; }
PYROBUST_TARGET inline V abs(V a) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return {_mm256_andnot_pd(sign, a.low), _mm256_andnot_pd(sign, a.high)};
}
PYROBUST_TARGET inline V with_sign(V a, V b) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  return {_mm256_or_pd(_mm256_andnot_pd(sign, a.low), _mm256_and_pd(sign, b.low)),
          _mm256_or_pd(_mm256_andnot_pd(sign, a.high), _mm256_and_pd(sign, b.high))};
}
PYROBUST_TARGET inline V where_less(V a, V b, V yes, V no) {
  return {_mm256_blendv_pd(no.low, yes.low, _mm256_cmp_pd(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_pd(no.high, yes.high, _mm256_cmp_pd(a.high, b.high, _CMP_LT_OQ))};
}
PYROBUST_TARGET inline unsigned less_bits(V a, V b) {
  return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a.low, b.low, _CMP_LT_OQ)) |
                               _mm256_movemask_pd(_mm256_cmp_pd(a.high, b.high, _CMP_LT_OQ)) << 4);
}
PYROBUST_TARGET inline void put(double* p, V a) {
  _mm256_storeu_pd(p, a.low);
  _mm256_storeu_pd(p + 4, a.high);
}

// The four masks of 64 bits as masks of 32.
PYROBUST_TARGET inline __m128i narrow(__m256d mask) {
  const __m256i halves = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(mask), halves));
}

// Four lanes: rounding to nearest, then one step on the bits where that went past a. As ordered integers, negative
// floats count down, and both zeros are next to the smallest numbers.
PYROBUST_TARGET inline __m128 toward(__m256d a, __m256d target) {
  const __m128 nearest = _mm256_cvtpd_ps(a);
  const __m256d value = _mm256_cvtps_pd(nearest);
  const __m256d high = _mm256_and_pd(_mm256_cmp_pd(a, target, _CMP_GT_OQ), _mm256_cmp_pd(value, a, _CMP_GT_OQ));
  const __m256d low = _mm256_and_pd(_mm256_cmp_pd(a, target, _CMP_LT_OQ), _mm256_cmp_pd(value, a, _CMP_LT_OQ));
  if (_mm256_movemask_pd(_mm256_or_pd(high, low)) == 0) return nearest;
  const __m128i zero = _mm_setzero_si128(), ones = _mm_set1_epi32(-1), magnitude = _mm_set1_epi32(0x7fffffff);
  __m128i w = _mm_castps_si128(nearest);
  w = _mm_xor_si128(w, _mm_and_si128(_mm_srai_epi32(w, 31), magnitude));
  const __m128i down = narrow(high), up = narrow(low);  // -1 where a step is due
  // -0 is -1 and +0 is 0 in this order: one more step leads past the other zero.
  w = _mm_add_epi32(w, _mm_add_epi32(down, _mm_and_si128(down, _mm_cmpeq_epi32(w, zero))));
  w = _mm_sub_epi32(w, _mm_add_epi32(up, _mm_and_si128(up, _mm_cmpeq_epi32(w, ones))));
  return _mm_castsi128_ps(_mm_xor_si128(w, _mm_and_si128(_mm_srai_epi32(w, 31), magnitude)));
}
PYROBUST_TARGET inline void put_toward(float* p, V a, V target) {
  _mm_storeu_ps(p, toward(a.low, target.low));
  _mm_storeu_ps(p + 4, toward(a.high, target.high));
}
PYROBUST_TARGET inline void put_toward(double* p, V a, V) { put(p, a); }

PYROBUST_TARGET inline void put_nearest(float* p, V a) {
  _mm256_storeu_ps(p, _mm256_set_m128(_mm256_cvtpd_ps(a.high), _mm256_cvtpd_ps(a.low)));
}
PYROBUST_TARGET inline void put_nearest(double* p, V a) { put(p, a); }

// Toward zero, the nearest number is off by at most one step, and never at zero.
PYROBUST_TARGET inline __m128 truncated(__m256d a) {
  const __m256d sign = _mm256_set1_pd(-0.0);
  const __m128 nearest = _mm256_cvtpd_ps(a);
  const __m256d beyond =
      _mm256_cmp_pd(_mm256_andnot_pd(sign, _mm256_cvtps_pd(nearest)), _mm256_andnot_pd(sign, a), _CMP_GT_OQ);
  return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(nearest), narrow(beyond)));
}
PYROBUST_TARGET inline __m256 truncated(V a) { return _mm256_set_m128(truncated(a.high), truncated(a.low)); }
PYROBUST_TARGET inline V widened(__m256 a) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(a)), _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1))};
}
PYROBUST_TARGET inline V put_truncated(float* p, V a) {
  const __m128 low = truncated(a.low), high = truncated(a.high);
  _mm_storeu_ps(p, low);
  _mm_storeu_ps(p + 4, high);
  return {_mm256_cvtps_pd(low), _mm256_cvtps_pd(high)};
}
PYROBUST_TARGET inline V put_truncated(double* p, V a) {
  put(p, a);
  return a;
}

// For each mask of eight bits, where its set bits are.
constexpr std::array<std::array<uint8_t, 8>, 256> kPackOrder = [] {
  std::array<std::array<uint8_t, 8>, 256> order{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned count = 0;
    for (uint8_t bit = 0; bit < 8; ++bit)
      if ((mask >> bit) & 1u) order[mask][count++] = bit;
  }
  return order;
}();

PYROBUST_TARGET inline __m256 packed(__m256 a, unsigned keep) {
  const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPackOrder[keep].data()));
  return _mm256_permutevar8x32_ps(a, _mm256_cvtepu8_epi32(order));
}
PYROBUST_TARGET inline int pack(float* out, const float* in, unsigned keep) {
  _mm256_storeu_ps(out, packed(_mm256_loadu_ps(in), keep));
  return __builtin_popcount(keep);
}
// For each mask of four bits, the pairs of 32 bits.
constexpr std::array<std::array<int32_t, 8>, 16> kPackPairs = [] {
  std::array<std::array<int32_t, 8>, 16> order{};
  for (unsigned mask = 0; mask < 16; ++mask)
    for (unsigned i = 0; i < 4; ++i) {
      order[mask][2 * i] = 2 * kPackOrder[mask][i];
      order[mask][2 * i + 1] = 2 * kPackOrder[mask][i] + 1;
    }
  return order;
}();

PYROBUST_TARGET inline __m256d packed(__m256d a, unsigned keep) {
  const __m256i order = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kPackPairs[keep].data()));
  return _mm256_castsi256_pd(_mm256_permutevar8x32_epi32(_mm256_castpd_si256(a), order));
}
PYROBUST_TARGET inline int pack(double* out, V a, unsigned keep) {
  const int first = __builtin_popcount(keep & 15u);
  _mm256_storeu_pd(out, packed(a.low, keep & 15u));
  _mm256_storeu_pd(out + first, packed(a.high, keep >> 4));
  return first + __builtin_popcount(keep >> 4);
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
struct W {
  __m256 low, high;
};

PYROBUST_TARGET inline W wide(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
PYROBUST_TARGET inline W load_wide(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PYROBUST_TARGET inline void put(float* p, W a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
PYROBUST_TARGET inline W add(W a, W b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
PYROBUST_TARGET inline W sub(W a, W b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
PYROBUST_TARGET inline W mul(W a, W b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
PYROBUST_TARGET inline W fused(W a, W b, W c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
PYROBUST_TARGET inline W max(W a, W b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
PYROBUST_TARGET inline W abs(W a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
PYROBUST_TARGET inline W div(W a, W b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
PYROBUST_TARGET inline W narrow(V a, V b) {
  return {_mm256_set_m128(_mm256_cvtpd_ps(a.high), _mm256_cvtpd_ps(a.low)),
          _mm256_set_m128(_mm256_cvtpd_ps(b.high), _mm256_cvtpd_ps(b.low))};
}

// Each block of four lanes of a, b, c, d as a 4 x 4 matrix, transposed.
PYROBUST_TARGET inline void transpose(const __m256* in, __m256* out) {
  const __m256d ab = _mm256_castps_pd(_mm256_unpacklo_ps(in[0], in[1]));
  const __m256d ab_high = _mm256_castps_pd(_mm256_unpackhi_ps(in[0], in[1]));
  const __m256d cd = _mm256_castps_pd(_mm256_unpacklo_ps(in[2], in[3]));
  const __m256d cd_high = _mm256_castps_pd(_mm256_unpackhi_ps(in[2], in[3]));
  out[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
  out[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
  out[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_high, cd_high));
  out[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_high, cd_high));
}
PYROBUST_TARGET inline void load_columns(const float* rows, int64_t apart, W* columns) {
  for (int half = 0; half < 2; ++half) {
    __m256 four[4], out[4];
    for (int i = 0; i < 4; ++i) {
      const float* p = rows + (8 * half + i) * apart;
      four[i] = _mm256_set_m128(_mm_loadu_ps(p + 4 * apart), _mm_loadu_ps(p));
    }
    transpose(four, out);
    for (int k = 0; k < 4; ++k) (half == 0 ? columns[k].low : columns[k].high) = out[k];
  }
}
PYROBUST_TARGET inline void store_columns(float* rows, int64_t apart, const W* columns) {
  for (int half = 0; half < 2; ++half) {
    __m256 four[4], out[4];
    for (int k = 0; k < 4; ++k) four[k] = half == 0 ? columns[k].low : columns[k].high;
    transpose(four, out);
    for (int i = 0; i < 4; ++i) {
      float* p = rows + (8 * half + i) * apart;
      _mm_storeu_ps(p, _mm256_castps256_ps128(out[i]));
      _mm_storeu_ps(p + 4 * apart, _mm256_extractf128_ps(out[i], 1));
    }
  }
}
PYROBUST_TARGET inline V first(W a) { return widened(a.low); }
PYROBUST_TARGET inline V last(W a) { return widened(a.high); }
PYROBUST_TARGET inline W with_sign(W a, W b) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, a.low), _mm256_and_ps(sign, b.low)),
          _mm256_or_ps(_mm256_andnot_ps(sign, a.high), _mm256_and_ps(sign, b.high))};
}
PYROBUST_TARGET inline W where_less(W a, W b, W yes) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), yes.low),
          _mm256_and_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ), yes.high)};
}
PYROBUST_TARGET inline W min(W a, W b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
PYROBUST_TARGET inline W where_less(W a, W b, W yes, W no) {
  return {_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
PYROBUST_TARGET inline __m256 one_less_where_less(__m256 a, __m256 b, __m256 s) {
  // The mask is -1 as an integer.
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(s), _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ))));
}
PYROBUST_TARGET inline W one_less_where_less(W a, W b, W s) {
  return {one_less_where_less(a.low, b.low, s.low), one_less_where_less(a.high, b.high, s.high)};
}
PYROBUST_TARGET inline unsigned less_bits(W a, W b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)) |
                               _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)) << 8);
}
PYROBUST_TARGET inline int pack(float* out, W a, unsigned keep) {
  const int first = __builtin_popcount(keep & 0xffu);
  _mm256_storeu_ps(out, packed(a.low, keep & 0xffu));
  _mm256_storeu_ps(out + first, packed(a.high, keep >> 8));
  return first + __builtin_popcount(keep >> 8);
}

constexpr bool kMaskedLanes = false;

// No-op: the level has too few registers to hold it.
inline void in_register(V&) {}
inline void in_register(W&) {}

}  // namespace
}  // namespace pyrobust::cpu::avx2

#include "simd/vec_half.inl"

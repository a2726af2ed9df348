// 16-bit floats at the levels of x86, through float32; vec_scalar.h documents each function.

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

PYROBUST_TARGET inline __m128i words(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
PYROBUST_TARGET inline void put(void* p, __m128i a) { _mm_storeu_si128(static_cast<__m128i*>(p), a); }
// The low words of eight numbers below 2^16.
PYROBUST_TARGET inline __m128i low_words(__m256i a) {
  return _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
PYROBUST_TARGET inline __m256 high_words(__m128i a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
}

PYROBUST_TARGET inline __m256 floats(const Half* p) { return _mm256_cvtph_ps(words(p)); }
PYROBUST_TARGET inline __m256 floats(const BFloat16* p) { return high_words(words(p)); }
template <class T>
  requires(sizeof(T) == 2)
PYROBUST_TARGET inline V load(const T* p) {
  return widened(floats(p));
}

// Toward zero, through float32 is as good as at once.
PYROBUST_TARGET inline V put_truncated(Half* p, V a) {
  const __m128i bits = _mm256_cvtps_ph(truncated(a), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  put(p, bits);
  return widened(_mm256_cvtph_ps(bits));
}
PYROBUST_TARGET inline V put_truncated(BFloat16* p, V a) {
  const __m128i bits = low_words(_mm256_srli_epi32(_mm256_castps_si256(truncated(a)), 16));
  put(p, bits);
  return widened(high_words(bits));
}

constexpr bool kHalfLanes = true;
template <class T>
PYROBUST_TARGET inline void widen_eight(const T* v, float* out) {
  _mm256_storeu_ps(out, floats(v));
}
PYROBUST_TARGET inline void put_nearest_eight(Half* p, const float* a) {
  put(p, _mm256_cvtps_ph(_mm256_loadu_ps(a), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PYROBUST_TARGET inline void put_nearest_eight(BFloat16* p, const float* a) {
  const __m256 v = _mm256_loadu_ps(a);
  const __m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 kept =
      _mm256_blendv_ps(_mm256_set1_ps(NAN), _mm256_castsi256_ps(rounded), _mm256_cmp_ps(v, v, _CMP_ORD_Q));
  put(p, low_words(_mm256_srli_epi32(_mm256_castps_si256(kept), 16)));
}

// Toward zero, then one step on the bits where that is the other side. No a is NaN.
template <class T>
PYROBUST_TARGET inline void put_toward_eight(T* p, const float* from, const float* to) {
  const __m256 a = _mm256_loadu_ps(from), target = _mm256_loadu_ps(to);
  __m128i bits;
  __m256 value;
  if constexpr (std::is_same_v<T, Half>) {
    bits = _mm256_cvtps_ph(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    value = _mm256_cvtph_ps(bits);
  } else {
    bits = low_words(_mm256_srli_epi32(_mm256_castps_si256(a), 16));
    value = high_words(bits);
  }
  const __m256 below = _mm256_and_ps(_mm256_cmp_ps(a, target, _CMP_LT_OQ), _mm256_cmp_ps(value, a, _CMP_LT_OQ));
  const __m256 above = _mm256_and_ps(_mm256_cmp_ps(a, target, _CMP_GT_OQ), _mm256_cmp_ps(value, a, _CMP_GT_OQ));
  const __m256i wrong = _mm256_castps_si256(_mm256_or_ps(below, above));
  const __m128i step = _mm_packs_epi32(_mm256_castsi256_si128(wrong), _mm256_extracti128_si256(wrong, 1));
  put(p, _mm_sub_epi16(bits, step));
}

template <class T>
  requires(sizeof(T) == 2)
PYROBUST_TARGET inline int pack(T* out, const T* in, unsigned keep) {
  const __m256 kept = packed(_mm256_castsi256_ps(_mm256_cvtepu16_epi32(words(in))), keep);
  put(out, low_words(_mm256_castps_si256(kept)));
  return __builtin_popcount(keep);
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

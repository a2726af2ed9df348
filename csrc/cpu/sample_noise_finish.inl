// The last step of a noisy batch, compiled once for each SIMD level: the includer defines PYROBUST_TARGET (the
// functions' target attribute) and PYROBUST_HALF(float), the nearest float16.

template <class Out>
PYROBUST_TARGET inline Out store_as(float value);

template <>
PYROBUST_TARGET inline float store_as<float>(float value) {
  return value;
}

template <>
PYROBUST_TARGET inline BFloat16 store_as<BFloat16>(float value) {
  return to_bfloat16(value);
}

template <>
PYROBUST_TARGET inline Half store_as<Half>(float value) {
  return PYROBUST_HALF(value);
}

PYROBUST_TARGET inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PYROBUST_TARGET inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <class Out, class Real>
PYROBUST_TARGET inline Out finished(Real value) {
  if constexpr (sizeof(Real) == 8)
    return value;
  else
    return store_as<Out>(value);
}

template <class Out, class Real>
PYROBUST_TARGET void finish(const float* __restrict z, const Real* __restrict x, Real sigma, const Real* mean,
                            const Real* std, Out* __restrict out, int64_t n, int64_t stride) {
  if (std == nullptr) {
    if (stride == 1)
      for (int64_t i = 0; i < n; ++i) out[i] = finished<Out, Real>(fused(sigma, static_cast<Real>(z[i]), x[i]));
    else
      for (int64_t i = 0; i < n; ++i)
        out[i * stride] = finished<Out, Real>(fused(sigma, static_cast<Real>(z[i]), x[i]));
  } else {
    const Real m = *mean, s = *std;
    if (stride == 1)
      for (int64_t i = 0; i < n; ++i)
        out[i] = finished<Out, Real>((fused(sigma, static_cast<Real>(z[i]), x[i]) - m) / s);
    else
      for (int64_t i = 0; i < n; ++i)
        out[i * stride] = finished<Out, Real>((fused(sigma, static_cast<Real>(z[i]), x[i]) - m) / s);
  }
}

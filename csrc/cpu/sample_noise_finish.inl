// x + sigma z into a batch, compiled once for each SIMD level, after cpu/noise_finish.inl.

PYROBUST_TARGET inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PYROBUST_TARGET inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <class Real>
struct Noisy {
  const float* __restrict z;
  const Real* __restrict x;
  Real sigma;

  PYROBUST_TARGET Real operator()(int64_t i) const { return fused(sigma, static_cast<Real>(z[i]), x[i]); }
  PYROBUST_TARGET Noisy from(int64_t i) const { return {z + i, x + i, sigma}; }
};

template <class Out, class Real>
PYROBUST_TARGET void finish(const float* z, const Real* x, Real sigma, const Real* mean, const Real* std, Out* out,
                            int64_t n, int64_t stride) {
  write_noisy(Noisy<Real>{z, x, sigma}, mean, std, out, n, stride);
}

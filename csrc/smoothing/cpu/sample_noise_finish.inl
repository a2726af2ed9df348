// x + sigma z into a batch, compiled once for each SIMD level, after cpu/noise_finish.inl.

PYROBUST_TARGET inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PYROBUST_TARGET inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <class Real>
struct Noisy {
  Real sigma;
  PYROBUST_TARGET Real operator()(float z, Real x) const { return fused(sigma, static_cast<Real>(z), x); }
};

template <class Out, class Real>
PYROBUST_TARGET void finish(const float* z, const Real* x, Real sigma, const Real* mean, const Real* std, Out* out,
                            int64_t n, int64_t stride) {
  write_noisy(z, x, Noisy<Real>{sigma}, mean, std, out, n, stride);
}

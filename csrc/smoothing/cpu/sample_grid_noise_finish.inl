// Sums of integers into a batch, compiled once for each SIMD level, after cpu/noise_finish.inl.

template <class Real>
struct GridNoisy {
  Real p, q;
  PYROBUST_TARGET Real operator()(int32_t j, int32_t k) const { return grid_value<Real>(grid_sum(k, j), p, q); }
};

#ifdef PYROBUST_FAST_FUSED
PYROBUST_TARGET inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PYROBUST_TARGET inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

inline constexpr int kShortBits = 20;

// The same bits without a division (Markstein, 1990), for a = sum p below 2^24 and a whole q below 2^20. With r the
// rounded 1/q, y0 = RN(a r) is within 2^-23 of a/q, relatively, and so less than two units in its last place away.
// a - q y0 is then a multiple of that unit (q is whole) of at most 21 bits, which the first fma gives exactly. What the
// second one rounds is within 2^-23 2^-24 of a/q, relatively; but a/q is no midpoint of two floats (that would take an a
// of 25 bits or more), and its relative distance from one is at least 1/(2^25 q) > 2^-45. So both round to the same float.
template <class Real>
struct ShortGridNoisy {
  Real p, q, r;
  PYROBUST_TARGET Real operator()(int32_t j, int32_t k) const {
    const Real a = static_cast<Real>(grid_sum(k, j)) * p, y = a * r;
    return fused(fused(-y, q, a), r, y);
  }
};
#endif

template <class Out, class Real>
PYROBUST_TARGET void finish(const int32_t* j, const int32_t* k, Real p, Real q, const Real* mean, const Real* std,
                            Out* out, int64_t n, int64_t stride) {
#ifdef PYROBUST_FAST_FUSED
  if (q < 1 << kShortBits) return write_noisy(j, k, ShortGridNoisy<Real>{p, q, Real(1) / q}, mean, std, out, n, stride);
#endif
  write_noisy(j, k, GridNoisy<Real>{p, q}, mean, std, out, n, stride);
}

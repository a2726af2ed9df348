// Sums of integers into a batch, compiled once for each SIMD level, after cpu/noise_finish.inl.

template <class Real>
struct GridNoisy {
  Real p, q;
  PYROBUST_TARGET Real operator()(int32_t j, int32_t k) const { return grid_value<Real>(grid_sum(k, j), p, q); }
};

template <class Out, class Real>
PYROBUST_TARGET void finish(const int32_t* j, const int32_t* k, Real p, Real q, const Real* mean, const Real* std,
                            Out* out, int64_t n, int64_t stride) {
  write_noisy(j, k, GridNoisy<Real>{p, q}, mean, std, out, n, stride);
}

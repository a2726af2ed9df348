// Sums of integers into a batch, compiled once for each SIMD level, after cpu/noise_finish.inl.

template <class Real>
struct GridNoisy {
  const int32_t* __restrict j;
  const int32_t* __restrict k;
  Real p, q;

  PYROBUST_TARGET Real operator()(int64_t i) const { return grid_value<Real>(grid_sum(k[i], j[i]), p, q); }
  PYROBUST_TARGET GridNoisy from(int64_t i) const { return {j + i, k + i, p, q}; }
};

template <class Out, class Real>
PYROBUST_TARGET void finish(const int32_t* j, const int32_t* k, Real p, Real q, const Real* mean, const Real* std,
                            Out* out, int64_t n, int64_t stride) {
  write_noisy(GridNoisy<Real>{j, k, p, q}, mean, std, out, n, stride);
}

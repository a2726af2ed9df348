// Writes noisy elements to the batch: scaled, normalised and rounded to the output's type.
// clang-format off
#include PYROBUST_LEVEL_HEADER(smoothing/cpu/random_vec)
// clang-format on

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

inline constexpr int64_t kStage = 256;  // elements staged in float32 on their way to 16 bits

PYROBUST_TARGET inline void narrow(const float* __restrict y, BFloat16* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_bfloat16(y[i]);
}

// y[i * stride] = (sum(z[i], x[i]) - mean) / std, the latter two where std is not null.
template <class Real, class Noise, class Image, class Sum>
PYROBUST_TARGET inline void normalized(const Noise* __restrict z, const Image* __restrict x, const Sum sum,
                                       const Real* mean, const Real* std, Real* __restrict y, int64_t n,
                                       int64_t stride) {
  if (std == nullptr) {
    if (stride == 1)
      for (int64_t i = 0; i < n; ++i) y[i] = sum(z[i], x[i]);
    else
      for (int64_t i = 0; i < n; ++i) y[i * stride] = sum(z[i], x[i]);
  } else {
    const Real m = *mean, s = *std;
    if (stride == 1)
      for (int64_t i = 0; i < n; ++i) y[i] = (sum(z[i], x[i]) - m) / s;
    else
      for (int64_t i = 0; i < n; ++i) y[i * stride] = (sum(z[i], x[i]) - m) / s;
  }
}

template <class Out, class Real, class Noise, class Image, class Sum>
PYROBUST_TARGET inline void write_noisy(const Noise* z, const Image* x, const Sum& sum, const Real* mean,
                                        const Real* std, Out* out, int64_t n, int64_t stride) {
  if constexpr (sizeof(Out) == sizeof(Real)) {
    normalized(z, x, sum, mean, std, out, n, stride);
  } else {
    Real y[kStage];
    Out narrowed[kStage];
    for (int64_t i = 0; i < n; i += kStage) {
      const int64_t m = n - i < kStage ? n - i : kStage;
      normalized(z + i, x + i, sum, mean, std, y, m, 1);
      if (stride == 1) {
        narrow(y, out + i, m);
      } else {
        narrow(y, narrowed, m);
        for (int64_t j = 0; j < m; ++j) out[(i + j) * stride] = narrowed[j];
      }
    }
  }
}

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

// The inner loops of sample_noise.
#include <cmath>

#include "simd/dispatch.h"
#include "smoothing/cpu/sample_noise_kernels.h"

#define PYROBUST_KERNELS "smoothing/cpu/sample_noise_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "smoothing/cpu/write_batch.inl"

#ifndef PYROBUST_SCALAR
#include "smoothing/cpu/philox.inl"
#endif

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

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

#ifdef PYROBUST_SCALAR

template <Family family>
void unit_noise(NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks, float* z) {
  for (int64_t b = 0; b < blocks; ++b)
    unit_noise4<family>(key, image, sample, block + static_cast<uint32_t>(b), z + 4 * b);
}

#else

PYROBUST_TARGET inline F minus_two_log(I w) {
  using namespace noise;
  const F v = add(to_float(w), splat(0.5f));
  const I shifted = sub(as_words(v), splat(kSqrtHalfBits));
  const F m = as_floats(add(bit_and(shifted, splat(0x007fffffu)), splat(kSqrtHalfBits)));
  const F c = mul(to_float(sub(splat(31u), shift_right_signed<23>(shifted))), splat(kTwoLn2));
  const F t = sub(m, splat(1.0f));
  F p = fma(splat(kLog8), t, splat(kLog7));
  p = fma(p, t, splat(kLog6));
  p = fma(p, t, splat(kLog5));
  p = fma(p, t, splat(kLog4));
  p = fma(p, t, splat(kLog3));
  p = fma(p, t, splat(kLog2));
  p = fma(p, t, splat(kLog1));
  p = fma(p, t, splat(kLog0));
  return fma(t, p, c);
}

PYROBUST_TARGET inline F with_sign(F magnitude, I word) {
  return as_floats(bit_or(as_words(magnitude), bit_and(word, splat(0x80000000u))));
}

PYROBUST_TARGET inline void gaussian_pair(I radius_word, I angle_word, F& z0, F& z1) {
  using namespace noise;
  const F r = with_sign(root(minus_two_log(shift_right<1>(radius_word))), angle_word);
  const F x = mul(to_float(shift_left<2>(angle_word)), splat(kTwoToMinus31));
  const F q = mul(x, x);
  const F s = mul(fma(fma(fma(splat(kSin3), q, splat(kSin2)), q, splat(kSin1)), q, splat(kSin0)), x);
  const F c = fma(fma(fma(splat(kCos3), q, splat(kCos2)), q, splat(kCos1)), q, splat(kCos0));
  const I turn = shift_left<1>(angle_word);
  z0 = mul(r, select_by_sign(turn, s, c));
  z1 = mul(r, select_by_sign(turn, c, s));
}

template <Family family>
PYROBUST_TARGET inline F single(I w) {
  using namespace noise;
  if constexpr (family == Family::kUniform)
    return fma(to_float(w), splat(kUniformScale), splat(kUniformOffset));
  else
    return with_sign(mul(minus_two_log(bit_and(w, splat(0x7fffffffu))), splat(kLaplaceScale)), w);
}

// Two passes over a tile that stays in the first-level cache: the words, then the noise in their place. In a single
// loop, the long dependency chains of both would fill the reorder window before the next counters start.
template <Family family>
PYROBUST_TARGET void unit_noise(NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks,
                                float* z) {
  const RoundKeys keys = round_keys(key.philox);
  for (int64_t b = 0; b < blocks; b += kKernelBlocks)
    store_words(keys, key.domain, image, sample, block + static_cast<uint32_t>(b), z + 4 * b);
  for (int64_t b = 0; b < blocks; b += kLanes) {
    float* block_z = z + 4 * b;
    const I w0 = load(block_z), w1 = load(block_z + kLanes), w2 = load(block_z + 2 * kLanes),
            w3 = load(block_z + 3 * kLanes);
    F z0, z1, z2, z3;
    if constexpr (family == Family::kGaussian) {
      gaussian_pair(w0, w1, z0, z1);
      gaussian_pair(w2, w3, z2, z3);
    } else {
      z0 = single<family>(w0);
      z1 = single<family>(w1);
      z2 = single<family>(w2);
      z3 = single<family>(w3);
    }
    store_blocks(block_z, z0, z1, z2, z3);
  }
}

#endif

constexpr NoiseKernels kKernels = {
    {unit_noise<Family::kGaussian>, unit_noise<Family::kUniform>, unit_noise<Family::kLaplace>},
    finish<float, float>,
    finish<double, double>,
    finish<Half, float>,
    finish<BFloat16, float>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

const NoiseKernels& noise_kernels() { return PYROBUST_AT_LEVEL(kKernels); }

}  // namespace pyrobust::cpu

#endif

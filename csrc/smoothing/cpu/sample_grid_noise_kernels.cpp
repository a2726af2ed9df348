// The inner loops of sample_grid_noise.
#include <algorithm>
#include <cstdlib>

#include "simd/dispatch.h"
#include "smoothing/cpu/sample_grid_noise_kernels.h"

#define PYROBUST_KERNELS "smoothing/cpu/sample_grid_noise_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "smoothing/cpu/write_batch.inl"

#ifndef PYROBUST_SCALAR
#include "smoothing/cpu/philox.inl"
#endif

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

template <class Real>
struct GridNoisy {
  Real p, q;
  PYROBUST_TARGET Real operator()(int32_t j, int32_t k) const { return grid_value<Real>(grid_sum(k, j), p, q); }
};

PYROBUST_TARGET inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
PYROBUST_TARGET inline double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

inline constexpr int kShortBits = 20;

// The same bits without a division (Markstein, 1990), for a = sum p below 2^24 and a whole q below 2^20. With r the
// rounded 1/q, y0 = RN(a r) is within 2^-23 of a/q, relatively, and so less than two units in its last place away. a -
// q y0 is then a multiple of that unit (q is whole) of at most 21 bits, which the first fma gives exactly. What the
// second one rounds is within 2^-23 2^-24 of a/q, relatively; but a/q is no midpoint of two floats (that would take an
// a of 25 bits or more), and its relative distance from one is at least 1/(2^25 q) > 2^-45. So both round to the same
// float.
template <class Real>
struct ShortGridNoisy {
  Real p, q, r;
  PYROBUST_TARGET Real operator()(int32_t j, int32_t k) const {
    const Real a = static_cast<Real>(grid_sum(k, j)) * p, y = a * r;
    return fused(fused(-y, q, a), r, y);
  }
};

template <class Out, class Real>
PYROBUST_TARGET void finish(const int32_t* j, const int32_t* k, Real p, Real q, const Real* mean, const Real* std,
                            Out* out, int64_t n, int64_t stride) {
  if constexpr (kFastFused)
    if (q < 1 << kShortBits)
      return write_noisy(j, k, ShortGridNoisy<Real>{p, q, Real(1) / q}, mean, std, out, n, stride);
  write_noisy(j, k, GridNoisy<Real>{p, q}, mean, std, out, n, stride);
}

#ifdef PYROBUST_SCALAR

bool draw(const GridTable& table, NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks,
          int32_t* j) {
  int32_t most = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    grid_noise4(table, key, image, sample, block + static_cast<uint32_t>(b), j + 4 * b);
    for (int i = 0; i < 4; ++i) most = std::max(most, std::abs(j[4 * b + i]));
  }
  return most >= table.count;
}

#else

inline constexpr int64_t kGroup = 4 * kKernelBlocks;  // elements that store_words makes at once

// Finds the cell of the guide that each word falls into, and replaces the word by its place on the guide's scale with
// the sign bit.
PYROBUST_TARGET inline void find_cells(int entry_bits, float* words, uint32_t* cells) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    const I w = load(words + i);
    const I flip = shift_right_signed<31>(w);
    const I odd = bit_or(bit_xor(w, flip), splat(1u));
    const I place = sub(as_words(to_float(odd)), splat(0x3f800000u));
    store(reinterpret_cast<float*>(cells + i), shift_right_by(place, entry_bits));
    store(words + i, bit_or(place, shift_left<31>(flip)));
  }
}

// Uses plain loads: a gather is slower on some machines and hardly faster on others.
PYROBUST_TARGET inline void look_up(const uint32_t* __restrict guide, const uint32_t* __restrict cells,
                                    uint32_t* __restrict entries) {
  const auto at = [=](int64_t i) { return static_cast<int>(guide[cells[i]]); };
#pragma GCC unroll 16
  for (int64_t i = 0; i < kGroup; i += 4) {
    __m128i four = _mm_cvtsi32_si128(at(i));
    four = _mm_insert_epi32(four, at(i + 1), 1);
    four = _mm_insert_epi32(four, at(i + 2), 2);
    four = _mm_insert_epi32(four, at(i + 3), 3);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(entries + i), four);
  }
}

// Stands for a |J| that the guide does not decide.
inline constexpr int32_t kUndecided = 1 << 30;

// Computes the signed J of one place and entry for each SIMD lane; `most` collects the largest magnitude.
PYROBUST_TARGET inline I integers(int entry_bits, I mask, I signed_place, I entry, I& most) {
  const I flip = shift_right_signed<31>(signed_place);
  const I inside = bit_and(signed_place, mask), at = bit_and(entry, mask);
  const I below = add_where_below(shift_right_by(entry, entry_bits), inside, at);
  const I above = or_where_equal(below, inside, at, splat(uint32_t{kUndecided}));
  most = max_signed(most, above);
  return sub(flip, bit_xor(above, flip));  // above where the sign bit is set, else -above
}

// Replaces the words of a group by its integers, in the order of its elements; returns whether any is undecided or a
// tail.
PYROBUST_TARGET inline bool finish_group(int entry_bits, int32_t count, float* words, const uint32_t* entries) {
  const I mask = splat((1u << entry_bits) - 1u);
  I most = splat(0u);
#pragma GCC unroll 2
  for (int64_t at = 0; at < kGroup; at += 4 * kLanes) {
    I j[4];
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t from = at + i * kLanes;
      const I entry = load(reinterpret_cast<const float*>(entries + from));
      j[i] = integers(entry_bits, mask, load(words + from), entry, most);
    }
    store_blocks(words + at, as_floats(j[0]), as_floats(j[1]), as_floats(j[2]), as_floats(j[3]));
  }
  return any_at_least(most, count);
}

// Redraws, element by element, the blocks of a group with an undecided integer or a tail; returns whether there is a
// tail. Rare, and kept out of the loop, which would otherwise spill registers for it.
__attribute__((noinline, cold)) bool redraw(const GridTable& table, NoiseKey key, uint32_t image, uint32_t sample,
                                            uint32_t block, int32_t* j) {
  const auto beyond = [&](int32_t integer) { return integer >= table.count || -integer >= table.count; };
  bool tail = false;
  for (int64_t i = 0; i < kGroup; i += 4) {
    if (std::none_of(j + i, j + i + 4, beyond)) continue;
    grid_noise4(table, key, image, sample, block + static_cast<uint32_t>(i / 4), j + i);
    tail |= std::any_of(j + i, j + i + 4, beyond);
  }
  return tail;
}

// A software pipeline of three steps, each one group behind the one before: loads of one group overlap with products of
// the next, and no store is read back immediately in pieces of another width.
PYROBUST_TARGET bool draw(const GridTable& table, NoiseKey key, uint32_t image, uint32_t sample, uint32_t block,
                          int64_t blocks, int32_t* j) {
  alignas(64) uint32_t cells[2 * kGroup],
      entries[2 * kGroup];  // of two groups in turn: the guide takes the rest of the cache
  const RoundKeys keys = round_keys(key.philox);
  const uint32_t* guide = table.guide;
  const int entry_bits = table.entry_bits;
  float* words = reinterpret_cast<float*>(j);  // only as memory for vectors
  bool tail = false;
  const int64_t groups = (blocks + kKernelBlocks - 1) / kKernelBlocks;
  for (int64_t g = 0; g < groups + 2; ++g) {
    const int64_t even = g % 2 * kGroup, odd = kGroup - even;
    if (g < groups) {
      store_words(keys, key.domain, image, sample, block + static_cast<uint32_t>(g * kKernelBlocks),
                  words + g * kGroup);
      find_cells(entry_bits, words + g * kGroup, cells + even);
    }
    if (g >= 1 && g <= groups) look_up(guide, cells + odd, entries + odd);
    if (g < 2) continue;
    const int64_t at = (g - 2) * kGroup;
    if (finish_group(entry_bits, table.count, words + at, entries + even))
      tail |= redraw(table, key, image, sample, block + static_cast<uint32_t>(at / 4), j + at);
  }
  return tail;
}

#endif

constexpr GridNoiseKernels kKernels = {draw, finish<float, float>, finish<double, double>, finish<Half, float>,
                                       finish<BFloat16, float>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

const GridNoiseKernels& grid_noise_kernels() { return PYROBUST_AT_LEVEL(kKernels); }

}  // namespace pyrobust::cpu

#endif

// Gaussian noise rounded to a grid, in integers: which integer the random words of an element give. Host, device and
// every SIMD kernel give the same integer, because nothing is rounded.
//
// The element's 32-bit word w and, if that does not decide the integer, a second and a third word (of the two next
// domains) form 96 bits U. J is the number of the distribution's cell that U falls into. The cells lie symmetrically,
// so bit 95 is the sign (set: positive), and |J| counts the thresholds above V, the other 95 bits, inverted where J is
// positive.
#pragma once

#include <cstdint>

#include "common/bits.h"
#include "common/host_device.h"
#include "smoothing/noise.h"
#include "smoothing/philox.h"

namespace pyrobust {

inline constexpr uint32_t kGridFamily = 3;
inline constexpr uint32_t kGuideOctaves = 32;
inline constexpr int kMantissa = 23;

// thresholds: three words each, the 31 leading bits first, in an order that does not increase. guide: an entry for each
// cell of the scale of guide_place, entry_bits = 23 - log2(cells an octave): in the upper bits the number of thresholds
// above the cell, in the lower bits the lower bits of the place of a threshold inside.
struct GridTable {
  const uint32_t* guide;
  const uint32_t* thresholds;
  int32_t count;
  int entry_bits;
};

namespace grid {

// Never decreases in v < 2^31; below 32 * 2^23.
PYROBUST_HD uint32_t guide_place(uint32_t v) {
  return bits<uint32_t>(static_cast<float>(static_cast<int32_t>(v | 1u))) - 0x3f800000u;
}

// |J|, or tail = count, of a draw that the guide does not decide. low: the thresholds above the guide's cell. The few
// thresholds inside are tried one after the other: a search among all would wait for a branch and for memory at every
// step.
PYROBUST_HD int32_t count_above(const GridTable& table, NoiseKey key, uint32_t image, uint32_t sample, uint32_t block,
                                int word, uint32_t v, uint32_t flip, uint32_t low) {
  const uint32_t count = static_cast<uint32_t>(table.count);
  // The thresholds [0, low) are above v whatever follows, those from `high` on are not.
  while (low < count && table.thresholds[3 * low] > v) ++low;
  uint32_t high = low;
  while (high < count && table.thresholds[3 * high] == v) ++high;
  if (low == high) return static_cast<int32_t>(low);
  const uint32_t second = philox4x32(key.philox, block, sample, image, key.domain + 1).w[word] ^ flip;
  const uint32_t third = philox4x32(key.philox, block, sample, image, key.domain + 2).w[word] ^ flip;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const uint32_t t1 = table.thresholds[3 * middle + 1], t2 = table.thresholds[3 * middle + 2];
    if (t1 > second || (t1 == second && t2 > third))
      low = middle + 1;
    else
      high = middle;
  }
  return static_cast<int32_t>(low);
}

}  // namespace grid

// The integers of elements 4*block .. 4*block+3; ± count for the tails.
PYROBUST_HD void grid_noise4(const GridTable& table, NoiseKey key, uint32_t image, uint32_t sample, uint32_t block,
                             int32_t j[4]) {
  const Words4 words = philox4x32(key.philox, block, sample, image, key.domain);
  const uint32_t mask = (1u << table.entry_bits) - 1u;
  for (int word = 0; word < 4; ++word) {
    const uint32_t flip = 0u - (words.w[word] >> 31);
    const uint32_t v = words.w[word] ^ flip;
    const uint32_t place = grid::guide_place(v);
    const uint32_t entry = table.guide[place >> table.entry_bits];
    const uint32_t inside = place & mask, at = entry & mask;
    const uint32_t low = entry >> table.entry_bits;
    const int32_t above = inside == at ? grid::count_above(table, key, image, sample, block, word, v, flip, low)
                                       : static_cast<int32_t>(low + (inside < at));
    j[word] = flip ? above : -above;
  }
}

// The sum of the image's integer and the noise; it wraps if no integer type holds it.
PYROBUST_HD int32_t grid_sum(int32_t k, int32_t j) {
  return static_cast<int32_t>(static_cast<uint32_t>(k) + static_cast<uint32_t>(j));
}

// The element of the batch for the sum of the image's integer and the noise: p/q times it, with a single rounding if
// the product is exact.
template <class Real>
PYROBUST_HD Real grid_value(int32_t sum, Real p, Real q) {
  return static_cast<Real>(sum) * p / q;
}

}  // namespace pyrobust

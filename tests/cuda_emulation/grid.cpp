// The per-thread code of csrc/smoothing/cuda/sample_grid_noise.cu (csrc/smoothing/grid_noise.h), on the host and for any
// word.
#include "smoothing/grid_noise.h"

using namespace pyrobust;

// Computes |J| for the 31-bit word v of element 4 * block + word from the thresholds alone. flip: all ones if the sign
// bit is set.
extern "C" int32_t count_above(const uint32_t* thresholds, int32_t count, uint64_t seed, uint32_t domain,
                               uint32_t image, uint32_t sample, uint32_t block, int32_t word, uint32_t v,
                               uint32_t flip) {
  return grid::count_above({nullptr, thresholds, count, 0}, {seed, domain}, image, sample, block, word, v, flip, 0);
}

// Draws the integers of `blocks` blocks of one sample like the kernel's threads.
extern "C" void grid_noise(const uint32_t* guide, int32_t entry_bits, const uint32_t* thresholds, int32_t count,
                           uint64_t seed, uint32_t domain, uint32_t image, uint32_t sample, int64_t blocks,
                           int32_t* j) {
  for (int64_t b = 0; b < blocks; ++b)
    grid_noise4({guide, thresholds, count, entry_bits}, {seed, domain}, image, sample, static_cast<uint32_t>(b),
                j + 4 * b);
}

// Loop over a noisy batch on the CPU: tiles that stay in the first-level cache, on several threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/parallel.h"
#include "smoothing/noise.h"

namespace pyrobust::cpu {

// Kernels write whole groups of this many blocks of four elements.
inline constexpr int64_t kKernelBlocks = 16;
// Elements of noise that a thread holds at once: with the images and the output, they fit well into the first-level
// cache.
inline constexpr int64_t kTile = 1024;

// Elements to draw, consecutive in the order of the noise contract: `blocks` whole blocks, of which the first `skip`
// elements are discarded, the next `count` used.
struct NoiseStretch {
  int64_t n;     // position in the batch
  uint64_t key;  // Philox key
  uint32_t image, sample, block;
  int64_t blocks, skip, count;
};

// A part of a stretch within one channel: elements from `element` on of the image in row `row`, to out[target + i *
// stride].
struct NoisePiece {
  int64_t row, element, channel, target, count, stride;
};

// The run that holds batch position n.
inline const NoiseRun& run_of(const NoiseRun* runs, int64_t run_count, int64_t n) {
  const NoiseRun* after = std::upper_bound(runs, runs + run_count, n,
                                           [](int64_t position, const NoiseRun& r) { return position < r.begin; });
  return *(after - 1);
}

// draw(stretch, z) fills z, which has room for whole groups; then finish(piece, z of the piece) writes each piece.
template <class Noise, class Draw, class Finish>
void for_tiles(const NoiseRun* runs, int64_t run_count, const NoiseShape& shape, bool by_channel,
               const ParallelFor& parallel_for, const Draw& draw, const Finish& finish) {
  const int64_t plane = shape.plane, channels = shape.channels, row = channels * plane;

  // A tile is a stretch of one image in the order that keeps its output together: elements if planes follow each other,
  // pixels (with all their channels) if channels are innermost.
  const int64_t extent = shape.channels_last ? plane : row;
  const int64_t step = shape.channels_last ? std::max<int64_t>(16, kTile / channels / 16 * 16) : kTile;
  const int64_t tiles = (extent + step - 1) / step;
  const int64_t tile_work = shape.channels_last ? step * channels : step;

  parallel_for(0, shape.samples * tiles, std::max<int64_t>(1, 16384 / std::min(tile_work, row)),
               [&](int64_t begin, int64_t end) {
                 alignas(64) Noise z[kTile + 4 * kKernelBlocks];
                 for (int64_t u = begin; u < end; ++u) {
                   const int64_t n = u / tiles, t0 = (u % tiles) * step, t1 = std::min(extent, t0 + step);
                   const NoiseRun& run = run_of(runs, run_count, n);
                   const uint32_t sample = run.first + static_cast<uint32_t>(n - run.begin);

                   // Elements [e0, e1) to out[n * row + at + i * stride].
                   const auto stretch = [&](int64_t e0, int64_t e1, int64_t channel, int64_t at, int64_t stride) {
                     const int64_t block = e0 / 4, skip = e0 - 4 * block;
                     draw(NoiseStretch{n, run.key, run.image, sample, static_cast<uint32_t>(block),
                                       (e1 + 3) / 4 - block, skip, e1 - e0},
                          z);
                     // A stretch that spans planes is cut where the channel's mean and std change.
                     for (int64_t a = e0; a < e1;) {
                       const int64_t b = by_channel ? std::min(e1, (channel + 1) * plane) : e1;
                       finish(NoisePiece{run.row, a, channel, n * row + at + (a - e0) * stride, b - a, stride},
                              z + skip + (a - e0));
                       a = b;
                       ++channel;
                     }
                   };

                   if (shape.channels_last)
                     for (int64_t c = 0; c < channels; ++c)
                       stretch(c * plane + t0, c * plane + t1, c, t0 * channels + c, channels);
                   else
                     stretch(t0, t1, t0 / plane, t0, 1);
                 }
               });
}

}  // namespace pyrobust::cpu

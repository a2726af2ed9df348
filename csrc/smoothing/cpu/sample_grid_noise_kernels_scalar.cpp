// sample_grid_noise for any CPU: the scalar mathematics of core/, one block at a time.
#include <algorithm>
#include <cstdlib>

#include "smoothing/cpu/random_vec_scalar.h"
#include "smoothing/cpu/sample_grid_noise_kernels.h"

namespace pyrobust::cpu {
namespace {

#include "smoothing/cpu/sample_grid_noise_finish.inl"
#include "smoothing/cpu/write_batch.inl"

bool draw(const GridTable& table, NoiseKey key, uint32_t image, uint32_t sample, uint32_t block, int64_t blocks,
          int32_t* j) {
  int32_t most = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    grid_noise4(table, key, image, sample, block + static_cast<uint32_t>(b), j + 4 * b);
    for (int i = 0; i < 4; ++i) most = std::max(most, std::abs(j[4 * b + i]));
  }
  return most >= table.count;
}

}  // namespace

const GridLeaves kGridScalar = {draw, finish<float, float>, finish<double, double>, finish<Half, float>,
                                finish<BFloat16, float>};

}  // namespace pyrobust::cpu

// Bounds of a batch: IBP, CROWN-IBP and CROWN over one network.
#pragma once

#include <cstdint>

#include "bounds/engine/example_state.h"
#include "bounds/engine/wide/library_products.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// The specification: linear functions of the output, rows [B or 1][count][outputs] in float64; without rows, the output
// of each example's label, labels [B], less each other output; without rows and labels, the outputs themselves.
struct Specification {
  const double* rows = nullptr;
  const int64_t* labels = nullptr;
  int64_t count = 0;
  bool per_example = false;
  bool upper = true;  // whether to compute upper bounds, too
};

// One side of the bounds, [B][count], and whether intervals gave a bound that a backward pass was meant to.
struct BoundSide {
  double* values = nullptr;
  uint8_t* by_intervals = nullptr;
};

// upper is not written unless the specification wants it. Examples are processed `chunk` at
// a time, which bounds the memory: memory_of for each example, and a tile for each thread. With `product`, unless
// empty, a library computes the products of intervals and, where no rows of neurons are needed, those of the output's
// rows. Where the watch of the options ends the work, bounds that were not reached are infinite or those of intervals.
template <class T>
void propagate(const BoundNetwork<T>& network, const InputSet& inputs, int64_t batch, const Specification& spec,
               const BoundOptions& options, int64_t chunk, int threads, const ParallelFor& parallel_for,
               const LibraryProduct<T>& product, const BoundSide& lower, const BoundSide& upper);

// The largest number of bytes of an example's state, and bytes of a library's copies of one layer's weights.
struct Memory {
  int64_t example = 0, weights = 0;
};
// `rows`: whether the specification has rows.
template <class T>
Memory memory_of(const BoundNetwork<T>& network, const BoundOptions& options, bool rows);

}  // namespace pyrobust::cpu

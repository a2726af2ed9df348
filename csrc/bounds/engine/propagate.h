// Bounds of a batch: IBP, CROWN-IBP and CROWN over one network.
#pragma once

#include <cstdint>

#include "bounds/engine/example_state.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// The linear functions of the output that are asked for: rows [B or 1][count][outputs], in float64; without rows, the
// outputs themselves.
struct Specification {
  const double* rows = nullptr;
  int64_t count = 0;
  bool per_example = false;
  bool upper = true;  // whether upper bounds are asked for, too
};

// lower and upper: [B][count]; upper is left alone where it is not asked for. Examples are handled `chunk` at a time,
// which bounds the memory: bytes_per_example of each, and a tile for each thread.
template <class T>
void propagate(const BoundNetwork<T>& network, const InputSet& inputs, int64_t batch, const Specification& spec,
               const BoundOptions& options, int64_t chunk, int threads, const ParallelFor& parallel_for, double* lower,
               double* upper);

template <class T>
int64_t bytes_per_example(const BoundNetwork<T>& network);

}  // namespace pyrobust::cpu

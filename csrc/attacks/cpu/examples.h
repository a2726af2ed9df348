// Row copies and change counts of attack states, on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// Copies the chosen rows of source [rows, bytes] to target [rows, bytes].
void put_rows(const bool* chosen, const char* source, char* target, int64_t rows, int64_t bytes,
              const ParallelFor& parallel_for);

// Counts, in count [rows], the elements of each row of x_adv [rows, n] that differ from x [rows, n].
template <class T>
void count_changed(const T* x_adv, const T* x, int64_t* count, int64_t rows, int64_t n,
                   const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

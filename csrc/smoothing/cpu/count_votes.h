// Vote histograms on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "smoothing/vote.h"

namespace pyrobust::cpu {

// Adds the votes of rows [begin, end) of logits [N, classes] to counts [images, classes + 1]; image [N] is in range.
// Threads may share counts.
template <class T>
void count_votes(const T* logits, int64_t classes, const int64_t* image, int64_t* counts, int64_t begin, int64_t end);

}  // namespace pyrobust::cpu

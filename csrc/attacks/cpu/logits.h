// Losses and verdicts of rows of logits, on the CPU: loops over raw pointers, no torch.
#pragma once

#include <cstdint>

#include "attacks/logit_math.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// Computes value and size [rows] and slope [rows, classes] from logits [rows, classes]; y and target [rows] are classes.
template <class T>
void logit_loss(LogitLoss loss, const T* logits, const int64_t* y, const int64_t* target, double* value, T* slope,
                double* size, int64_t rows, int64_t classes, const ParallelFor& parallel_for);

// Computes verdict [rows] from logits [rows, classes]; y [rows] are classes.
template <class T>
void logit_verdict(const T* logits, const int64_t* y, bool targeted, double tolerance, bool both, uint8_t* verdict,
                   int64_t rows, int64_t classes, const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

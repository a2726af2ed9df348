// Convolutions in batch-last layout: the examples are innermost, so that a weight is one number for all SIMD lanes, and
// no part of a vector is unused because of few channels or strides.
#pragma once

#include <cstdint>

#include "common/parallel.h"

namespace pyrobust::cpu {

// x: [groups inputs, height, width, lanes]; y: [groups outputs, y_height, y_width, lanes];
// weight: [groups outputs, inputs, kernel[0], kernel[1]].
struct BatchLastConvSizes {
  int64_t groups, inputs, outputs, height, width, y_height, y_width, lanes;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
};

// y = weight * x + bias scale; bias: [groups outputs] or null; scale: [lanes], null for ones.
template <class T>
void batch_last_conv(const T* x, const T* weight, const T* bias, const T* scale, T* y, const BatchLastConvSizes& sizes,
                     const ParallelFor& parallel_for);

// x = the transposed convolution of y.
template <class T>
void batch_last_conv_transposed(const T* y, const T* weight, T* x, const BatchLastConvSizes& sizes,
                                const ParallelFor& parallel_for);

// The gradient of sum(y * (weight * x)) with respect to the weight.
template <class T>
void batch_last_conv_weight(const T* x, const T* y, T* weight, const BatchLastConvSizes& sizes,
                            const ParallelFor& parallel_for);

}  // namespace pyrobust::cpu

// The inner loops of batch_last_conv, one set per instruction set.
#pragma once

#include <cstdint>

#include "simd/dispatch.h"

namespace pyrobust::cpu {

// Lanes of a vector.
template <class T>
constexpr int64_t kConvLanes = sizeof(T) == 4 ? 16 : 8;

// What one element of the kernel adds to an output: where its weights and its input plane begin.
struct ConvTap {
  int64_t weight, input;
};

// Some lanes of one block of output planes at one place.
template <class T>
struct ConvPlace {
  const T* input;       // at the first lane
  const T* weight;      // of the block: [kernel, inputs, block]
  const T* bias;        // [block] or null
  const T* scale;       // at the first lane, or null
  T* output;            // at the first lane
  int64_t inputs;       // planes that are summed over
  int64_t input_plane;  // from one input plane to the next
  int64_t output_plane;
  int64_t lanes;  // how many
};

// Some places of a row of y, packed, with as many neighbouring kernel columns as a call says.
template <class T>
struct ConvStrip {
  const T* y;        // [places, vectors, block, lanes of a vector]
  const T* x;        // at the first place and column
  int64_t x_stride;  // from what one place meets to what the next does
  int64_t x_column;  // from one kernel column to the next
  int64_t places, vectors;
  int64_t last;  // where the last vector of lanes begins in x: it may overlap the one before, y has zeros there
  int64_t few;   // lanes, where they are fewer than a vector has, else 0
  T* sums;       // [block, ..., columns, lanes of a vector], sums_plane from one of the block to the next
  int64_t sums_plane;
};

template <class T>
struct BatchLastConvKernels {
  int64_t block;    // output planes at a time, at most
  int64_t columns;  // kernel columns at a time, at most
  // block is 8, 4, 3, 2 or 1
  void (*place)(int64_t block, const ConvPlace<T>& at, const ConvTap* taps, int64_t count);
  // columns is 3, 2 or 1
  void (*strip)(int64_t block, int64_t columns, const ConvStrip<T>& strip);
};

// The set of the level in use.
template <class T>
const BatchLastConvKernels<T>& batch_last_conv_kernels();

}  // namespace pyrobust::cpu

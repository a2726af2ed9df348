// The inner loops of batch_last_conv, one set for each instruction set.
#pragma once

#include <cstdint>

#include "simd/dispatch.h"

namespace pyrobust::cpu {

// SIMD lanes of a vector.
template <class T>
constexpr int64_t kConvLanes = sizeof(T) == 4 ? 16 : 8;

// An element of the kernel: where its weights and its input plane begin.
struct KernelElement {
  int64_t weight, input;
};

// A range of examples of one block of output planes at one place.
template <class T>
struct ConvPlace {
  const T* input;       // at the first example
  const T* weight;      // of the block: [kernel, inputs, block]
  const T* bias;        // [block] or null
  const T* scale;       // at the first example, or null
  T* output;            // at the first example
  int64_t inputs;       // planes that are summed over
  int64_t input_plane;  // from one input plane to the next
  int64_t output_plane;
  int64_t lanes;  // examples
};

// A run of places of a row of y, packed, with neighbouring kernel columns.
template <class T>
struct ConvStrip {
  const T* y;        // [places, vectors, block, lanes of a vector]
  const T* x;        // at the first place and column
  int64_t x_stride;  // from the input of one place to that of the next
  int64_t x_column;  // from one kernel column to the next
  int64_t places, vectors;
  int64_t last;     // where the last vector begins in x; where it overlaps the vector before, y is zero
  int64_t partial;  // number of examples if they do not fill a vector, else 0
  T* sums;          // [block, ..., columns, lanes of a vector], sums_plane from one plane of the block to the next
  int64_t sums_plane;
};

template <class T>
struct BatchLastConvKernels {
  int64_t block;    // largest number of output planes at a time
  int64_t columns;  // largest number of kernel columns at a time
  // block is 8, 4, 3, 2 or 1
  void (*place)(int64_t block, const ConvPlace<T>& at, const KernelElement* elements, int64_t count);
  // columns is 3, 2 or 1
  void (*strip)(int64_t block, int64_t columns, const ConvStrip<T>& strip);
};

// Returns the kernels of the level in use.
template <class T>
const BatchLastConvKernels<T>& batch_last_conv_kernels();

}  // namespace pyrobust::cpu

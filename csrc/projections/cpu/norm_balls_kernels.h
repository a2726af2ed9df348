// The inner loops of the projections onto l2 and l-infinity balls, one set for each instruction set, all with the same
// bits.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {

struct Largest {
  double top;   // the largest |v|
  bool finite;  // all of them
};

template <class T>
struct NormBallKernels {
  Largest (*largest)(const T* v, int64_t n);
  // Sum of (v * scale)^2.
  double (*squares)(const T* v, int64_t n, double scale);
  // z = (v * scale) * factor, rounded toward zero, at most |v|.
  void (*shrink)(const T* v, T* z, int64_t n, double scale, double factor);
  // z = v where |v| <= radius, else radius rounded toward zero, with v's sign.
  void (*clip)(const T* v, T* z, int64_t n, double radius);
};

// Returns the kernels of the level in use; 16-bit floats have scalar kernels only.
template <class T>
const NormBallKernels<T>& norm_ball_kernels();

}  // namespace pyrobust::cpu

// The inner loops of the l2 and l-infinity projections, one set per instruction set, all with the same bits.
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

// The set of the level in use; 16-bit floats have plain C++ alone.
template <class T>
const NormBallKernels<T>& norm_ball_kernels();

}  // namespace pyrobust::cpu

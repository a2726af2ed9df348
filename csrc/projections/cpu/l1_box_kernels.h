// The inner loops of the projection onto the l1 ball within a box, one set for each instruction set, all with bitwise
// equal results.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/row_loop.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {

// An element y at x has a = |y| and room u >= 0 up to the box on y's side; the projection is clip(a - theta, 0, u). The
// threshold is written theta = base - w with `base` one of the row's a, so that w, not theta, carries the precision.
struct Box {
  double lower, upper;
};

struct BoxScan {
  double top;     // largest a
  double total;   // sum of min(a, u): the sum at theta = 0
  int64_t free;   // elements with 0 < a < u
  int64_t bad_x;  // elements of x outside the box, NaN included
  int64_t bad_y;  // elements of y that are not finite
};

// The sum of clip(a - theta, 0, u) as fixed + free * w: what Newton's method solves without cancellation.
struct BoxValue {
  double fixed;  // sum of u of the elements at their room, and of a - base of those strictly between
  int64_t free;  // the number of elements strictly between
};

// The sum within a bracket [theta_low, theta_high]: the elements decided by it, and those undecided.
struct BoxUndecided {
  BoxValue throughout;  // sums over the elements that are at their room, or free, in the whole bracket
  int64_t count;        // number of the other elements, which are packed; -1 if they do not fit the memory
};

template <class T>
struct L1BoxKernels {
  BoxScan (*scan)(const T* y, const T* x, int64_t n, Box box);
  BoxValue (*evaluate)(const T* y, const T* x, int64_t n, Box box, double base, double w);
  // Packs a - base and u of the elements that change their state within the bracket.
  BoxUndecided (*open)(const T* y, const T* x, int64_t n, Box box, double base, double w_low, double w_high, double* a,
                       double* u, int64_t room);
  BoxValue (*evaluate_open)(const double* a, const double* u, int64_t n, double w);
  // z = clip(a - theta, 0, u), rounded toward zero, with y's sign; returns the sum of |z|.
  double (*finish)(const T* y, const T* x, T* z, int64_t n, Box box, double base, double w);
};

// The same for float32 rows, in float32 arithmetic where its errors do not matter. The ends of the box are float32
// numbers.
struct FloatBox {
  float lower, upper;
};

struct Float32BoxUndecided {
  double at_high;  // the sum at theta = high, of sums of four float32 numbers
  int64_t linear;  // elements between 0 and their room in the whole bracket
  int64_t count;   // number of elements that change their state within it; -1 if they do not fit the memory
  bool good;       // y is finite and x inside the box
};

struct BoxShare {
  double sum;    // of clip(a - theta, 0, u)
  int64_t free;  // elements strictly between
};

struct L1BoxFloat32Kernels {
  // Packs a and u of the elements that change their state in low < theta < high.
  Float32BoxUndecided (*open)(const float* y, const float* x, int64_t n, FloatBox box, float low, float high, float* a,
                              float* u, int64_t room);
  // Replaces y and x by a and u, for a multiple of sixteen elements; returns the largest a.
  float (*rooms)(float* y, float* x, int64_t n, FloatBox box);
  // In float32 and in float64.
  BoxShare (*estimate)(const float* a, const float* u, int64_t n, float theta);
  BoxShare (*evaluate)(const float* a, const float* u, int64_t n, double theta);
  // z = (a - high) - low, between 0 and the room rounded down, with y's sign; returns the sum of |z|.
  double (*finish)(const float* y, const float* x, float* z, int64_t n, FloatBox box, float high, float low);
  // Projects kShortRows rows of n <= kShortRow elements, one SIMD lane each, of which `rows` exist. Bit i of the result
  // is set where row i is left undone: it needs the exact search, or is bad.
  unsigned (*short_rows)(const float* y, const float* x, float* z, const double* radius, int64_t radius_stride,
                         int64_t n, int rows, FloatBox box);
};

// Return the kernels of the level in use.
template <class T>
const L1BoxKernels<T>& l1_box_kernels();
const L1BoxFloat32Kernels& l1_box_float32_kernels();

}  // namespace pyrobust::cpu

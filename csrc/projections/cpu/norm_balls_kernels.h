// The inner loops of the projections onto l2 and l-infinity balls, one set for each instruction set, all with bitwise
// equal results.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/exact_sum.h"
#include "common/half.h"
#include "common/row_loop.h"
#include "simd/dispatch.h"

namespace pyrobust::cpu {

struct Largest {
  double top;   // the largest |v|
  bool finite;  // all of them
};

// Float32 rows of fewer elements than a register holds are taken kShortRows at a time, one SIMD lane each.
inline constexpr int64_t kLanes = 16;

// float32 rows are multiplied in float32, other rows in float64.
template <class T>
using Factor = std::conditional_t<std::is_same_v<T, float>, float, double>;

template <class T>
struct NormBallKernels {
  Largest (*largest)(const T* v, int64_t n);
  // Sum of (v * scale)^2.
  double (*squares)(const T* v, int64_t n, double scale);
  // z = (v * scale) * factor, rounded toward zero, at most |v|.
  void (*shrink)(const T* v, T* z, int64_t n, double scale, double factor);
  // Sum of v^2, for numbers whose squares are in range.
  double (*plain_squares)(const T* v, int64_t n);
  // z = v * factor, 16-bit floats rounded toward zero.
  void (*multiply)(const T* v, T* z, int64_t n, Factor<T> factor);
  // Rounds numbers to T toward zero.
  void (*truncate)(const double* a, T* z, int64_t n);
  // z = v where |v| <= bound, else bound with v's sign; false where an element is not finite.
  bool (*clip)(const T* v, T* z, int64_t n, T bound);
  // The same with a bound for each element.
  bool (*clip_each)(const T* v, T* z, int64_t n, const T* bound);
};

// Projects kShortRows float32 rows of n < kLanes elements onto the l2 ball, of which `rows` exist. Bit i of the result is
// set where row i is left undone.
using ShortL2 = unsigned (*)(const float* v, float* z, const double* radius, int64_t radius_stride, int64_t n,
                             int rows);

// What a row of n elements is multiplied by, from its sum of squares: 1 inside the ball, and outside a number that is
// small enough for the rounded products to stay inside; negative where the row needs exact comparisons, or is not finite.
template <class T>
inline Factor<T> l2_factor(double sum, double radius, int64_t n) {
  constexpr bool wide = std::is_same_v<T, double>;
  constexpr double kSmallest = wide ? 0x1p-400 : 0x1p-100, kMost = wide ? 0x1p400 : 0x1p100;
  if (!(radius >= kSmallest && radius <= kMost && sum <= (wide ? 0x1p900 : 0x1p400))) return -1;
  // Squares that underflow lose less than 2^-1022 each, which is nothing compared to this error of the bound.
  const double bound = radius * radius, error = sum_error(n + 8);
  if (sum * (1 + error) <= bound * (1 - error)) return 1;
  if (!(sum * (1 - error) > bound * (1 + error))) return -1;
  const double exact = radius / std::sqrt(sum);
  if constexpr (std::is_same_v<T, float>) {
    // Two roundings of 2^-24, of the factor and of the product, and the error of the sum.
    constexpr double kMargin = 0x1p-23 + 0x1p-26;
    return n <= int64_t{1} << 26 && exact >= 0x1p-100 ? static_cast<float>(exact * (1 - kMargin)) : -1.0f;
  } else {
    return exact * (1 - sum_error(n + 16));
  }
}

// Return the kernels of the level in use.
template <class T>
const NormBallKernels<T>& norm_ball_kernels();
ShortL2 short_l2_kernel();

}  // namespace pyrobust::cpu

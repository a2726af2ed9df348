// Argument checks that the projection ops share: rows and radii.
#pragma once

#include <cmath>

#include "common/check.h"
#include "common/exact_sum.h"

namespace pyrobust {

inline void check_rows(const char* op, const char* argument, const Tensor& v) {
  check(v.dim() == 2, op, ": ", argument, ": expected [R, D], got ", shape_of(v));
  check(v.is_contiguous(), op, ": ", argument, ": expected a contiguous tensor");
}

// radius: [R] or [1], float64, contiguous, on v's device. Values are checked on the CPU only: on a GPU the check would
// wait for the device.
inline void check_radius(const char* op, const Tensor& radius, const Tensor& v) {
  check(radius.dim() == 1 && (radius.size(0) == 1 || radius.size(0) == v.size(0)) &&
            radius.scalar_type() == ScalarType::Double && radius.is_contiguous(),
        op, ": radius: expected a contiguous float64 [1] or [", v.size(0), "], got ", shape_of(radius));
  check_same_device(op, "radius", radius, v);
  if (!radius.is_cpu()) return;
  const auto* values = static_cast<const double*>(radius.const_data_ptr());
  const int64_t count = radius.size(0);
  const auto good = [&](int64_t i) { return values[i] >= 0 && values[i] <= kLargestRadius; };
  unsigned all = 1;  // no branch for each of many rows
  for (int64_t i = 0; i < count; ++i) all &= static_cast<unsigned>(good(i));
  if (all != 0) return;
  int64_t bad = 0;
  while (good(bad)) ++bad;
  check(false, op, ": radius: expected 0 to 2**960, got ", values[bad],
        count > 1 ? " in row " + std::to_string(bad) : "");
}

// out: contiguous and like v, which it may not share memory with.
inline void check_out(const char* op, const Tensor& out, const Tensor& v) {
  bool alike = out.dim() == v.dim() && out.scalar_type() == v.scalar_type();
  for (int64_t i = 0; alike && i < v.dim(); ++i) alike = out.size(i) == v.size(i);
  check(alike && out.is_contiguous(), op, ": out: expected a contiguous tensor of v's dtype and shape, ", shape_of(v),
        ", got ", shape_of(out));
  check_same_device(op, "out", out, v);
}

// Step from one row's value to the next: 0 if all rows share the single value of [1].
inline int64_t row_stride(const Tensor& values) { return values.size(0) == 1 ? 0 : 1; }

inline void check_finite(const char* op, const char* argument, int64_t bad_row) {
  check(bad_row < 0, op, ": ", argument, ": expected finite numbers, got NaN or infinity in row ", bad_row);
}

inline void check_box(const char* op, double lower, double upper) {
  check(std::isfinite(lower) && std::isfinite(upper) && lower <= upper, op,
        ": lower, upper: expected finite numbers with lower <= upper, got ", lower, ", ", upper);
}

inline void check_in_box(const char* op, int64_t bad_row, double lower, double upper) {
  check(bad_row < 0, op, ": x: expected values in [", lower, ", ", upper, "], got others in row ", bad_row);
}

}  // namespace pyrobust

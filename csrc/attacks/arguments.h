// Argument checks that the step ops share: tensors of x's shape, and values given once or for each row.
#pragma once

#include "projections/arguments.h"

namespace pyrobust {

// x: [R, ...], contiguous: rows of any shape
inline void check_examples(const char* op, const char* argument, const Tensor& x) {
  check(x.dim() >= 1, op, ": ", argument, ": expected [R, ...], got a scalar");
  check(x.is_contiguous(), op, ": ", argument, ": expected a contiguous tensor");
}

inline int64_t row_size(const Tensor& x) { return x.size(0) == 0 ? 0 : x.numel() / x.size(0); }

inline void check_example_like(const char* op, const char* argument, const Tensor& t, const Tensor& x) {
  check_examples(op, argument, t);
  bool alike = t.dim() == x.dim() && t.scalar_type() == x.scalar_type();
  for (int64_t i = 0; alike && i < x.dim(); ++i) alike = t.size(i) == x.size(i);
  check(alike, op, ": ", argument, ": expected x's shape and dtype, ", shape_of(x), ", got ", shape_of(t));
  check_same_device(op, argument, t, x);
}

inline void check_like(const char* op, const char* argument, const Tensor& t, const Tensor& x) {
  check_rows(op, argument, t);
  check(t.size(0) == x.size(0) && t.size(1) == x.size(1) && t.scalar_type() == x.scalar_type(), op, ": ", argument,
        ": expected x's shape and dtype, ", shape_of(x), ", got ", shape_of(t));
  check_same_device(op, argument, t, x);
}

// values: [R] or [1], contiguous, on x's device
inline void check_per_row(const char* op, const char* argument, const Tensor& values, const Tensor& x,
                          ScalarType dtype) {
  check(values.dim() == 1 && (values.size(0) == 1 || values.size(0) == x.size(0)) && values.scalar_type() == dtype &&
            values.is_contiguous(),
        op, ": ", argument, ": expected a contiguous ", dtype == ScalarType::Double ? "float64" : "int64", " [1] or [",
        x.size(0), "], got ", shape_of(values));
  check_same_device(op, argument, values, x);
}

inline void check_step(const char* op, const Tensor& step, const Tensor& x) {
  check_per_row(op, "step", step, x, ScalarType::Double);
  if (!step.is_cpu()) return;
  const auto* values = static_cast<const double*>(step.const_data_ptr());
  const int64_t count = step.size(0);
  for (int64_t i = 0; i < count; ++i)
    check(std::isfinite(values[i]), op, ": step: expected finite numbers, got ", values[i]);
}

// keep: [R] or [1], 1 to D
inline void check_keep(const char* op, const Tensor& keep, const Tensor& x) {
  check_per_row(op, "keep", keep, x, ScalarType::Long);
  if (!keep.is_cpu()) return;
  const auto* values = static_cast<const int64_t*>(keep.const_data_ptr());
  const int64_t count = keep.size(0), most = x.size(1);
  for (int64_t i = 0; i < count; ++i)
    check(values[i] >= 1 && values[i] <= std::max<int64_t>(1, most), op, ": keep: expected 1 to ", most, ", got ",
          values[i]);
}

}  // namespace pyrobust

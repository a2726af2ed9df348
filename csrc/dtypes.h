// The choice of an element type at run time.
#pragma once

#include "check.h"
#include "core/half.h"

namespace pyrobust {

// fn(static_cast<T*>(nullptr)) for the element type T of a tensor of floats.
template <class Fn>
void for_dtype(const char* op, const char* argument, const Tensor& t, const Fn& fn) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return fn(static_cast<float*>(nullptr));
    case ScalarType::Double:
      return fn(static_cast<double*>(nullptr));
    case ScalarType::Half:
      return fn(static_cast<Half*>(nullptr));
    case ScalarType::BFloat16:
      return fn(static_cast<BFloat16*>(nullptr));
    default:
      check(false, op, ": ", argument, ": expected float32, float64, float16 or bfloat16");
  }
}

}  // namespace pyrobust

// The choice of an element type at run time.
#pragma once

#include "common/check.h"
#include "common/half.h"

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

// The same for a tensor that is known to be of float32 or float64.
template <class Fn>
void for_real(const Tensor& t, const Fn& fn) {
  if (t.scalar_type() == ScalarType::Float)
    fn(static_cast<float*>(nullptr));
  else
    fn(static_cast<double*>(nullptr));
}

// The elements of a tensor, as its type.
template <class T>
const T* in(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}
template <class T>
T* out(Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

}  // namespace pyrobust

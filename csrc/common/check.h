// Argument checks of the ops: one wording, "op: argument: expected ..., got ...".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

namespace pyrobust {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class... Args>
void check(bool holds, const Args&... message) {
  if (holds) return;
  std::ostringstream text;
  ((text << message), ...);
  throw std::runtime_error(text.str());
}

// A tensor's shape for a message; composed only if the check fails.
struct shape_of {
  const Tensor& t;
  explicit shape_of(const Tensor& tensor) : t(tensor) {}
  friend std::ostream& operator<<(std::ostream& text, const shape_of& shape) {
    text << '[';
    for (int64_t i = 0; i < shape.t.dim(); ++i) text << (i ? ", " : "") << shape.t.size(i);
    return text << ']';
  }
};

inline void check_same_device(const char* op, const char* argument, const Tensor& t, const Tensor& first) {
  check(t.is_cuda() == first.is_cuda() && t.is_cpu() == first.is_cpu() &&
            (t.is_cpu() || t.get_device_index() == first.get_device_index()),
        op, ": ", argument, ": expected all tensors on one device");
}

}  // namespace pyrobust

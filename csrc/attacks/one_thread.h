// A thread by itself as a group (projections/cuda/row.h), with which the CPU runs a row of a CUDA kernel.
#pragma once

namespace pyrobust::cuda {

struct OneThread {
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  template <class R, int kCount>
  void add(R (&)[kCount]) const {}
  static double max(double a) { return a; }
  static bool any(bool a) { return a; }
};

}  // namespace pyrobust::cuda

// The inner loops of relaxation.cpp, one set for each instruction set.
#pragma once

#include <cstdint>

namespace pyrobust::cpu {

// Relative rounding errors of a step: to sum |w| m and |bias| at an affine layer, plus a constant; to |slope| m at an
// activation, where the slope is 1 (added) or any other (multiplied); and of the loops, to every intercept.
struct StepCosts {
  double sum = 0, bias = 0, flushed = 0, added = 0, multiplied = 0, share = 0;
  bool sound = true;
};

template <class T>
struct RelaxationKernels {
  // Stores n pairs in T, at most low and at least high, less origin unless null, widened by the relative error of the
  // loops.
  void (*pairs)(const double* low, const double* high, const double* origin, int64_t n, double share, bool sound,
                T* low_out, T* high_out);
  // The same for bias -+ error; known, unless null, is a part of the error.
  void (*affine_pairs)(const double* sum, const double* bias, const double* known, int64_t n, const StepCosts& costs,
                       T* low_out, T* high_out);
  // Returns the sum of the distances of both ends of n ranges from their origins, or from zero where origin is null.
  double (*total_distance)(const double* lower, const double* upper, const double* origin, int64_t n);
  // Returns the sum of a + |b|.
  double (*total)(const double* a, const double* b, int64_t n);
  // Linear relaxations of n ReLUs with finite ranges, with intercepts widened by the rounding error, and by that of the
  // layer below where sum and bias are given, and perhaps a known part of its error; between the origins of the layer
  // below and of the ReLU, unless null.
  void (*relu_relaxation)(const double* lower, const double* upper, const double* origin, const double* own_origin,
                          const double* sum, const double* bias, const double* known, int64_t n, const StepCosts& costs,
                          T* lower_slope, T* upper_slope, T* lower_intercept, T* upper_intercept, uint8_t* alive);
};

// Returns the kernels of the level in use.
template <class T>
const RelaxationKernels<T>& relaxation_kernels();

}  // namespace pyrobust::cpu

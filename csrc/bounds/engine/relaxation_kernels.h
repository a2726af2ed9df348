// The inner loops of bound_prepare.cpp, one set per instruction set.
#pragma once

#include <cstdint>

namespace pyrobust::cpu {

// What a step costs, as shares: of sum |w| m and of |bias| at an affine layer, plus a constant; of |slope| m at a
// function, where the slope is 1 (added) or any other (multiplied); and what the loops may lose of every intercept.
struct StepCosts {
  double sum = 0, bias = 0, flushed = 0, added = 0, multiplied = 0, share = 0;
  bool sound = true;
};

template <class T>
struct RelaxationKernels {
  // n pairs in T: at most low and at least high, after the loops' share.
  void (*pairs)(const double* low, const double* high, int64_t n, double share, bool sound, T* low_out, T* high_out);
  // The same of bias -+ error.
  void (*affine_pairs)(const double* sum, const double* bias, int64_t n, const StepCosts& costs, T* low_out,
                       T* high_out);
  // The lines of n ReLUs with finite ranges; with sum and bias, those of the layer below are paid for, too.
  void (*relu_lines)(const double* lower, const double* upper, const double* sum, const double* bias, int64_t n,
                     const StepCosts& costs, T* lower_slope, T* upper_slope, T* lower_intercept, T* upper_intercept,
                     uint8_t* alive);
};

// The set of the level in use.
template <class T>
const RelaxationKernels<T>& relaxation_kernels();

}  // namespace pyrobust::cpu

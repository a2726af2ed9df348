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

// Factors of products x y, with x in [a, b] and y in [c, d].
struct Factors {
  const double *a, *b, *c, *d;
};
// Origins and errors that the relaxation of products takes into account.
struct ProductStep {
  const double *x_origin, *y_origin, *origin;  // origins of the factors and of the products; null for zeros
  const double* error;                         // errors of the deployed products; null for none
  const double *lower, *upper;                 // ranges of the products
  double known_low, known_high;                // of every product
  StepCosts x, y;                              // of the factors' layers
};
// p x + q y + c.
template <class T>
struct Planes {
  T *p, *q;
  double* c;
};

template <class T>
struct RelaxationKernels {
  // Stores n pairs in T, at most low and at least high, less origin unless null, widened by the relative error of the
  // loops.
  void (*pairs)(const double* low, const double* high, const double* origin, int64_t n, double share, bool sound,
                T* low_out, T* high_out);
  // The same for bias -+ error; `known`, unless null, is a part of the error.
  void (*affine_pairs)(const double* sum, const double* bias, const double* known, int64_t n, const StepCosts& costs,
                       T* low_out, T* high_out);
  // Returns the sum of the distances of both ends of n ranges from their origins, or from zero where origin is null.
  double (*total_distance)(const double* lower, const double* upper, const double* origin, int64_t n);
  // Returns the sum of a + |b|.
  double (*total)(const double* a, const double* b, int64_t n);
  // Linear relaxations of n ReLUs with finite ranges, with intercepts widened by the rounding error, and by that of the
  // layer below if sum and bias are given, perhaps with a known part of its error. They are measured from the origins
  // of the layer below and of the ReLU, unless null.
  void (*relu_relaxation)(const double* lower, const double* upper, const double* origin, const double* own_origin,
                          const double* sum, const double* bias, const double* known, int64_t n, const StepCosts& costs,
                          T* lower_slope, T* upper_slope, T* lower_intercept, T* upper_intercept, uint8_t* alive);
  // Ranges of n products; NaN where a corner is not finite.
  void (*product_ranges)(const Factors& factors, int64_t n, bool sound, double* lower, double* upper);
  // Planes below and above n products; constants, infinite, where a range is or where numbers overflow. The planes of
  // McCormick (1976), and every one between them, are equally tight in the middle of the box and on average (Shi et al.,
  // 2020, appendix B); the planes chosen have the minimum of x y on the box, with p or q equal to 0 or to either end.
  void (*product_planes)(const Factors& factors, int64_t n, bool sound, const Planes<T>& below, const Planes<T>& above);
  // The same or, where they are tighter in the middle of the box, constants; measured from the origins, and with
  // intercepts widened by the rounding error.
  void (*product_relaxation)(const Factors& factors, int64_t n, const ProductStep& step, T* lower_slope,
                             T* second_lower_slope, T* lower_intercept, T* upper_slope, T* second_upper_slope,
                             T* upper_intercept, uint8_t* alive);
};

// Returns the kernels of the level in use.
template <class T>
const RelaxationKernels<T>& relaxation_kernels();

}  // namespace pyrobust::cpu

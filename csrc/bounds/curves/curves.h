// Ranges and linear relaxations of smooth functions, eight at a time, for both engines.
#pragma once

#include <cstdint>
#include <limits>

namespace pyrobust::cpu {

enum class Curve {
  kSigmoid,
  kTanh,
  kGelu,
  kTanhGelu,
  kSilu,
  kMish,
  kSoftplus,
  kExp,
  kSquare,
  kReciprocal,
  kSqrt,
  kRsqrt,
  kLog
};

// A function, and what a deployed forward pass adds to its values.
struct CurveFunction {
  Curve curve = Curve::kSigmoid;
  double beta = 1;                                             // softplus: log(1 + e^(beta z)) / beta
  double threshold = std::numeric_limits<double>::infinity();  // softplus: z where beta z exceeds it
  double error = 0;                                            // absolute error of every value
  double largest = std::numeric_limits<double>::infinity();  // values beyond are unknown: intermediate results overflow
};

// low <= f(z) <= high for z in [l, u], for each of n ranges; infinite where f has no value; NaN for NaN.
void bound_curve(const CurveFunction& function, int64_t n, const double* l, const double* u, double* low, double* high);

// The same, and lower_slope z + lower_intercept <= f(z) <= upper_slope z + upper_intercept: constants where an end is
// infinite or f has no value.
void relax_curve(const CurveFunction& function, int64_t n, const double* l, const double* u, double* lower_slope,
                 double* lower_intercept, double* upper_slope, double* upper_intercept, double* low, double* high);

}  // namespace pyrobust::cpu

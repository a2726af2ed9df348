#include "bounds/curves/curves.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "common/bits.h"
#include "simd/dispatch.h"

#ifndef PYROBUST_LEVEL
namespace pyrobust::cpu {

struct CurveKernels {
  void (*bound)(const CurveFunction& function, int64_t n, const double* l, const double* u, double* low, double* high);
  void (*relax)(const CurveFunction& function, int64_t n, const double* l, const double* u, double* lower_slope,
                double* lower_intercept, double* upper_slope, double* upper_intercept, double* low, double* high);
};

}  // namespace pyrobust::cpu
#endif

#define PYROBUST_KERNELS "bounds/curves/curves.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

// clang-format off
#include "simd/vec_real.inl"
#include "bounds/curves/functions.inl"
#include "bounds/curves/relaxation.inl"
// clang-format on

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Calls f with the function.
template <class Call>
PYROBUST_TARGET void with_curve(const CurveFunction& function, const Call& f) {
  switch (function.curve) {
    case Curve::kSigmoid:
      return f(Sigmoid());
    case Curve::kTanh:
      return f(Tanh());
    case Curve::kGelu:
      return f(Gelu());
    case Curve::kTanhGelu:
      return f(TanhGelu());
    case Curve::kSilu:
      return f(Silu());
    case Curve::kMish:
      return f(Mish());
    case Curve::kSoftplus:
      return f(Softplus{.beta = function.beta});
  }
  throw std::logic_error("relax_curve: unknown function");
}

PYROBUST_TARGET void bound_any(const CurveFunction& function, int64_t n, const double* l, const double* u, double* low,
                               double* high) {
  with_curve(function, [&](const auto& f) PYROBUST_TARGET { bound(f, n, l, u, low, high); });
}

PYROBUST_TARGET void relax_any(const CurveFunction& function, int64_t n, const double* l, const double* u,
                               double* lower_slope, double* lower_intercept, double* upper_slope,
                               double* upper_intercept, double* low, double* high) {
  with_curve(function, [&](const auto& f) PYROBUST_TARGET {
    relax(f, n, l, u, lower_slope, lower_intercept, upper_slope, upper_intercept, low, high);
  });
}

constexpr CurveKernels kCurveKernels = {bound_any, relax_any};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {
namespace {

// What values, and intercepts, lie further out than the curve's.
struct Distance {
  double below, above;
};

class Beyond {
 public:
  explicit Beyond(const CurveFunction& function) : f_(function) {
    // Beyond the threshold z itself is less than softplus, by at most log(1 + e^-threshold) / beta.
    if (f_.threshold < INFINITY) jump_ = std::log1p(std::exp(-f_.threshold)) / f_.beta * (1 + kMargin);
  }
  bool none() const { return !(f_.threshold < INFINITY) && f_.error == 0 && !(f_.largest < INFINITY); }
  Distance at(double u, double low, double high) const {
    const double jump = u * f_.beta * (1 + kMargin) >= f_.threshold ? jump_ : 0;
    if (std::fmax(jump - low, high) > f_.largest) return {INFINITY, INFINITY};
    return {(jump + f_.error) * (1 + kMargin), f_.error};
  }

 private:
  static constexpr double kMargin = 0x1p-46;
  const CurveFunction& f_;
  double jump_ = 0;
};

}  // namespace

void bound_curve(const CurveFunction& function, int64_t n, const double* l, const double* u, double* low,
                 double* high) {
  PYROBUST_AT_LEVEL(kCurveKernels).bound(function, n, l, u, low, high);
  const Beyond beyond(function);
  for (int64_t k = 0; k < n && !beyond.none(); ++k) {
    const Distance d = beyond.at(u[k], low[k], high[k]);
    low[k] -= d.below, high[k] += d.above;
  }
}

void relax_curve(const CurveFunction& function, int64_t n, const double* l, const double* u, double* lower_slope,
                 double* lower_intercept, double* upper_slope, double* upper_intercept, double* low, double* high) {
  PYROBUST_AT_LEVEL(kCurveKernels)
      .relax(function, n, l, u, lower_slope, lower_intercept, upper_slope, upper_intercept, low, high);
  const Beyond beyond(function);
  for (int64_t k = 0; k < n && !beyond.none(); ++k) {
    const Distance d = beyond.at(u[k], low[k], high[k]);
    low[k] -= d.below, high[k] += d.above;
    lower_intercept[k] -= d.below, upper_intercept[k] += d.above;
    if (d.below == INFINITY) lower_slope[k] = upper_slope[k] = 0;
  }
}

}  // namespace pyrobust::cpu

#endif

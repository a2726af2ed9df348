#include "bounds/curves/curves.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

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
      return f(Softplus{{}, function.beta});
    case Curve::kExp:
      return f(Exp());
    case Curve::kSquare:
      return f(Square());
    case Curve::kReciprocal:
      return f(Reciprocal());
    case Curve::kSqrt:
      return f(Sqrt());
    case Curve::kRsqrt:
      return f(Rsqrt());
    case Curve::kLog:
      return f(Log());
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

// By how much values, and intercepts, lie further out than those of the curve.
struct Distance {
  double below, above;
};

class Beyond {
 public:
  explicit Beyond(const CurveFunction& function) : f_(function) {
    // Beyond the threshold z itself is less than softplus, by at most log(1 + e^-threshold) / beta.
    if (!(f_.threshold < INFINITY)) return;
    least_ = f_.threshold - std::fabs(f_.threshold) * kComparison - FLT_MIN;
    jump_ = std::log1p(std::exp(-least_)) / f_.beta * (1 + kMargin);
  }
  bool none() const { return !(f_.threshold < INFINITY) && f_.error == 0 && !(f_.largest < INFINITY); }
  Distance at(double u, double low, double high) const {
    const double product = u * f_.beta, jump = product + std::fabs(product) * kComparison >= least_ ? jump_ : 0;
    if (std::fmax(jump - low, high) > f_.largest) return {INFINITY, INFINITY};
    return {(jump + f_.error) * (1 + kMargin), f_.error};
  }

 private:
  static constexpr double kMargin = 0x1p-46;
  // A float32 pass compares beta z to the threshold with three roundings.
  static constexpr double kComparison = 0x1p-22;
  const CurveFunction& f_;
  double least_ = INFINITY, jump_ = 0;
};

// Ranges; for a reciprocal, those below zero are mirrored, as 1 / z = -(1 / -z).
class Mirrored {
 public:
  Mirrored(const CurveFunction& function, int64_t n, const double* l, const double* u) : l_(l), u_(u) {
    if (function.curve != Curve::kReciprocal || std::none_of(u, u + n, [](double z) { return z < 0; })) return;
    ends_.resize(static_cast<size_t>(2 * n)), flipped_.resize(static_cast<size_t>(n));
    for (int64_t k = 0; k < n; ++k) {
      const auto at = static_cast<size_t>(k);
      flipped_[at] = u[k] < 0;
      ends_[at] = flipped_[at] ? -u[k] : l[k], ends_[at + static_cast<size_t>(n)] = flipped_[at] ? -l[k] : u[k];
    }
    l_ = ends_.data(), u_ = ends_.data() + n;
  }
  const double* lower() const { return l_; }
  const double* upper() const { return u_; }
  // Mirrors values or intercepts back.
  void back(double* low, double* high) const {
    for (size_t k = 0; k < flipped_.size(); ++k)
      if (flipped_[k]) std::swap(low[k], high[k]), low[k] = -low[k], high[k] = -high[k];
  }
  // The slope of -f(-z) is that of f.
  void back_slopes(double* lower, double* upper) const {
    for (size_t k = 0; k < flipped_.size(); ++k)
      if (flipped_[k]) std::swap(lower[k], upper[k]);
  }

 private:
  const double *l_, *u_;
  std::vector<double> ends_;
  std::vector<bool> flipped_;
};

}  // namespace

void bound_curve(const CurveFunction& function, int64_t n, const double* l, const double* u, double* low,
                 double* high) {
  const Mirrored ranges(function, n, l, u);
  PYROBUST_AT_LEVEL(kCurveKernels).bound(function, n, ranges.lower(), ranges.upper(), low, high);
  ranges.back(low, high);
  const Beyond beyond(function);
  for (int64_t k = 0; k < n && !beyond.none(); ++k) {
    const Distance d = beyond.at(u[k], low[k], high[k]);
    low[k] -= d.below, high[k] += d.above;
  }
}

void relax_curve(const CurveFunction& function, int64_t n, const double* l, const double* u, double* lower_slope,
                 double* lower_intercept, double* upper_slope, double* upper_intercept, double* low, double* high) {
  const Mirrored ranges(function, n, l, u);
  PYROBUST_AT_LEVEL(kCurveKernels)
      .relax(function, n, ranges.lower(), ranges.upper(), lower_slope, lower_intercept, upper_slope, upper_intercept,
             low, high);
  ranges.back(low, high), ranges.back(lower_intercept, upper_intercept);
  ranges.back_slopes(lower_slope, upper_slope);
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

// Outward arithmetic: every operation is in float64, and its result is then moved up or down by at least a step of
// float64.
#pragma once

#include <cmath>
#include <cstdint>

namespace pyrobust {

// Unit roundoff of T, its smallest number, and how it is rounded.
template <class T>
struct Unit;
template <>
struct Unit<float> {
  static constexpr double kRoundoff = 0x1p-24, kTiny = 0x1p-149;
};
template <>
struct Unit<double> {
  static constexpr double kRoundoff = 0x1p-53, kTiny = 0x1p-1074;
};

// With sound = false, plain arithmetic: bounds as if floats were real numbers.
class Outward {
 public:
  explicit Outward(bool sound) : step_(sound ? 0x1p-52 : 0), tiny_(sound ? 0x1p-1074 : 0), sound_(sound) {}

  bool sound() const { return sound_; }
  // At least the real number whose nearest float64 is a; for down, at most.
  double up(double a) const { return a + (std::fabs(a) * step_ + tiny_); }
  double down(double a) const { return a - (std::fabs(a) * step_ + tiny_); }

  // Zero stays zero: the sum of exact zeros and the product with one are exact.
  double add_up(double a, double b) const { return a == 0 ? b : b == 0 ? a : up(a + b); }
  double add_down(double a, double b) const { return a == 0 ? b : b == 0 ? a : down(a + b); }
  double mul_up(double a, double b) const { return zero(a, b) ? 0 : up(a * b); }
  double mul_down(double a, double b) const { return zero(a, b) ? 0 : down(a * b); }

  // No branches: moving a step too far costs less than a mispredicted branch.
  template <class T>
  T up_to(double a) const {
    return static_cast<T>(a + beyond<T>(a));
  }
  template <class T>
  T down_to(double a) const {
    return static_cast<T>(a - beyond<T>(a));
  }

  // At least (1 + u)^n - 1 for n roundings to nearest in T, n u <= 1/4: n u / (1 - n u) (Higham 2002, lemma 3.1).
  template <class T>
  double gamma(int64_t n) const {
    return gamma(n, Unit<T>::kRoundoff);
  }
  double gamma(int64_t n, double roundoff) const {
    if (!sound_) return 0;
    const double x = static_cast<double>(n) * roundoff;
    return x == 0 ? 0 : x < 0.25 ? up(x / (1 - x)) : INFINITY;
  }
  // Upper bound of the underflow of n operations in T.
  template <class T>
  double underflow(double n) const {
    return sound_ ? n * Unit<T>::kTiny : 0;
  }

  // Upper bound of the rounding error, in float64, of a few sums and products of total magnitude `size`. Zero at zero
  // for float32, because underflow in float64 is negligible beside the bound of underflow in float32.
  template <class T>
  double rounding_error(double size) const {
    return size * (8 * step_) + (sizeof(T) == sizeof(double) ? tiny_ : 0);
  }

 private:
  // More than half a step of T at a, and zero at zero.
  template <class T>
  double beyond(double a) const {
    if constexpr (sizeof(T) == sizeof(double)) return 0;
    return sound_ && a != 0 ? std::fabs(a) * (2 * Unit<T>::kRoundoff) + Unit<T>::kTiny : 0;
  }
  // Zero times infinity stays NaN.
  static bool zero(double a, double b) { return (a == 0 && std::isfinite(b)) || (b == 0 && std::isfinite(a)); }

  double step_, tiny_;
  bool sound_;
};

}  // namespace pyrobust

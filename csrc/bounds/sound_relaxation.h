// Sound linear relaxations of scalar functions on [l, u]: slopes rounded to T, intercepts valid for the rounded slopes.
#pragma once

#include <algorithm>
#include <cmath>

#include "bounds/outward_arithmetic.h"

namespace pyrobust {

// lower_slope z + lower_intercept <= f(z) <= upper_slope z + upper_intercept on [l, u].
template <class T>
struct LinearRelaxation {
  T lower_slope, upper_slope;
  double lower_intercept, upper_intercept;
};

// max(z, slope z) with slope in [0, 1]; ReLU has slope 0. The lower bound of an unstable neuron is the identity
// where u > -l, else slope z (Zhang et al., 2018); any slope in between, with intercept 0, is sound.
template <class T>
LinearRelaxation<T> relax_leaky_relu(double l, double u, double slope, const Outward& out) {
  const T slope_low = std::max(out.down_to<T>(slope), T(0)), slope_high = std::min(out.up_to<T>(slope), T(1));
  if (l >= 0) return {T(1), T(1), 0, 0};
  if (u <= 0) return {slope_high, slope_low, 0, 0};  // z is negative: the steeper slope is the lower bound
  if (!(std::isfinite(l) && std::isfinite(u))) return {slope_high, slope_high, slope == 0 ? 0 : -INFINITY, INFINITY};
  const double span = u - l;
  double ratio = span > 0 ? u / span + slope * (-l / span) : 1;  // (u - slope l) / (u - l)
  if (!(ratio >= 0)) ratio = 1;                                  // the span overflowed
  const T chord = std::clamp(static_cast<T>(ratio), slope_high, T(1));
  const auto lambda = static_cast<double>(chord);
  // f is convex: a line above it at both ends is above it in between.
  const double at_l = out.mul_up(out.add_up(slope, -lambda), l);
  const double at_l_other = out.mul_up(out.add_down(slope, -lambda), l);  // l < 0 turns the side
  const double at_u = out.mul_up(out.add_up(1, -lambda), u);
  return {u > -l ? T(1) : slope_high, chord, 0, std::max({at_l, at_l_other, at_u, 0.0})};
}

// The values on [l, u] of z above zero and a slope in [least, most], of any sign, times z below.
struct Values {
  double low, high;
};
inline Values prelu_values(double l, double u, double least, double most, const Outward& out) {
  if (!(l <= u)) return {NAN, NAN};
  if (l >= 0) return {l, u};
  // Below zero, the larger slope gives the smaller value; zero times an infinite end is zero.
  const auto low_at = [&](double z) { return most == 0 ? 0 : out.mul_down(most, z); };
  const auto high_at = [&](double z) { return least == 0 ? 0 : out.mul_up(least, z); };
  if (u >= 0) return {std::min(low_at(l), 0.0), std::max(high_at(l), u)};  // NaN stays
  return {std::min(low_at(l), low_at(u)), std::max(high_at(l), high_at(u))};
}

// Its relaxation. Slopes of at most 1 make it convex, others concave: on an unstable neuron, the outer line is a chord,
// and the inner line goes through zero with slope 1 where u > -l, else with the slope below zero.
template <class T>
LinearRelaxation<T> relax_prelu(double l, double u, double least, double most, const Outward& out) {
  // Below zero, a slope smaller than all others gives an upper bound.
  const T above = out.down_to<T>(least), below = out.up_to<T>(most);
  if (l >= 0) return {T(1), T(1), 0, 0};
  if (u <= 0) return {below, above, 0, 0};
  if (!(std::isfinite(l) && std::isfinite(u))) return {T(0), T(0), -INFINITY, INFINITY};
  const bool identity = u > -l;
  const auto chord = [&](double slope) {
    const double span = u - l, ratio = span > 0 ? u / span + slope * (-l / span) : 1;  // (u - slope l) / (u - l)
    return static_cast<T>(ratio >= std::min(slope, 1.0) ? std::min(ratio, std::max(slope, 1.0)) : 1.0);
  };
  LinearRelaxation<T> relaxation{identity ? T(1) : below, identity ? T(1) : above, 0, 0};
  // A line above a convex function at both ends is above it in between, and one below a concave function is below it.
  if (most > 1) {
    relaxation.lower_slope = chord(most);
    const auto s = static_cast<double>(relaxation.lower_slope);
    relaxation.lower_intercept = std::min(
        {out.mul_down(out.add_up(most, -s), l), out.mul_down(out.add_down(1, -s), u), 0.0});  // l < 0 turns the side
  } else {
    relaxation.lower_slope = std::min(relaxation.lower_slope, T(1));
  }
  if (least < 1) {
    relaxation.upper_slope = chord(least);
    const auto s = static_cast<double>(relaxation.upper_slope);
    relaxation.upper_intercept =
        std::max({out.mul_up(out.add_down(least, -s), l), out.mul_up(out.add_up(1, -s), u), 0.0});
  } else {
    relaxation.upper_slope = std::max(relaxation.upper_slope, T(1));
  }
  return relaxation;
}

// The element of [low, high] nearest to z.
template <class T>
LinearRelaxation<T> relax_clamp(double l, double u, double low, double high, const Outward& out) {
  if (l >= low && u <= high) return {T(1), T(1), 0, 0};
  if (u <= low) return {T(0), T(0), low, low};
  if (l >= high) return {T(0), T(0), high, high};
  if (!(std::isfinite(l) && std::isfinite(u))) return {T(0), T(0), low, high};
  const double bottom = std::max(l, low), top = std::min(u, high);  // f(l) and f(u)
  const double middle = l / 2 + u / 2;
  // Lower bound: the line from the lower corner to the end, or the constant f(l), whichever is tighter in the middle;
  // upper bound likewise. Where only one corner is inside, one of the two is the chord.
  double below = 0, above = 0;
  if (l >= low)
    below = (top - bottom) / (u - l);
  else if (middle > low)
    below = u > low ? (top - low) / (u - low) : 0;
  if (u <= high)
    above = (top - bottom) / (u - l);
  else if (middle < high)
    above = l < high ? (high - bottom) / (high - l) : 0;
  const auto slope = [](double a) { return a > 0 ? static_cast<T>(std::min(a, 1.0)) : T(0); };
  LinearRelaxation<T> relaxation{slope(below), slope(above), INFINITY, -INFINITY};
  // f(z) - slope z is linear between the corners: its extremes are among these.
  const double points[4] = {l, u, low, high};
  for (const double z : points) {
    if (!(z >= l && z <= u)) continue;
    const double f = std::min(std::max(z, low), high);
    relaxation.lower_intercept = std::min(relaxation.lower_intercept,
                                          out.add_down(f, -out.mul_up(static_cast<double>(relaxation.lower_slope), z)));
    relaxation.upper_intercept = std::max(relaxation.upper_intercept,
                                          out.add_up(f, -out.mul_down(static_cast<double>(relaxation.upper_slope), z)));
  }
  return relaxation;
}

}  // namespace pyrobust

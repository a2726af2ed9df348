// The lines of leaky ReLU for training, in the arithmetic of the coefficients, and their derivatives; nothing is proved by
// them (bounds/sound_relaxation.h has the lines that are).
#pragma once

#include "common/host_device.h"

namespace pyrobust {

// On [l, u]: lower_slope z <= max(z, slope z) <= upper_slope z + intercept, slope in [0, 1].
template <class T>
struct ReluLines {
  T lower_slope, upper_slope, intercept;
};

// A range with a NaN counts as one of both signs, so that NaN comes out.
template <class T>
PYROBUST_HD bool of_both_signs(T l, T u) {
  return !(l >= 0 || u <= 0);
}

// Above, the chord; below, the identity where u > -l, else slope z (Zhang et al., 2018).
template <class T>
PYROBUST_HD ReluLines<T> relu_lines(T l, T u, T slope) {
  if (!of_both_signs(l, u)) {
    const T one_line = l >= 0 ? T(1) : slope;
    return {one_line, one_line, T(0)};
  }
  const T chord = (u - slope * l) / (u - l);
  return {u > -l ? T(1) : slope, chord, (T(1) - chord) * u};
}

// of_l and of_u: the derivatives by the range, from those by the slope and the intercept of the chord.
template <class T>
PYROBUST_HD void relu_lines_backward(T l, T u, T slope, T of_slope, T of_intercept, T& of_l, T& of_u) {
  of_l = of_u = T(0);
  if (!of_both_signs(l, u)) return;
  const T span = u - l, rest = (T(1) - slope) / span;  // 1 - chord is -l rest
  const T total = of_slope - u * of_intercept;
  of_l = total * (u / span) * rest;
  of_u = total * (-l / span) * rest - of_intercept * l * rest;
}

}  // namespace pyrobust

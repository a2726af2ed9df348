// Linear relaxation of leaky ReLU for training, in the arithmetic of the coefficients, and its derivatives. It proves
// nothing: bounds/sound_relaxation.h holds the sound relaxation.
#pragma once

#include "common/host_device.h"

namespace pyrobust {

// On [l, u]: lower_slope z <= max(z, slope z) <= upper_slope z + intercept, slope in [0, 1].
template <class T>
struct ReluRelaxation {
  T lower_slope, upper_slope, intercept;
};

// Whether a neuron is unstable. A range with NaN counts as unstable, so that NaN propagates.
template <class T>
PYROBUST_HD bool unstable(T l, T u) {
  return !(l >= 0 || u <= 0);
}

// Upper bound: the chord. Lower bound: the identity where u > -l, else slope z (Zhang et al., 2018).
template <class T>
PYROBUST_HD ReluRelaxation<T> relu_relaxation(T l, T u, T slope) {
  if (!unstable(l, u)) {
    const T slope_of_one_piece = l >= 0 ? T(1) : slope;
    return {slope_of_one_piece, slope_of_one_piece, T(0)};
  }
  const T chord = (u - slope * l) / (u - l);
  return {u > -l ? T(1) : slope, chord, (T(1) - chord) * u};
}

// Computes of_l and of_u, the derivatives by the range's ends, from those by slope and intercept of the chord.
template <class T>
PYROBUST_HD void relu_relaxation_backward(T l, T u, T slope, T of_slope, T of_intercept, T& of_l, T& of_u) {
  of_l = of_u = T(0);
  if (!unstable(l, u)) return;
  const T span = u - l, rest = (T(1) - slope) / span;  // 1 - chord is -l rest
  const T total = of_slope - u * of_intercept;
  of_l = total * (u / span) * rest;
  of_u = total * (-l / span) * rest - of_intercept * l * rest;
}

}  // namespace pyrobust

"""Certified radii from bounds on the class probabilities."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pyrobust.checks import NormLike, array, first_wrong, non_negative, norm_name, number
from pyrobust.errors import InputError
from pyrobust.stats import normal_quantile_lower

#: Pairs (noise, norm) with a certificate.
CERTIFIED = (("gaussian", "l2"), ("uniform", "l1"), ("laplace", "l1"))

# Bound on the rounding error of each formula relative to its largest term: a handful of double operations on numbers of
# order one, with a total error below 2^-48.
_MARGIN = 2.0**-46
# The float32 constants of uniform and Laplace noise are up to 1.8e-8 below the half-width and scale that give unit
# standard deviation.
_UNIT = 1 - 2.0**-25
# Smallest and largest sigma: within them, sigma is a normal float32, and sigma times any unit noise is finite.
_MIN_SIGMA, _MAX_SIGMA = 2.0**-126, 2.0**124


def _checked_sigma(sigma: float) -> float:
    """Return the smaller of sigma and float32(sigma), since some noise is drawn with float32(sigma)."""
    sigma = number("sigma", sigma)
    if not _MIN_SIGMA <= sigma <= _MAX_SIGMA:
        raise InputError("sigma", "a positive number in the range of float32 noise", sigma)
    return min(sigma, float(np.float32(sigma)))


def certified_radius(
    p_lower: npt.ArrayLike, sigma: float, *, noise: str = "gaussian", norm: NormLike = "l2"
) -> npt.NDArray[np.float64]:
    """Return the certified radius, rounded down so that even points at exactly this distance are certified.

    p is the lower bound on the probability of the top class, and 1 - p is the upper bound on the probability of every
    other class. For each pair of noise and norm, the radius is:

    - gaussian, l2: ``sigma·Φ⁻¹(p)`` (Cohen, Rosenfeld and Kolter, 2019);
    - laplace, l1: ``-b·ln(2(1 - p))`` with scale ``b = sigma/√2`` (Teng, Lee and Yuan, 2020);
    - uniform, l1: ``2λ(p - 1/2)`` with half-width ``λ = √3·sigma`` (Yang et al., 2020).

    Args:
        p_lower: lower bound on the probability of the top class, in [0, 1), any shape; NaN certifies nothing.
        sigma: standard deviation of the noise, positive. Without a grid, the noise of a float32 or 16-bit model is
            drawn with sigma rounded to float32; other noise is drawn with sigma itself. The radius is computed with the
            smaller of sigma and the rounded sigma, so it holds in both cases.
        noise: "gaussian", "uniform" or "laplace".
        norm: "l2" for gaussian, "l1" for the others.

    Returns:
        The radius, float64 of p_lower's shape, in the input's unit. It is 0.0 where p ≤ 1/2.

    Raises:
        InputError: the pair (noise, norm) has no certificate, sigma is not positive or out of float32's range, or
            p_lower is outside [0, 1).
        InputTypeError: sigma is not a number, or p_lower is not a number or an array of numbers.

    >>> [f"{radius:.6f}" for radius in certified_radius([0.4, 0.5, 0.9, 0.99], 0.25)]
    ['0.000000', '0.000000', '0.320388', '0.581587']
    """
    norm = norm_name("norm", norm)
    if (noise, norm) not in CERTIFIED:
        pairs = ", ".join(f"{a} with {b}" for a, b in CERTIFIED)
        raise InputError("noise, norm", pairs, f"{noise} with {norm}")
    sigma = _checked_sigma(sigma)
    p = array("p_lower", p_lower)
    wrong = (p < 0) | (p >= 1)
    if bool(wrong.any()):
        raise InputError("p_lower", "probabilities in [0, 1)", first_wrong(p, wrong))
    if noise != "gaussian":
        sigma *= _UNIT

    radius = np.zeros(p.shape, dtype=np.float64)
    certified = p > 0.5
    q = p[certified]
    if noise == "gaussian":
        scaled = sigma * np.asarray(normal_quantile_lower(q))
        rounding_error = np.abs(scaled) * _MARGIN
    elif noise == "laplace":
        scaled = sigma / math.sqrt(2) * (-math.log(2) - np.log1p(-q))
        rounding_error = sigma * (1 + np.abs(np.log1p(-q))) * _MARGIN
    elif noise == "uniform":
        scaled = 2 * math.sqrt(3) * sigma * (q - 0.5)
        rounding_error = np.full(q.shape, sigma * _MARGIN)
    else:
        raise NotImplementedError(f"noise: {noise} has no radius; add its formula here")
    radius[certified] = np.maximum(0.0, np.nextafter(scaled - rounding_error, -np.inf))
    return radius


def required_probability(radius: float, sigma: float, *, noise: str = "gaussian", norm: NormLike = "l2") -> float:
    """Smallest p_lower at which certified_radius reaches a given radius.

    Args:
        radius: at least 0, in the input's unit.
        sigma: standard deviation of the noise, positive.
        noise: "gaussian", "uniform" or "laplace".
        norm: "l2" for gaussian, "l1" for the others.

    Returns:
        The smallest double p in (1/2, 1] with ``certified_radius(p) >= radius``. For radius 0, it is just above 1/2. If
        no p below 1 is enough, it is 1.0.

    Raises:
        InputError: the radius is negative or not finite, or sigma, noise or norm is not valid for ``certified_radius``.
        InputTypeError: the radius or sigma is not a number.

    >>> f"{required_probability(0.25, 0.25):.6f}"
    '0.841345'
    """
    radius = non_negative("radius", radius)
    below, above = 0.5, 1.0
    while below < (middle := 0.5 * (below + above)) < above:
        if float(certified_radius(middle, sigma, noise=noise, norm=norm)) >= radius:
            above = middle
        else:
            below = middle
    return above


def two_class_radius(p_a_lower: npt.ArrayLike, p_b_upper: npt.ArrayLike, sigma: float) -> npt.NDArray[np.float64]:
    """Certified l2 radius under Gaussian noise from bounds on the probabilities of the top class and every other class.

    Computes ``sigma/2·(Φ⁻¹(p_A) - Φ⁻¹(p_B))`` for the bounds p_A and p_B, rounded down (Cohen, Rosenfeld and Kolter,
    2019, theorem 1). For p_B = 1 - p_A, it equals ``certified_radius`` up to rounding. If the votes spread over several
    other classes, p_B is smaller than 1 - p_A and the radius is larger.

    Args:
        p_a_lower: lower bound on the probability of the top class, in [0, 1), any shape; NaN certifies nothing.
        p_b_upper: upper bound on the probability of every other class, in (0, 1]. Its shape must broadcast with
            p_a_lower.
        sigma: standard deviation of the noise, positive.

    Returns:
        The radius, float64 of the broadcast shape, in the input's unit. It is 0.0 where p_A is not above p_B.

    Raises:
        InputError: a bound is out of range, the shapes do not broadcast, or sigma is not positive.
        InputTypeError: sigma is not a number, or a bound is not a number or an array of numbers.

    >>> f"{two_class_radius(0.6, 0.1, 0.5):.6f}", f"{certified_radius(0.6, 0.5):.6f}"
    ('0.383725', '0.126674')
    """
    sigma = _checked_sigma(sigma)
    a, b = array("p_a_lower", p_a_lower), array("p_b_upper", p_b_upper)
    for name, p, wrong in (("p_a_lower", a, (a < 0) | (a >= 1)), ("p_b_upper", b, (b <= 0) | (b > 1))):
        if bool(wrong.any()):
            limits = "[0, 1)" if name == "p_a_lower" else "(0, 1]"
            raise InputError(name, f"probabilities in {limits}", first_wrong(p, wrong))
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError as error:
        raise InputError("p_a_lower, p_b_upper", "shapes that broadcast", f"{a.shape} and {b.shape}") from error
    radius = np.zeros(a.shape, dtype=np.float64)
    certified = (a > b) & (b < 1)
    # -Φ⁻¹(p_B) = Φ⁻¹(1 - p_B), where 1 - p_B and its quantile are both rounded down.
    top = np.asarray(normal_quantile_lower(a[certified]))
    others = np.asarray(normal_quantile_lower(np.nextafter(1.0 - b[certified], 0.0)))
    scaled = 0.5 * sigma * (top + others)
    rounding_error = 0.5 * sigma * (np.abs(top) + np.abs(others)) * _MARGIN
    radius[certified] = np.maximum(0.0, np.nextafter(scaled - rounding_error, -np.inf))
    return radius

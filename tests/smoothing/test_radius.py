"""Certified radii against ball arithmetic: never above the exact radius, and only slightly below it."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from pyrobust import certified_radius, ops
from pyrobust.errors import InputError, InputTypeError
from pyrobust.reference import noise_words
from pyrobust.reference.noise import minus_two_log
from pyrobust.reference.rounding import fma

flint = pytest.importorskip("flint", reason="python-flint provides the ball arithmetic")
arb, ctx = flint.arb, flint.ctx

NORMS = {"gaussian": "l2", "uniform": "l1", "laplace": "l1"}
SIGMAS = [0.25, 0.1, 1.0, 1 / 3, 1e-3, 77.7, 2.0**-126, 1e37]


@pytest.fixture(autouse=True)
def _precision():
    before, ctx.prec = ctx.prec, 200
    yield
    ctx.prec = before


def probabilities():
    rng = np.random.default_rng(0)
    near_half = 0.5 + 2.0 ** rng.uniform(-53, -1, 60)
    near_one = 1 - 2.0 ** rng.uniform(-52.9, -1, 60)
    edges = [math.nextafter(0.5, 1), math.nextafter(1, 0), 0.75, 0.999, 0.9]
    values = np.concatenate([near_half, near_one, rng.uniform(0.5, 1, 60), edges])
    return values[(values > 0.5) & (values < 1)]


# float32 factors of sigma in the noise, slightly below the exact half-width and scale of unit standard deviation.
DRAWN_WIDTH = np.float32(math.sqrt(3) * 2.0**-31)  # the half-width of a unit uniform is 2^31 times this
DRAWN_SCALE = np.float32(math.sqrt(1 / 8))  # the scale of a unit Laplace is twice this


def gap_to_exact(noise, sigma, p, radius, *, drawn=False):
    """Ball that encloses the gap of the radius to the exact one, in probability.

    With ``drawn``, for the noise as drawn, with its float32 constants, instead of noise of standard deviation sigma.
    """
    p, sigma = arb(p), arb(sigma)
    if noise == "gaussian":
        return p - (-arb(radius) / (sigma * arb(2).sqrt())).erfc() / 2
    if noise == "laplace":  # distance d needs 1 - exp(-d/b) / 2
        scale = 2 * arb(float(DRAWN_SCALE)) if drawn else 1 / arb(2).sqrt()
        return p - (1 - (-arb(radius) / (sigma * scale)).exp() / 2)
    assert noise == "uniform"
    width = arb(2) ** 31 * arb(float(DRAWN_WIDTH)) if drawn else arb(3).sqrt()
    return p - (arb(0.5) + arb(radius) / (2 * width * sigma))


def test_constants_match_the_noise_op():
    words = noise_words(0, 0, 200, 64, noise="uniform")
    signed = (words - ((words >> 31) << 32)).float()
    width = torch.tensor(DRAWN_WIDTH)
    z = ops.sample_noise(torch.zeros(1, 64), [(0, 0, 0, 200)], sigma=1.0, noise="uniform")
    assert torch.equal(z, fma(signed, width.expand_as(signed), (width / 2).expand_as(signed)))
    magnitude = minus_two_log(noise_words(0, 0, 200, 64, noise="laplace") & 0x7FFFFFFF)
    z = ops.sample_noise(torch.zeros(1, 64), [(0, 0, 0, 200)], sigma=1.0, noise="laplace")
    assert torch.equal(z.abs(), magnitude * torch.tensor(DRAWN_SCALE))


@pytest.mark.parametrize("noise", list(NORMS))
@pytest.mark.parametrize("sigma", SIGMAS)
def test_radius_is_sound_and_tight(noise, sigma):
    p = probabilities()
    radii = certified_radius(p, sigma, noise=noise, norm=NORMS[noise])
    drawn = float(np.float32(sigma))
    for value, radius in zip(p.tolist(), radii.tolist(), strict=True):
        # The noise is drawn with sigma rounded to float32; the radius must hold for both values of sigma.
        assert gap_to_exact(noise, sigma, value, radius) >= 0, f"unsound: {noise}, p={value!r}, radius={radius!r}"
        gap = gap_to_exact(noise, drawn, value, radius, drawn=True)
        assert gap >= 0, f"unsound: {noise}, p={value!r}, radius={radius!r}"
        if value > 0.5001:
            assert radius > 0
            above = radius * (1 + (1e-9 if noise == "gaussian" else 3e-8))
            gap = gap_to_exact(noise, min(sigma, drawn), value, above, drawn=True)
            assert gap < 0, f"loose: {noise}, p={value!r}"


@pytest.mark.parametrize("noise", list(NORMS))
def test_radius_is_sound_for_many_sigmas(noise):
    """Rounding errors add up to several units only for some pairs of sigma and p."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.5, 1, 30)
    for sigma in np.float32(rng.uniform(0.01, 2, 100)).astype(float).tolist():
        radii = certified_radius(p, sigma, noise=noise, norm=NORMS[noise]).tolist()
        for value, radius in zip(p.tolist(), radii, strict=True):
            gap = gap_to_exact(noise, sigma, value, radius, drawn=True)
            assert gap >= 0, f"unsound: sigma={sigma!r}, p={value!r}"


@pytest.mark.parametrize("noise", list(NORMS))
def test_radius_is_strictly_inside_the_open_ball(noise):
    for value in (0.75, 0.9, 1 - 2.0**-20):
        radius = float(certified_radius(value, 0.25, noise=noise, norm=NORMS[noise]))
        assert gap_to_exact(noise, 0.25, value, math.nextafter(radius, math.inf), drawn=True) > 0


@pytest.mark.parametrize("noise", list(NORMS))
def test_no_certificate_at_or_below_one_half(noise):
    p = [0.0, 0.25, math.nextafter(0.5, 0), 0.5, math.nan]
    assert certified_radius(p, 0.5, noise=noise, norm=NORMS[noise]).tolist() == [0.0] * 5


def test_radius_is_monotone_in_p_and_has_its_shape():
    p = np.linspace(0.5, 0.99999, 3000)
    for noise, norm in NORMS.items():
        radii = certified_radius(p, 0.3, noise=noise, norm=norm)
        assert (np.diff(radii) >= 0).all()
        assert radii.shape == (3000,)
        assert radii.dtype == np.float64
    assert certified_radius(np.full((2, 3), 0.7), 0.3).shape == (2, 3)
    assert certified_radius([], 0.3).shape == (0,)
    assert certified_radius(0.7, 0.3).shape == ()


def test_invalid_arguments_are_rejected():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sigma in (0.0, -1.0, math.nan, math.inf, 1e-60, 1e60, 1e-39, 3e38):
            with pytest.raises(InputError, match="sigma: expected a positive number"):
                certified_radius(0.9, sigma)
    for sigma in ("0.5", None, [0.5]):
        with pytest.raises(InputTypeError, match="sigma: expected a number, got"):
            certified_radius(0.9, sigma)
    for p in (1.0, -0.1, math.inf, -math.inf, [0.5, 1.0]):
        with pytest.raises(InputError, match="p_lower: expected probabilities"):
            certified_radius(p, 0.5)
    for noise, norm in [("gaussian", "l1"), ("gaussian", "linf"), ("uniform", "l2"), ("cauchy", "l2")]:
        with pytest.raises(InputError, match=f"noise, norm: expected .* got {noise} with {norm}"):
            certified_radius(0.9, 0.5, noise=noise, norm=norm)

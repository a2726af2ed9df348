"""Statistical tests of the noise: distribution, and independence of neighbouring draws.

Seeds are fixed, so results do not vary between runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special, stats

from pyrobust import ops

FAMILIES = ("gaussian", "uniform", "laplace")
ROOT3 = math.sqrt(3)
N = 10_000_000
WIDE = 3 * 224 * 224


def draws(n: int, noise: str = "gaussian", *, image: int = 0, first: int = 0, **how: Any) -> NDArray[np.float32]:
    """Return n consecutive values of unit noise: the elements of one sample, then those of the next."""
    z = ops.sample_noise(torch.zeros(1, WIDE), [(0, image, first, -(-n // WIDE))], sigma=1.0, noise=noise, **how)
    return z.flatten()[:n].numpy()


def laplace_cdf(z: NDArray[np.float64]) -> NDArray[np.float64]:
    tail = 0.5 * np.exp(-math.sqrt(2) * np.abs(z))
    return np.where(z < 0, tail, 1 - tail)


CDF: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "gaussian": special.ndtr,
    "uniform": lambda z: (z / ROOT3 + 1) / 2,
    "laplace": laplace_cdf,
}
# E z^k for even k; odd moments are 0.
MOMENT: dict[str, Callable[[int], float]] = {
    "gaussian": lambda k: math.prod(range(1, k, 2)),
    "uniform": lambda k: ROOT3**k / (k + 1),
    "laplace": lambda k: math.factorial(k) / 2 ** (k / 2),
}
TAIL: dict[str, Callable[[float], float]] = {
    "gaussian": lambda t: math.erfc(t / math.sqrt(2)),
    "laplace": lambda t: math.exp(-math.sqrt(2) * t),
}


@pytest.mark.parametrize("noise", FAMILIES)
def test_ten_million_draws(noise: str) -> None:
    z = np.sort(draws(N, noise, seed=2024)).astype(np.float64)
    # Mean, variance, skewness and kurtosis as raw moments, whose sampling errors are exact.
    square = z * z
    for k, total in enumerate((z.sum(), square.sum(), z @ square, square @ square), 1):
        want = MOMENT[noise](k) if k % 2 == 0 else 0.0
        error = math.sqrt((MOMENT[noise](2 * k) - want**2) / N)
        assert abs(total / N - want) < 5 * error, f"moment {k}"
    # Kolmogorov-Smirnov at every tenth draw, which misses 1e-6; the probability of exceeding 2.0 is 7e-4.
    cdf, below = CDF[noise](z[::10]), np.arange(0, N, 10)
    assert math.sqrt(N) * max(((below + 1) / N - cdf).max(), (cdf - below / N).max()) < 2.0
    assert stats.kstwobign.sf(2.0) < 1e-3


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_tails(noise: str) -> None:
    limits = (1.0, 3.0, 4.0, 5.0, 5.5)
    rounds = 6
    beyond = np.zeros(2 * len(limits))
    for image in range(rounds):
        z = draws(N, noise, seed=7, image=image)
        z = z[np.abs(z) > limits[0]]
        far = z[np.abs(z) > limits[1]]
        beyond += [np.count_nonzero(side * (z if limit < 3 else far) > limit) for side in (1, -1) for limit in limits]
    for count, (_, limit) in zip(beyond, itertools.product((1, -1), limits), strict=True):
        p = TAIL[noise](limit) / 2
        assert abs(count - rounds * N * p) < 5 * math.sqrt(rounds * N * p * (1 - p)), limit


def test_uniform_noise_stays_within_its_bounds_and_reaches_them() -> None:
    z = draws(N // 4, "uniform", seed=7)
    bound = np.float32(ROOT3)
    assert z.max() <= bound
    assert z.min() >= -bound
    assert z.max() > bound * (1 - 1e-5)
    assert z.min() < -bound * (1 - 1e-5)


def assert_independent(a: NDArray[np.float32], b: NDArray[np.float32], noise: str) -> None:
    """Check correlations of values, squares and magnitudes, and a two-sided chi-squared test on a 16 x 16 table."""
    n = len(a)
    a, b = a.astype(np.float64), b.astype(np.float64)
    assert (np.abs(np.corrcoef([a, a * a, np.abs(a), b, b * b, np.abs(b)])[:3, 3:]) < 5 / math.sqrt(n)).all()
    columns, rows = ((16 * CDF[noise](z)).astype(np.int64).clip(0, 15) for z in (a, b))
    table = np.bincount(16 * rows + columns, minlength=256)
    chi_square = ((table - n / 256) ** 2).sum() / (n / 256)
    assert 1e-5 < stats.chi2.sf(chi_square, 255) < 1 - 1e-5


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adjacent samples": ({}, {"first": 10}),
    "adjacent images": ({}, {"image": 1}),
    "image and sample exchanged": ({"image": 1, "first": 20}, {"image": 20, "first": 1}),
    "images a power of two apart": ({}, {"image": 1 << 31}),
    "selection and estimation": ({"stage": "select"}, {"stage": "estimate"}),
    "prediction and attack": ({"stage": "predict"}, {"stage": "attack"}),
    "adjacent seeds": ({"seed": 0}, {"seed": 1}),
    "seeds of swapped halves": ({"seed": 5}, {"seed": 5 << 32}),
    "seeds that differ in the top bit": ({"seed": 9}, {"seed": 9 + (1 << 63)}),
    "seed and image": ({"seed": 1, "image": 0}, {"seed": 0, "image": 1}),
}


@pytest.mark.parametrize(("pair", "noise"), zip(PAIRS, itertools.cycle(FAMILIES), strict=False))
def test_independence_of_neighbours(pair: str, noise: str) -> None:
    n, (first, second) = 4 * WIDE, PAIRS[pair]  # four samples, whose words are those of every family
    assert_independent(draws(n, noise, **first), draws(n, noise, **second), noise)


@pytest.mark.parametrize("noise", FAMILIES)
def test_independence_of_adjacent_samples_and_elements(noise: str) -> None:
    z = draws(9 * WIDE, noise, seed=11)
    assert_independent(z[:-WIDE], z[WIDE:], noise)  # the same element in the next sample
    for lag in (1, 2, 4, 64):
        assert_independent(z[:-lag], z[lag:], noise)
    for first, second in itertools.combinations(range(4), 2):  # the words of one block, its Box-Muller pairs among them
        assert_independent(z[first::4], z[second::4], noise)


def test_families_do_not_share_words() -> None:
    n = 8 * WIDE
    uniform = {noise: CDF[noise](draws(n, noise).astype(np.float64)).astype(np.float32) for noise in FAMILIES}
    for first, second in itertools.combinations(FAMILIES, 2):
        shifted = [(ROOT3 * (2 * uniform[noise] - 1)).astype(np.float32) for noise in (first, second)]
        assert_independent(*shifted, "uniform")


def test_the_checks_detect_dependence() -> None:
    n = 8 * WIDE
    a, b = draws(n), draws(n, image=1)
    for dependent in (a, -a, np.abs(a) * np.sign(b), (0.01 * a + b).astype(np.float32)):
        with pytest.raises(AssertionError):
            assert_independent(a, dependent, "gaussian")

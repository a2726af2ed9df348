"""Parameters that may have produced a log, the usual ones first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from pyrobust.auditing.formulas import OTHER_FORMULAS, Parameters
from pyrobust.auditing.saturation import Saturation

#: Usual numbers of samples, probabilities of error and standard deviations.
ROUND_N = (*(m * 10**e for e in range(1, 6) for m in (1, 2, 5)), 10**6)
ROUND_ALPHA = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5, 1e-6, 1e-7)
ROUND_SIGMA = (0.06, 0.1, 0.12, 0.125, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0)
_USUAL_N = {m * 10**e for e in range(2, 6) for m in (1, 2, 5)}
_USUAL_ALPHA, _USUAL_SIGMA = {0.001, 0.01, 0.05}, {0.12, 0.25, 0.5, 1.0}
# Numbers of samples for selecting the class, which scripts may count among the samples of the bound.
_USUAL_N0 = (100, 1000)
# All whole numbers of an interval are tried if there are at most so many, else so many of the roundest.
_ALL_WHOLE, _ROUNDEST = 40, 6
# Largest odd n that a pile is believed to imply.
_LARGEST_N = 10**7
# Smallest odd alpha.
_SMALLEST_ALPHA = 1e-9


def oddness(parameters: Parameters, assumed: Parameters, free: Iterable[str]) -> float:
    """Rank an explanation: below 1 if values and formula are usual and at most one unstated parameter changes."""
    rank = 0 if parameters.n in _USUAL_N or parameters.n == assumed.n else 4 if parameters.n in ROUND_N else 6
    if parameters.alpha not in _USUAL_ALPHA and parameters.alpha != assumed.alpha:
        rank += 2 if parameters.alpha in ROUND_ALPHA else 6
    if parameters.sigma not in _USUAL_SIGMA and parameters.sigma != assumed.sigma:
        rank += 4 if parameters.sigma in ROUND_SIGMA else 8
    differing = parameters.differing(assumed)
    rank += max(0, len(differing) - 1) * 2 + len(set(differing) - set(free))
    # Rounder numbers first.
    digits = len(str(parameters.n).rstrip("0")) + len(f"{parameters.sigma:.6g}")
    formula = 4 + OTHER_FORMULAS.index(parameters.formula) / 10 if parameters.formula.name else 0
    return rank + formula + digits / 100


def usual_candidates(assumed: Parameters, pile: Saturation | None, free: Iterable[str]) -> Iterator[Parameters]:
    """Yield usual parameters other than the assumed ones.

    With ``pile`` (equal radii at the upper end of the log), yield only parameters whose maximum radius is the radius of
    the pile. Without a pile, combine a sigma that is not the assumed one only with the assumed n and alpha. Combine a
    formula that is not the usual one with other values of n only if nobody stated n, and with other values of alpha
    only if nobody stated alpha.
    """
    n, alpha, sigma = assumed.n, assumed.alpha, assumed.sigma
    grid = _grid(assumed)
    yield from _distinct((Parameters(m, a, sigma) for m, a in grid), assumed, pile)
    for other in ROUND_SIGMA:
        yield from _distinct((Parameters(m, a, other) for m, a in (grid if pile else [(n, alpha)])), assumed, pile)
    usual = [(m, a) for m, a in _usual(grid, assumed) if (m == n or "n" in free) and (a == alpha or "alpha" in free)]
    for formula in OTHER_FORMULAS:
        if not formula.only_scales or formula.factor(sigma) != sigma:
            yield from _distinct((Parameters(m, a, sigma, formula) for m, a in usual), assumed, pile)


def odd_candidates(
    assumed: Parameters, pile: Saturation | None, free: Iterable[str], *, wide: bool
) -> Iterator[Parameters]:
    """Yield parameters with one unusual value, which is implied by ``pile`` or, without a pile, has few digits."""
    n, alpha, sigma = assumed.n, assumed.alpha, assumed.sigma
    usual = _usual(_grid(assumed), assumed)
    if pile is None:
        alphas = dict.fromkeys((alpha, *ROUND_ALPHA)) if wide else (alpha,)
        yield from _distinct((Parameters(m, a, sigma) for m in _two_digits(2, 5) for a in alphas), assumed, pile)
        if not wide:
            return
        yield from _distinct((Parameters(n, a, sigma) for a in _one_digit_alphas()), assumed, pile)
        yield from (Parameters(n, alpha, round(s, 2)) for s in np.arange(0.05, 2.0, 0.01).tolist())
        return
    for a in dict.fromkeys((alpha, *ROUND_ALPHA)):
        least, _, largest = pile.implied_n(a, sigma)
        if largest < _LARGEST_N:
            numbers = _whole_numbers(max(1.0, least), largest)
            yield from _distinct((Parameters(m, a, sigma) for m in numbers), assumed, pile)
    for m in dict.fromkeys((n, *ROUND_N)):
        least, _, largest = pile.implied_alpha(m, sigma)
        odd = (Parameters(m, a, sigma) for a in _round_numbers(least, largest, 2) if _SMALLEST_ALPHA < a < 0.5)
        yield from _distinct(odd, assumed, pile)
    low, high = pile.interval
    for m, a in usual if set(free) else [(n, alpha)]:
        unit = Parameters(m, a, 1.0).maximum
        if unit > 0:
            odd = (Parameters(m, a, s) for s in _round_numbers(low / unit, high / unit, 3))
            yield from _distinct(odd, assumed, pile)


def _distinct(parameters: Iterable[Parameters], assumed: Parameters, pile: Saturation | None) -> Iterator[Parameters]:
    for candidate in parameters:
        if (
            candidate != assumed
            and candidate.maximum > 0
            and (pile is None or pile.agrees(candidate.maximum, candidate.formula.up))
        ):
            yield candidate


def _grid(assumed: Parameters) -> list[tuple[int, float]]:
    ns, alphas = dict.fromkeys((assumed.n, *ROUND_N)), dict.fromkeys((assumed.alpha, *ROUND_ALPHA))
    return [(n, alpha) for n in ns for alpha in alphas]


def _usual(grid: list[tuple[int, float]], assumed: Parameters) -> list[tuple[int, float]]:
    ns, alphas = {assumed.n, *_USUAL_N}, {assumed.alpha, *_USUAL_ALPHA}
    return [(n, alpha) for n, alpha in grid if n in ns and alpha in alphas]


def _two_digits(first: int, last: int) -> Iterator[int]:
    """Yield the numbers of at most two significant digits in [10**first, 10**last), and sums of usual sample sizes."""
    for exponent in range(first, last):
        yield from (m * 10 ** (exponent - 1) for m in range(10, 100))
    yield from (m + n0 for m in sorted(_USUAL_N) for n0 in _USUAL_N0)


def _one_digit_alphas() -> Iterator[float]:
    for exponent in range(2, 8):
        yield from (float(f"{m}e-{exponent}") for m in range(1, 10))


def _whole_numbers(low: float, high: float) -> list[int]:
    """Return the whole numbers of an interval; if they are many, only the roundest and sums of usual sample sizes."""
    first, last = math.ceil(low), math.floor(high)
    together = [m + n0 for m in sorted(_USUAL_N) for n0 in _USUAL_N0 if first <= m + n0 <= last]
    if last - first < _ALL_WHOLE:
        return [*range(first, last + 1)]
    return [*dict.fromkeys([*map(int, _round_numbers(low, high, 6)), *together])]


def _round_numbers(low: float, high: float, digits: int) -> list[float]:
    """Return the numbers with the fewest significant digits, at most ``digits``, in an interval of positive numbers."""
    if not 0 < low <= high:
        return []
    for exponent in range(math.floor(math.log10(high)), math.floor(math.log10(high)) - digits, -1):
        first, last = math.ceil(low / 10.0**exponent - 1e-9), math.floor(high / 10.0**exponent + 1e-9)
        if first <= last:
            chosen = range(first, last + 1)[:_ROUNDEST]
            return [float(f"{m}e{exponent}") for m in chosen]
    return []

"""Planning a certification run: expected samples and certificates of each sampling method, from a pilot run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.checks import NormLike, array, count, first_values, non_negative, non_negatives, probability
from pyrobust.errors import InputError, InputTypeError
from pyrobust.frames import Tabular
from pyrobust.smoothing.checks import samples
from pyrobust.smoothing.radius import required_probability
from pyrobust.stats import MAX_TRIALS, SequentialRule, exact_error, fixed_count, lattice_outcome

_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]

# A method is not recommended if, at some radius, another certifies more images by this share of all images.
_MAX_LOSS: Final = 0.005
# Number of counts simulated at once.
_BLOCK: Final = 1 << 21


@dataclass(frozen=True)
class PlannedMethod:
    """Expected cost and result of one sampling method.

    Attributes:
        name: "fixed", "sequential" or "hybrid". "fixed" takes n_max samples and computes one Clopper-Pearson bound.
        samples: expected number of samples per image until all radii are decided, including n0.
        standard_error: standard error of ``samples`` for a run with as many images as the pilot run; 0.0 for "fixed".
            Its sources are the choice of the run's images, the noise drawn for them in the run and, if pilot_n is
            given, the noise drawn in the pilot. A run on the pilot's own images varies less.
        samples_alone: for each radius, expected number of samples per image if only this radius had to be decided.
        certified: for each radius, share of images certified, whether correctly or not.
        undecided: for each radius, share of images neither certified nor given up before n_max.
        error: for each radius, upper bound on the probability that an image is certified at this radius although its
            true radius is slightly smaller.
        simulated: [R, N], int64; number of samples of each simulated image, for ``pyrobust.metrics.sweep_time``. There
            are R images for each of the N probabilities. For "fixed", it is a float64 array of shape [1, 1], because
            all images take the same number of samples.
    """

    name: str
    samples: float
    standard_error: float
    samples_alone: tuple[float, ...]
    certified: tuple[float, ...]
    undecided: tuple[float, ...]
    error: tuple[float, ...]
    simulated: _Floats = field(repr=False, compare=False)


@dataclass(frozen=True)
class Plan(Tabular):
    """Comparison of the sampling methods.

    Attributes:
        sigma: standard deviation of the noise.
        radii: radii to be decided.
        n_max: largest number of samples per image.
        n0: number of samples that select the class.
        alpha: probability of a false certificate.
        hybrid: share of alpha that "hybrid" reserves for its Clopper-Pearson bound at n_max samples.
        images: number of probabilities passed to the plan.
        draws: number of simulated images.
        methods: expectations for "fixed", "sequential" and "hybrid".
        recommended: name of the recommended method.
        reason: reason for the recommendation.
    """

    sigma: float
    radii: tuple[float, ...]
    n_max: int
    n0: int
    alpha: float
    hybrid: float
    images: int
    draws: int
    methods: tuple[PlannedMethod, ...]
    recommended: str
    reason: str

    def __getitem__(self, name: str) -> PlannedMethod:
        """Return the method with this name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise InputError("name", f"one of {', '.join(m.name for m in self.methods)}", repr(name))

    def images_for(self, budget: float) -> dict[str, int]:
        """Return the expected number of images that a budget of samples covers, by method name.

        Args:
            budget: total number of samples, at least 0.

        Returns:
            Number of images, rounded down, by method name.

        Raises:
            InputError: the budget is negative or not finite.
            InputTypeError: the budget is not a number.
        """
        samples = non_negative("budget", budget)
        return {method.name: int(samples // method.samples) for method in self.methods}

    def _columns(self) -> dict[str, Any]:
        """One row for each method and radius."""
        pairs = [(method, i) for method in self.methods for i in range(len(self.radii))]
        columns: dict[str, Any] = {"method": [method.name for method, _ in pairs]}
        columns["radius"] = [self.radii[i] for _, i in pairs]
        for name in ("samples", "standard_error"):
            columns[name] = [getattr(method, name) for method, _ in pairs]
        for name in ("samples_alone", "certified", "undecided", "error"):
            columns[name] = [getattr(method, name)[i] for method, i in pairs]
        return columns

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_dict().items() if name not in ("methods", "radii")}

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, except the simulated images, as tuples, dictionaries, numbers and strings."""
        values = asdict(self)
        for method in values["methods"]:
            del method["simulated"]
        return values


def pilot_probabilities(votes: npt.ArrayLike, n: npt.ArrayLike) -> _Floats:
    """Estimate the probability of the top class from its votes in a pilot run or a log, as input to `plan`.

    Returns ``(k + 1/2) / (n + 1)``, the posterior mean after k of n votes (Jeffreys, 1946). If k is 0, it returns 1/2
    instead: in this case the classifier abstained on the image, and it is only known that no class stood out. With few
    samples, sampling noise spreads the estimates, so use n of at least a few hundred. A sequential run stops sampling
    an image when its count is far above or far below the counts that the radii require. This makes the estimates
    slightly too extreme.

    Args:
        votes: integers in [0, n], one for each image.
        n: number of samples, at least 1; one integer, or (for a sequential run) one integer for each image.

    Returns:
        [N], float64.

    Raises:
        InputError: votes is not a non-empty list of integers, votes or n are out of range, or the lengths of n and
            votes differ.
        InputTypeError: n is not of integer type.

    >>> pilot_probabilities([0, 990, 1000], 1000).round(4)
    array([0.5   , 0.9895, 0.9995])
    >>> pilot_probabilities([16, 60], [16, 96]).round(4)
    array([0.9706, 0.6237])
    """
    drawn, k = np.asarray(n), np.asarray(votes)
    if k.ndim != 1 or not len(k) or k.dtype.kind not in "iu":
        raise InputError("votes", "a list of at least one integer", f"{k.dtype} of shape {k.shape}")
    if drawn.dtype.kind not in "iu":
        raise InputTypeError("n", "an integer, or one for each image", drawn.dtype)
    values = first_values(drawn.ravel().tolist())
    if drawn.shape not in ((), k.shape) or (drawn < 1).any() or (drawn > MAX_TRIALS).any():
        raise InputError("n", f"one integer in [1, {MAX_TRIALS}], or one for each of the {len(k)} images", values)
    if (k < 0).any() or (k > drawn).any():
        raise InputError("votes", f"0 to n = {values}", f"{k.min()} to {k.max()}")
    return np.where(k > 0, (k + 0.5) / (drawn + 1), 0.5)


def plan(
    p: npt.ArrayLike,
    sigma: float,
    radii: Sequence[float],
    *,
    n_max: int = 100_000,
    n0: int = 100,
    alpha: float = 0.001,
    hybrid: float = 0.5,
    noise: str = "gaussian",
    norm: NormLike = "l2",
    draws: int = 20_000,
    seed: int = 0,
    pilot_n: int | None = None,
) -> Plan:
    """Compare the sampling methods on a distribution of top-class probabilities.

    The function simulates images with these probabilities, and their votes at the looks (sample sizes at which an image
    is judged). It applies ``SequentialRule`` to these votes, as a run does. For a fixed n, the expected share of
    certified images is computed exactly. For the rule, the simulation estimates how many more images it certifies than
    a fixed n does. To reduce variance, only this difference is simulated, and then added to the exact share. The error
    probabilities are exact.

    "sequential" and "hybrid" both apply ``SequentialRule``, which reserves a share of alpha for a Clopper-Pearson bound
    at n_max samples. "sequential" reserves the default share, 0.01; "hybrid" reserves a larger share. A method is
    eligible if, at each radius, its share of certified images is at most half a percentage point below the share of
    every other method. The recommended method is the cheapest eligible one. Run the certification with a seed other
    than the pilot's, because samples that were used to choose a method cannot also prove certificates of this method.

    Args:
        p: probability of the top class of each image, in [0, 1], see ``pilot_probabilities``.
        sigma: standard deviation of the noise of the pilot.
        radii: radii to be decided, at least 0.
        n_max: largest number of samples per image; "fixed" uses all of them.
        n0: number of samples that select the class; they enter no bound.
        alpha: probability of a false certificate, in (0, 1).
        hybrid: share of alpha that "hybrid" reserves for its Clopper-Pearson bound at n_max samples, in (0, 1).
        noise: "gaussian", "uniform" or "laplace", as for certified_radius.
        norm: "l2" for gaussian, "l1" for the others.
        draws: number of images to simulate; rounded up to a multiple of the number of probabilities.
        seed: random seed of the simulation, at least 0.
        pilot_n: number of samples for each image of the pilot, for the standard errors. By default, the probabilities
            are taken as exact.

    Returns:
        The comparison, with a recommendation.

    Raises:
        InputError: a value is out of range, or there is no image or no radius.
        InputTypeError: an argument is not a number or not a sequence of numbers.

    >>> comparison = plan([0.6, 0.9, 0.99, 0.999], 0.25, [0.25], n_max=10_000)
    >>> comparison.recommended, comparison["fixed"].samples, comparison["sequential"].samples < 500
    ('sequential', 10100.0, True)
    """
    probabilities, radii = array("p", p), non_negatives("radii", radii)
    in_range = (probabilities >= 0) & (probabilities <= 1)
    if probabilities.ndim != 1 or not len(probabilities) or not in_range.all():
        outside = probabilities[~in_range]
        got = outside.flat[0] if outside.size else f"shape {probabilities.shape}"
        raise InputError("p", "a list of at least one probability in [0, 1]", got)
    if not radii:
        raise InputError("radii", "at least one", "none")
    n_max, n0, alpha = samples("n_max", n_max), samples("n0", n0), probability("alpha", alpha)
    share = probability("hybrid", hybrid)
    needed = [
        min(required_probability(radius, sigma, noise=noise, norm=norm), math.nextafter(1.0, 0.0)) for radius in radii
    ]
    plain = SequentialRule(n_max, alpha)
    rules = {"sequential": plain, "hybrid": SequentialRule(n_max, alpha, share)}
    fixed_counts = [fixed_count(n_max, p0, alpha) for p0 in needed]
    fixed = _fixed(probabilities, needed, fixed_counts, n_max, n0)
    simulated = np.tile(probabilities, -(-count("draws", draws) // len(probabilities)))
    rows = max(1, _BLOCK // len(plain.looks))
    methods = [fixed]
    for name, rule in rules.items():
        tables = [rule.counts(p0) for p0 in needed]
        rng = np.random.default_rng(seed)
        blocks = [
            _simulate(rule, simulated[start : start + rows], tables, fixed_counts, rng)
            for start in range(0, len(simulated), rows)
        ]
        stops, gained, undecided = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        last_stop = spread = stops.max(axis=1)
        if pilot_n is not None:
            # Jeffreys' posterior after the pilot's votes, with mean p.
            total = count("pilot_n", pilot_n) + 1
            drawn = rng.beta(np.maximum(total * simulated, 0.5), np.maximum(total * (1 - simulated), 0.5))
            spread = np.concatenate(
                [
                    _simulate(rule, drawn[start : start + rows], tables, fixed_counts, rng)[0].max(axis=1)
                    for start in range(0, len(drawn), rows)
                ]
            )
        methods.append(
            PlannedMethod(
                name,
                float(n0 + last_stop.mean()),
                float(spread.std() / math.sqrt(len(probabilities))),
                tuple((n0 + stops.mean(axis=0)).tolist()),
                certified=tuple(np.clip(np.array(fixed.certified) + gained.mean(axis=0), 0.0, 1.0).tolist()),
                undecided=tuple(undecided.mean(axis=0).tolist()),
                error=tuple(exact_error(rule, p0).certified_at_most for p0 in needed),
                simulated=n0 + spread.reshape(-1, len(probabilities)),
            )
        )
    recommended, reason = _recommendation(methods)
    return Plan(
        float(sigma),
        tuple(radii),
        n_max,
        n0,
        alpha=alpha,
        hybrid=share,
        images=len(probabilities),
        draws=len(simulated),
        methods=tuple(methods),
        recommended=recommended,
        reason=reason,
    )


def _fixed(p: _Floats, needed: Sequence[float], fixed_counts: Sequence[int], n_max: int, n0: int) -> PlannedMethod:
    """Compute the expectations for fixed n exactly."""
    power, error = [], []
    for p0, k in zip(needed, fixed_counts, strict=True):
        power.append(float(np.mean(special.bdtrc(k - 1.0, n_max, p))) if k <= n_max else 0.0)
        error.append(lattice_outcome(p0, [n_max], [k], [-1]).certified_at_most)
    radii, total = len(needed), float(n0 + n_max)
    alone, never, simulated = (total,) * radii, (0.0,) * radii, np.full((1, 1), total)
    return PlannedMethod(
        "fixed", total, 0.0, alone, certified=tuple(power), undecided=never, error=tuple(error), simulated=simulated
    )


def _simulate(
    rule: SequentialRule,
    p: _Floats,
    tables: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    fixed_counts: Sequence[int],
    rng: np.random.Generator,
) -> tuple[_Floats, _Floats, _Bools]:
    """Return arrays [images, radii] of samples drawn, certificates gained over a fixed n, and undecided flags."""
    looks = np.array(rule.looks)
    counts = rng.binomial(np.diff(looks, prepend=0), p[:, None]).cumsum(axis=1)
    stops, gained, undecided = [], [], []
    for (certified, given_up), fixed in zip(tables, fixed_counts, strict=True):
        success, futility = _first_true(counts >= certified), _first_true(counts <= given_up)
        stops.append(looks[np.minimum(np.minimum(success, futility), len(looks) - 1)])
        gained.append((success < futility) * 1.0 - (counts[:, -1] >= fixed))
        undecided.append((futility >= len(looks) - 1) & (success > futility))
    return np.stack(stops, axis=1), np.stack(gained, axis=1), np.stack(undecided, axis=1)


def _first_true(mask: _Bools) -> npt.NDArray[np.intp]:
    """Return the index of the first true column of each row, or the number of columns if none is true."""
    first: npt.NDArray[np.intp] = np.where(mask.any(axis=1), mask.argmax(axis=1), mask.shape[1])
    return first


def _recommendation(methods: Sequence[PlannedMethod]) -> tuple[str, str]:
    best = np.max([method.certified for method in methods], axis=0)
    lost = {method.name: float((best - method.certified).max()) for method in methods}
    chosen = min((m for m in methods if lost[m.name] <= _MAX_LOSS), key=lambda m: m.samples, default=methods[0])
    fixed = methods[0]
    if chosen is fixed:
        return chosen.name, "every method with fewer samples loses more than half a percentage point at some radius"
    saved = fixed.samples / chosen.samples
    loss = max(0.0, float(np.max(np.subtract(fixed.certified, chosen.certified))))
    return chosen.name, (
        f"{chosen.samples:,.0f} samples per image instead of {fixed.samples:,.0f} ({saved:.1f}x fewer), at most "
        f"{100 * loss:.2f} percentage points fewer certified at any radius"
    )

"""What a certification will cost and find, before it is run: sampling methods compared on probabilities of a pilot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import special

from pyrobust.checks import array, number, numbers, some
from pyrobust.errors import InputError, InputTypeError
from pyrobust.smoothing.checks import count, probability, samples
from pyrobust.smoothing.radius import required_probability
from pyrobust.stats import MAX_TRIALS, SequentialRule, exact_error, fixed_count, lattice_outcome

_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]

# A method that certifies so much less of the images than another, at some radius, is not recommended.
_LOSS: Final = 0.005
# Counts that are simulated at once.
_BLOCK: Final = 1 << 21


@dataclass(frozen=True)
class PlannedMethod:
    """What one way of sampling is expected to do.

    Attributes:
        name: "fixed" (n_max samples and one Clopper-Pearson bound), "sequential" or "hybrid".
        samples: expected of an image, n0 included, until all radii are decided.
        standard_error: of ``samples``, by the simulation alone; 0.0 for fixed.
        samples_alone: per radius, the same if that radius were the only one.
        certified: per radius, the share of images that are certified at it, whether or not the class is right.
        undecided: per radius, the share that is not certified, and not given up before n_max.
        error: per radius, upper bound of the exact probability that an image just short of it is certified at it.
    """

    name: str
    samples: float
    standard_error: float
    samples_alone: tuple[float, ...]
    certified: tuple[float, ...]
    undecided: tuple[float, ...]
    error: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """Sampling methods compared.

    Attributes:
        sigma: of the noise.
        radii: to be decided.
        n_max: most samples of an image.
        n0: samples that select its class.
        alpha: probability of a false certificate.
        hybrid: share of alpha that the hybrid keeps for its bound at n_max.
        images: probabilities that were planned with.
        draws: images that were simulated.
        methods: "fixed", "sequential" and "hybrid".
        recommended: the name of one of them.
        reason: in a sentence.
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
        """The method of that name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise InputError(f"name: expected one of {', '.join(m.name for m in self.methods)}, got {name!r}")

    def images_for(self, budget: float) -> dict[str, int]:
        """How many images a number of samples is expected to pay for, by method.

        Args:
            budget: samples in all, at least 0.

        Returns:
            Whole images, by the method's name.

        Raises:
            InputError: the budget is negative or not finite.
            InputTypeError: it is not a number.
        """
        if not 0 <= number("budget", budget) < math.inf:
            raise InputError(f"budget: expected a finite number of samples, at least 0, got {budget}")
        return {method.name: int(budget // method.samples) for method in self.methods}

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain lists, numbers and strings."""
        return asdict(self)


def pilot_probabilities(votes: npt.ArrayLike, n: npt.ArrayLike) -> _Floats:
    """Probabilities of the top class to plan with, from its votes in a pilot or a log.

    ``(k + 1/2) / (n + 1)``, the mean after k of n votes (Jeffreys 1946); 1/2 where the votes are 0, for then it
    abstained and nothing is known but that no class stood out. A pilot of few samples spreads the probabilities by its
    own noise: plan with n of at least some hundreds. A sequential run stops an image when its count is far from what
    the radii ask for, up or down, which moves these means outward a little.

    Args:
        votes: integers in [0, n], one for each image.
        n: samples of the pilot, at least 1: one number, or of a sequential run one for each image.

    Returns:
        [N], float64.

    Raises:
        InputError: votes or n out of range, no votes, or an n for another number of images.
        InputTypeError: n is not an integer, or not integers.

    >>> pilot_probabilities([0, 990, 1000], 1000).round(4)
    array([0.5   , 0.9895, 0.9995])
    >>> pilot_probabilities([16, 60], [16, 96]).round(4)
    array([0.9706, 0.6237])
    """
    drawn, k = np.asarray(n), np.asarray(votes)
    if k.ndim != 1 or not len(k) or k.dtype.kind not in "iu":
        raise InputError(f"votes: expected a list of at least one integer, got {k.dtype} of shape {k.shape}")
    if drawn.dtype.kind not in "iu":
        raise InputTypeError(f"n: expected an integer, or one for each image, got {drawn.dtype}")
    given = some(drawn.ravel().tolist())
    if drawn.shape not in ((), k.shape) or (drawn < 1).any() or (drawn > MAX_TRIALS).any():
        raise InputError(f"n: expected one of 1 to {MAX_TRIALS}, or as many as the {len(k)} images, got {given}")
    if (k < 0).any() or (k > drawn).any():
        raise InputError(f"votes: expected 0 to n = {given}, got {k.min()} to {k.max()}")
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
    norm: str = "l2",
    draws: int = 20_000,
    seed: int = 0,
) -> Plan:
    """Compare sampling methods on a distribution of probabilities.

    Images are drawn with the probabilities in turn, and their counts at the looks; the decisions on them are those of
    ``SequentialRule``, the same that a run makes. How many are certified is counted against a fixed n on the same
    samples, whose expectation is known, so that both share their chance. The errors are exact.

    Sequential is ``SequentialRule`` as it comes, with a hundredth of alpha for the bound at n_max; hybrid gives that
    bound a larger share. The cheapest method is recommended among those that certify at each radius at most half a
    point less than another. Run it with another seed than the pilot's: what samples have chosen they cannot prove.

    Args:
        p: probability of the top class of each image, in [0, 1], as ``pilot_probabilities`` estimates them.
        sigma: of the noise under which they were found.
        radii: to be decided, at least 0.
        n_max: most samples of an image; all of them for fixed.
        n0: samples that select the class; they enter no bound.
        alpha: probability of a false certificate, in (0, 1).
        hybrid: share of alpha that the hybrid keeps for its bound at n_max, in (0, 1).
        noise: as for certified_radius.
        norm: likewise.
        draws: images to be simulated; rounded up to a multiple of those given.
        seed: of the simulation.

    Returns:
        Plan.

    Raises:
        InputError: a value out of range, no image or no radius.
        InputTypeError: not numbers.

    >>> made = plan([0.6, 0.9, 0.99, 0.999], 0.25, [0.25], n_max=10_000)
    >>> made.recommended, made["fixed"].samples, made["sequential"].samples < 500
    ('sequential', 10100.0, True)
    """
    chances, radii = array("p", p), numbers("radii", radii)
    if chances.ndim != 1 or not len(chances) or not ((chances >= 0) & (chances <= 1)).all():
        raise InputError("p: expected a list of at least one probability in [0, 1]")
    if not radii:
        raise InputError("radii: expected at least one, got none")
    n_max, n0, alpha = samples("n_max", n_max), count("n0", n0), probability("alpha", alpha)
    share = probability("hybrid", hybrid)
    needed = [
        min(required_probability(radius, sigma, noise=noise, norm=norm), math.nextafter(1.0, 0.0)) for radius in radii
    ]
    rules = {"sequential": SequentialRule(n_max, alpha), "hybrid": SequentialRule(n_max, alpha, share)}
    least = [fixed_count(n_max, p0, alpha) for p0 in needed]
    fixed = _fixed(chances, needed, least, n_max, n0)
    drawn = np.tile(chances, -(-count("draws", draws) // len(chances)))
    rows = max(1, _BLOCK // len(rules["sequential"].looks))
    methods = [fixed]
    for name, rule in rules.items():
        tables = [rule.counts(p0) for p0 in needed]
        rng = np.random.default_rng(seed)
        found = [
            _simulate(rule, drawn[start : start + rows], tables, least, rng) for start in range(0, len(drawn), rows)
        ]
        stops, gained, undecided = (np.concatenate(parts) for parts in zip(*found, strict=True))
        until = stops.max(axis=1)
        methods.append(
            PlannedMethod(
                name,
                float(n0 + until.mean()),
                float(until.std() / math.sqrt(len(drawn))),
                tuple((n0 + stops.mean(axis=0)).tolist()),
                tuple(np.clip(np.array(fixed.certified) + gained.mean(axis=0), 0.0, 1.0).tolist()),
                tuple(undecided.mean(axis=0).tolist()),
                tuple(exact_error(rule, p0).certified_at_most for p0 in needed),
            )
        )
    recommended, reason = _recommend(methods)
    return Plan(
        float(sigma),
        tuple(radii),
        n_max,
        n0,
        alpha,
        share,
        len(chances),
        len(drawn),
        tuple(methods),
        recommended,
        reason,
    )


def _fixed(p: _Floats, needed: Sequence[float], least: Sequence[int], n_max: int, n0: int) -> PlannedMethod:
    """Fixed n: all of it is known."""
    power, error = [], []
    for p0, k in zip(needed, least, strict=True):
        power.append(float(np.mean(special.bdtrc(k - 1.0, n_max, p))) if k <= n_max else 0.0)
        error.append(lattice_outcome(p0, [n_max], [k], [-1]).certified_at_most)
    radii, total = len(needed), float(n0 + n_max)
    return PlannedMethod("fixed", total, 0.0, (total,) * radii, tuple(power), (0.0,) * radii, tuple(error))


def _simulate(
    rule: SequentialRule,
    p: _Floats,
    tables: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    least: Sequence[int],
    rng: np.random.Generator,
) -> tuple[_Floats, _Floats, _Bools]:
    """Per image and radius: samples until it is decided, certificates more (or less) than fixed n, and undecided."""
    looks = np.array(rule.looks)
    counts = rng.binomial(np.diff(looks, prepend=0), p[:, None]).cumsum(axis=1)
    stops, gained, undecided = [], [], []
    for (certified, given_up), fixed in zip(tables, least, strict=True):
        up, down = _first(counts >= certified), _first(counts <= given_up)
        stops.append(looks[np.minimum(np.minimum(up, down), len(looks) - 1)])
        gained.append((up < down) * 1.0 - (counts[:, -1] >= fixed))
        undecided.append((down >= len(looks) - 1) & (up > down))
    return np.stack(stops, axis=1), np.stack(gained, axis=1), np.stack(undecided, axis=1)


def _first(true: _Bools) -> npt.NDArray[np.intp]:
    """The first true column of each row; one past the last where there is none."""
    first: npt.NDArray[np.intp] = np.where(true.any(axis=1), true.argmax(axis=1), true.shape[1])
    return first


def _recommend(methods: Sequence[PlannedMethod]) -> tuple[str, str]:
    most = np.max([method.certified for method in methods], axis=0)
    lost = {method.name: float((most - method.certified).max()) for method in methods}
    chosen = min((m for m in methods if lost[m.name] <= _LOSS), key=lambda m: m.samples, default=methods[0])
    fixed = methods[0]
    if chosen is fixed:
        return chosen.name, "no other method takes fewer samples without losing more than half a point at some radius"
    saved = fixed.samples / chosen.samples
    loss = max(0.0, float(np.max(np.subtract(fixed.certified, chosen.certified))))
    return chosen.name, (
        f"{chosen.samples:,.0f} samples an image instead of {fixed.samples:,.0f} ({saved:.1f}x fewer), at most "
        f"{100 * loss:.2f} points fewer certified at any radius"
    )

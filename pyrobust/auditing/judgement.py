"""Judge printed radii: can n, alpha and sigma give them, and if not, which other parameters can?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress, groupby

import numpy as np

from pyrobust.auditing.candidates import ROUND_N, odd_candidates, oddness, usual_candidates
from pyrobust.auditing.fit import Fit, Fits
from pyrobust.auditing.formulas import Parameters
from pyrobust.auditing.printed_radii import PrintedRadii
from pyrobust.auditing.saturation import Saturation

# Logarithms of likelihood ratios: from the first on, other parameters are believed (with about 10³ candidates, wrongly
# in one of 10⁷ logs); up to the second, an explanation fits as well as the best one; from the third on, it is better
# than the assumed parameters.
BELIEVED, AS_WELL, _CLEARLY = 24.0, 7.0, 3.0
# Least rows of a pile whose radius must be the maximum of other parameters.
_SURE_PILE = 10
# Number of radii that screen candidates, number of them that are tried first, and share of them that may not fit.
_SCREENED, _FIRST, _MISFITS = 30, 6, 0.34
# Up to this many contradictory rows, or this share, are themselves at fault; more contradict n, alpha or sigma.
_SPOILED_ROWS, _SPOILED_SHARE = 2, 0.01
# Number of likeliest candidates, of the usual formula and of others each, that are judged by all radii.
_FULLY_JUDGED = 50


@dataclass(frozen=True, eq=False)
class ParameterJudgement:
    """Judgement of assumed parameters from printed radii.

    Attributes:
        assumed: fit of the radii under the assumed parameters.
        explanations: fits under those of the tried parameters that explain the radii better than the assumed ones do,
            and about as well as the best of all tried parameters. Usual parameters come first; the tuple is empty if no
            parameters explain the radii so well.
        innocent: the best fit that contradicts nothing that was stated. It is either ``assumed``, or a fit under
            parameters that differ from the assumed ones only in values that nobody stated.
        saturation: the pile of equal radii at the upper end, if any.
        free: names of the parameters that nobody stated.
    """

    assumed: Fit
    explanations: tuple[Fit, ...]
    innocent: Fit
    saturation: Saturation | None
    free: frozenset[str] = frozenset()

    @property
    def spoils_few(self) -> bool:
        """Whether so few rows contradict the best parameters that these rows must be at fault, not the parameters."""
        return self.innocent.spoiled <= max(_SPOILED_ROWS, _SPOILED_SHARE * self.innocent.radii.rows)

    @property
    def holds(self) -> bool:
        """Whether the assumed parameters hold, as far as the radii show."""
        best = max((fit.score for fit in self.explanations), default=self.assumed.score)
        return self.innocent is self.assumed and self.spoils_few and best <= self.assumed.score + BELIEVED


def judge(radii: PrintedRadii, assumed: Parameters, free: Iterable[str] = ()) -> ParameterJudgement:
    """Judge whether the assumed parameters explain the radii; otherwise find parameters that do.

    Args:
        radii: printed radii.
        assumed: parameters that were stated or assumed.
        free: names of the parameters that nobody stated.
    """
    current, pile = Fit(radii, assumed), radii.saturation()
    if not radii.rows:
        return ParameterJudgement(current, (), current, None, frozenset(free))
    others = explain(radii, assumed, free) if current.contradicted else _fewer_samples(radii, assumed, current)
    better = [fit for fit in others if fit.score > current.score + _CLEARLY]
    innocents = [fit for fit in better if is_innocent(fit.parameters, assumed, free)]
    innocent = max([current, *innocents], key=lambda fit: fit.score)
    best = max((fit.score for fit in better), default=current.score)
    fitting = tuple(fit for fit in better if fit.score >= best - AS_WELL) if best > current.score else ()
    return ParameterJudgement(current, fitting, innocent, pile, frozenset(free))


def is_innocent(parameters: Parameters, assumed: Parameters, free: Iterable[str]) -> bool:
    """Whether parameters have the usual formula, and differ from the assumed ones only in values that nobody stated."""
    return not parameters.formula.name and set(parameters.differing(assumed)) <= set(free)


def explain(radii: PrintedRadii, assumed: Parameters, free: Iterable[str] = ()) -> list[Fit]:
    """Return fits of the radii by parameters that may explain them, usual parameters first.

    Without a pile of saturated radii, unusual alpha and sigma are tried only if no usual values explain all radii.
    """
    pile = radii.saturation()
    sure = pile if pile is not None and pile.rows >= _SURE_PILE else None
    fully = _screened(radii, assumed, free, usual_candidates(assumed, sure, free))
    # With many samples almost any radius is attainable; such an explanation does not count.
    explained = any(not fit.contradicted and fit.score > BELIEVED for fit in fully)
    fully += _screened(radii, assumed, free, odd_candidates(assumed, sure, free, wide=not explained))
    if sure is not None and not any(not fit.contradicted for fit in fully):
        # The pile may be a mode of the votes, below the maximum.
        for candidates in (usual_candidates(assumed, None, free), odd_candidates(assumed, None, free, wide=True)):
            fully += _screened(radii, assumed, free, candidates)
    fully = [*{fit.parameters: fit for fit in reversed(fully)}.values()]
    fully.sort(key=lambda fit: (oddness(fit.parameters, assumed, free), -fit.score))
    return fully


def explain_rest(fit: Fit, free: Iterable[str] = ()) -> tuple[Fit, ...]:
    """Find parameters that explain all radii that ``fit`` leaves unexplained, and return their fits of these radii.

    Usual parameters come first. The result is empty if the radii that ``fit`` explains are too weak as evidence for the
    parameters of ``fit``, or if the other radii are too weak as evidence for an explanation.
    """
    others = fit.unexplained
    if float(fit.gain[~others].sum()) < BELIEVED:
        return ()
    fits = [other for other in explain(fit.radii.chosen(others), fit.parameters, free) if not other.contradicted]
    best = max((other.score for other in fits), default=0.0)
    return tuple(other for other in fits if other.score >= best - AS_WELL) if best > BELIEVED else ()


def _screened(
    radii: PrintedRadii, assumed: Parameters, free: Iterable[str], candidates: Iterable[Parameters]
) -> list[Fit]:
    """Return fits of all radii by the likeliest candidates, chosen by the largest and the most informative radii."""
    largest, telling = radii.largest(_SCREENED), radii.furthest_apart(_SCREENED, assumed.sigma)
    few = largest.every(max(1, len(largest.value) // _FIRST))
    same = np.array_equal([largest.value, largest.decimals], [telling.value, telling.decimals])
    usual: list[tuple[float, Parameters]] = []
    others: list[tuple[float, Parameters]] = []
    for formula, alike in groupby(candidates, key=lambda candidate: candidate.formula):
        likely, scores = _passing(largest, _passing(few, [*alike])[0])
        if likely and not same:
            scores = Fits(telling, likely).scores_without_piles.tolist()
        (others if formula.name else usual).extend(zip(scores, likely, strict=True))
    fully: list[Fit] = []
    for scored in (usual, others):
        scored.sort(key=lambda pair: (-round(pair[0]), oddness(pair[1], assumed, free)))
        fully += [Fit(radii, candidate) for _, candidate in scored[:_FULLY_JUDGED]]
    return fully


def _passing(radii: PrintedRadii, candidates: list[Parameters]) -> tuple[list[Parameters], list[float]]:
    """Return the candidates, all of one formula, that can give most of the radii, and scores that ignore piles."""
    if candidates:
        candidates = [*compress(candidates, Fits(radii, candidates).beyond.mean(axis=1) <= _MISFITS)]
    if not candidates:
        return [], []
    fits = Fits(radii, candidates)
    passing = fits.attainable.mean(axis=1) >= 1 - _MISFITS
    return [*compress(candidates, passing)], fits.scores_without_piles[passing].tolist()


def _fewer_samples(radii: PrintedRadii, assumed: Parameters, current: Fit) -> list[Fit]:
    """Return fits by smaller round n that explain the radii so much better that it cannot be due to chance."""
    fits = []
    largest = radii.largest(_SCREENED)
    for n in ROUND_N:
        parameters = Parameters(n, assumed.alpha, assumed.sigma)
        if n < assumed.n and _passing(largest, [parameters])[0]:
            fit = Fit(radii, parameters)
            if fit.score > current.score + BELIEVED:
                fits.append(fit)
    return fits

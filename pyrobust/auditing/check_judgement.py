"""Findings about the parameters of a log: contradictions of the assumed values, and every explanation that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.candidates import ROUND_N, ROUND_SIGMA, oddness
from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.auditing.check_rows import row_fault
from pyrobust.auditing.findings import AuditFinding, format_rows
from pyrobust.auditing.fit import Fit
from pyrobust.auditing.formulas import Parameters
from pyrobust.auditing.judgement import BELIEVED, ParameterJudgement, explain_rest
from pyrobust.auditing.pieces import Change, find_change
from pyrobust.auditing.piles import Pile
from pyrobust.auditing.saturation import Saturation

_Mask = npt.NDArray[np.bool_]

# Largest number of explanations that a message lists.
_LISTED = 8
# Logarithm of the likelihood ratio to random digits at which the radii establish n and alpha that nobody stated.
_ESTABLISHED = 14.0
# Formulas that no list of radii can confirm, since two counts give almost any radius.
_UNTRIED = (
    "Not tried: formulas of two counts, such as the two-class bound sigma/2·(Φ⁻¹(p_A) - Φ⁻¹(p_B)), which give almost "
    "any radius"
)
# More samples and a larger alpha than any log has: no radius is above the maximum that they give.
_MOST_N, _MOST_ALPHA = 10**7, 0.5


def check_judgement(log: CertificationLog, judgement: ParameterJudgement, usable: _Mask) -> Iterator[AuditFinding]:
    """Flag contradictions of the assumed parameters; only notes if other values of unstated ones explain the radii."""
    assumed, innocent = judgement.assumed, judgement.innocent
    free = judgement.free
    best = max((fit.score for fit in judgement.explanations), default=assumed.score)
    radii_of = log.radius[usable], (log.decimals if log.decimals is not None else log.index)[usable]
    for base in dict.fromkeys((innocent, assumed)):
        change = find_change(*radii_of, base, best, free) if base.contradicted or base is assumed else None
        if change is not None:
            yield _change(log, usable, change)
            return
    unreached = _unreached(innocent)
    enough = judgement.spoils_few and len(innocent.piles) <= len(unreached)
    contradicted = not enough or best > innocent.score + _pile_evidence(unreached) + BELIEVED
    # Unstated parameters may be odder than any that were tried, unless something else explains the radii.
    believed = max(innocent.score, 0.0) + BELIEVED
    complete = any(fit.score > believed and not fit.contradicted for fit in judgement.explanations)
    alternatives = explain_rest(innocent, free) if contradicted and not complete and not enough else ()
    accused = contradicted and (not free or complete or bool(alternatives) or bool(innocent.piles and not unreached))
    if alternatives and float(innocent.gain.sum()) + alternatives[0].score > best:
        yield _mixed(log, usable, innocent, alternatives)
        return
    if judgement.explanations and (contradicted or innocent is not assumed or unreached):
        yield _explained(judgement, "fault" if accused else "note")
    elif contradicted:
        yield _unexplained(innocent, "fault" if accused else "note")
    elif unreached:
        yield _saturated(innocent, unreached)
    if enough and not contradicted:
        yield from _rows(log, innocent, usable, bool(free), unreached)
    elif accused and not judgement.explanations:
        yield from _rows(log, innocent, usable, False, unreached)
    elif accused and judgement.explanations[0].spoiled:
        yield from _rows(log, judgement.explanations[0], usable, False, [])


def _unreached(fit: Fit) -> list[Pile]:
    """Return the pile at the upper end of the radii if it lies below the maximum, which suggests other parameters."""
    pile = fit.radii.saturation()
    if pile is None or fit.beyond.any() or not fit.radii.rows or pile.agrees(fit.parameters.maximum):
        return []
    return [equal for equal in fit.piles if equal.radius == pile.radius]


def _pile_evidence(piles: Sequence[Pile]) -> float:
    return sum(pile.evidence for pile in piles)


def _reasons(fit: Fit) -> str:
    """Describe the radii that contradict the parameters."""
    rows, count = fit.radii.rows, fit.radii.count
    problems = (
        (int(count[fit.beyond].sum()), f"exceed the maximum, {fit.parameters.maximum:.6g}"),
        (int(count[~fit.attainable & ~fit.beyond].sum()), "come from no number of votes"),
    )
    reasons = [f"{number:,} of {rows:,} radii {problem}" for number, problem in problems if number]
    if not reasons:
        reasons = [
            f"{pile.rows:,} equal radii of {pile.radius:g} are not the maximum, {fit.parameters.maximum:.6g}"
            for pile in fit.piles[-1:]
        ]
    return " and ".join(reasons)


def _describe(parameters: Parameters, assumed: Parameters) -> str:
    """Describe the parameters that differ; say if n is the sum of the samples for selection and estimation."""
    words = []
    for name in parameters.differing(assumed):
        value = getattr(parameters, name)
        words.append(f"{name} {value:,}" if name == "n" else f"{name} {value:g}")
        usual = [m for m in ROUND_N if value - m in (100, 1000) and m >= 1000] if name == "n" else []
        words[-1] += f" (n0 and n {usual[-1]:,} together)" if usual else ""
    if parameters.formula.name:
        words.append(parameters.formula.name)
    return " and ".join(words) or "unchanged parameters"


def list_explanations(fits: Sequence[Fit], assumed: Parameters) -> str:
    """List explanations, usual ones first, with the number of radii that each explains."""
    listed = [f"{_describe(fit.parameters, assumed)} ({fit.explained:,} of {fit.radii.rows:,})" for fit in fits]
    more = f" and {len(listed) - _LISTED:,} odder ones" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more


def _explained(judgement: ParameterJudgement, severity: Literal["fault", "note"]) -> AuditFinding:
    assumed, fits = judgement.assumed, judgement.explanations
    parameters = assumed.parameters
    reasons = _reasons(assumed)
    first = fits[0].parameters
    names = first.differing(parameters)
    options = " ".join(f"--{name} {getattr(first, name)}" for name in names)
    old = " and ".join(f"{name} {getattr(parameters, name):,}" for name in names)
    if len(fits) == 1 and fits[0].explained == assumed.radii.rows and oddness(first, parameters, judgement.free) < 3:
        made = " and ".join(f"{name} {getattr(first, name):,} (not {getattr(parameters, name):,})" for name in names)
        why = reasons or f"all {assumed.radii.rows:,} radii are among the few that {_describe(first, parameters)} gives"
        message = f"made with {made}, the only explanation tried that fits: pass {options}; with {old}, {why}"
    else:
        why = reasons or f"all {assumed.radii.rows:,} radii are among the few that others give"
        message = f"not made with {parameters}: {why}. Explanations that fit, with radii explained: "
        message += list_explanations(fits, parameters)
        if options:
            message += f". Pass what is true, such as {options}"
        if all(fit.contradicted for fit in fits):
            message += f". {_UNTRIED}"
    return AuditFinding("parameters", severity, message)


def _unexplained(fit: Fit, severity: Literal["fault", "note"]) -> AuditFinding:
    message = (
        f"radii contradict {fit.parameters}: {_reasons(fit)}; no n, alpha, sigma or formula that was tried gives all. "
        f"{_UNTRIED}"
    )
    return AuditFinding("parameters", severity, message)


def _mixed(log: CertificationLog, usable: _Mask, fit: Fit, alternatives: Sequence[Fit]) -> AuditFinding:
    rows = (log.index if log.lines is None else log.lines)[usable][fit.unexplained[fit.radii.inverse]]
    message = (
        f"rows of two kinds: {fit.radii.rows - alternatives[0].radii.rows:,} radii are explained by {fit.parameters}, "
        f"the other {alternatives[0].radii.rows:,} are explained by {list_explanations(alternatives, fit.parameters)}"
    )
    return AuditFinding("parameters", "fault", message, tuple(rows[:100].tolist()))


def _saturated(fit: Fit, piles: Sequence[Pile]) -> AuditFinding:
    pile = piles[-1]
    message = (
        f"{pile.rows:,} rows share the radius {pile.radius:g}, and none reaches the maximum, "
        f"{fit.parameters.maximum:.6g} for {fit.parameters}: n, alpha or sigma may differ"
    )
    return AuditFinding("parameters", "note", message)


def _change(log: CertificationLog, usable: _Mask, change: Change) -> AuditFinding:
    numbers, noun = (log.index, "indices") if log.lines is None else (log.lines, "lines")
    rows = numbers[usable]
    inside, outside = change.piece[0].parameters, change.others[0].parameters
    piece, others = list_explanations(change.piece, outside), list_explanations(change.others, inside)
    message = (
        f"change within the file: {noun} {int(rows[change.start]):,} to {int(rows[change.stop - 1]):,} are explained "
        f"by {piece} radii, the other rows by {others}"
    )
    return AuditFinding("change", "fault", message, tuple(rows[change.start : change.stop][:100].tolist()))


def _rows(
    log: CertificationLog, fit: Fit, usable: _Mask, free: bool, unreached: Sequence[Pile]
) -> Iterator[AuditFinding]:
    """Flag rows that cannot come from the parameters that explain the other rows."""
    parameters, printed = fit.parameters, fit.radii

    def rows_of(distinct: _Mask) -> _Mask:
        rows = np.zeros(len(log), dtype=bool)
        rows[usable] = distinct[printed.inverse]
        return rows

    if not printed.rows:
        return
    pile = printed.saturation()
    confirmed = pile is not None and pile.agrees(parameters.maximum)
    certain = not free or confirmed or float(fit.gain.sum()) > _ESTABLISHED
    impossible = printed.value > Parameters(_MOST_N, _MOST_ALPHA, parameters.sigma).maximum + printed.unit
    above, unattainable = rows_of(fit.beyond), rows_of(~fit.attainable & ~fit.beyond)
    if not certain and fit.contradicted and (above | unattainable).any() and not (fit.beyond & impossible).any():
        number = format_rows(int((above | unattainable).sum()))
        message = f"{number} contradict {parameters}, which nothing confirms; pass --n and --alpha to judge them"
        yield AuditFinding("parameters", "note", message)
        return
    if above.any():
        problem = f"radius up to {float(log.radius[above].max()):g}, above the maximum {parameters.maximum:.6g}"
        yield row_fault(log, "above-maximum", above, f"{problem} for {parameters}")
    if unattainable.any():
        yield row_fault(log, "unattainable", unattainable, f"radius that no number of votes gives for {parameters}")
    for pile_found in fit.piles:
        if pile_found in unreached:
            continue
        beside = f"{pile_found.beside:,} with as many different votes beside {'it' if pile_found.rows == 1 else 'them'}"
        message = f"{pile_found.rows:,} equal radii of {pile_found.radius:g}, {beside}: only the maximum can pile up"
        yield AuditFinding("pile", "fault", message + _origin_of(pile_found, parameters))


def _origin_of(pile: Pile, parameters: Parameters) -> str:
    """Describe the usual n or sigma whose maximum radius equals that of a pile; "" if there is none."""
    saturation, n, alpha, sigma = (
        Saturation(pile.radius, pile.rows, pile.decimals),
        parameters.n,
        parameters.alpha,
        parameters.sigma,
    )
    equal = [
        f"{name} {value:,}"
        for name, values in (("sigma", (sigma / 2, sigma * 2, *ROUND_SIGMA)), ("n", ROUND_N))
        for value in dict.fromkeys(values)
        if value != getattr(parameters, name)
        and saturation.agrees(Parameters(**{"n": n, "alpha": alpha, "sigma": sigma, name: value}).maximum)
    ]
    return f"; this is the maximum of {' or '.join(equal)}" if equal else ""

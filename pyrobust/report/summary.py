"""Machine-readable summaries of runs: parameters of the run, and every rate with its interval, as plain values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pyrobust.arithmetic import GUARANTEE
from pyrobust.auditing.certification_log import log_of_run
from pyrobust.auditing.votes import survival_of
from pyrobust.checks import non_negatives
from pyrobust.evaluation import Run, minimum_norm_curve
from pyrobust.evaluation.sandwich import Sandwich
from pyrobust.metrics import average_certified_radius, average_radius, estimate_rate
from pyrobust.metrics.radii import usual_radii
from pyrobust.report.attack_table import default_epsilons
from pyrobust.report.caption import ACR_NOTE, ACR_NOTE_OF_PROOFS, P_A_NOTE, checked_run
from pyrobust.report.sandwich_table import sandwich_radii
from pyrobust.report.table import QUARTILES, default_radii, survival_rates
from pyrobust.runs.kinds.attack import Attack, CertifiedFirst, Minimum
from pyrobust.runs.kinds.certify import Certify
from pyrobust.runs.kinds.sandwich import Sandwiched
from pyrobust.runs.kinds.verify import Verify

_HEADER = ("model", "model_sha256", "data", "data_sha256", "guarantee", "parameters", "versions")
# Columns that are summed for an attack that leaves out proved images.
_PROOFS = {"proved": "proved", "seconds": "proof_seconds", "rows_saved": "rows_saved"}


def run_summary(run: Run, radii: Sequence[float] | None = None, alpha: float = 0.05) -> dict[str, Any]:
    """Summarize a run as plain dictionaries, lists, numbers and strings.

    Args:
        run: a run of any kind, with at least one image.
        radii: radii of certified accuracies, at least 0. The default for a verification that searched for radii: 0 and
            round numbers or quarters up to the largest radius. Otherwise, the default is the radii of the run's table,
            for a sandwich without 0. Attacks, predictions and verifications at given epsilons do not use this argument.
        alpha: probability that a given interval misses the true value, in (0, 1).

    Returns:
        A dictionary. It begins with ``kind``, ``path``, ``images``, ``expected_images``, ``complete``, the header's
        fields and ``interval_alpha``. Then it has ``clean_accuracy`` and the rates of this kind of run. For
        certifications and predictions, ``clean_accuracy`` is the accuracy of the smoothed classifier. Each rate has
        ``successes``, ``n``, ``value``, ``lower`` and ``upper``. For a certification, these rates are followed by the
        distribution of p_A (as "p_a", which is None for a sequential run), the certified accuracies and the average
        certified radius. A sequential run has "mean_samples" and "undecided" at the end. For a minimum-norm attack,
        there are the robust accuracy at each of a few epsilons, and the quartiles of the distance (None for infinity).

    Raises:
        InputError: the run holds no image, or a radius or alpha is out of range.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation import attack_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = attack_dataset(FGSM(load_model("zoo:digits-smooth-0.25"), 0.1), load_data("digits"), max_images=4)
    >>> run_summary(run)["robust_accuracy"]["n"]
    4
    """
    summary: dict[str, Any] = {
        "kind": checked_run(run).kind,
        "path": None if run.path is None else str(run.path),
        "images": len(run),
        "expected_images": len(run.expected),
        "complete": run.complete,
        **{name: getattr(run.header, name) for name in _HEADER},
        "interval_alpha": alpha,
        "clean_accuracy": run.clean_accuracy(alpha).to_dict(),
    }
    for rate in run.header.type.rates(run, alpha):
        name, values = rate.name.replace(" ", "_"), rate.at | rate.rate.to_dict()
        summary[name] = [*summary.get(name, []), values] if rate.at else values
    more = (_RATES[kind] for kind in type(run.header.type).__mro__ if kind in _RATES)
    return summary | next(more, _nothing)(run, radii, alpha)


def _nothing(run: Run, radii: Sequence[float] | None, alpha: float) -> dict[str, Any]:
    return {}


def _certified(run: Run, radii: Sequence[float] | None, alpha: float) -> dict[str, Any]:
    rates = _p_a(run, alpha) | _radii(run, default_radii(run) if radii is None else radii, alpha)
    if "samples" in run.table:
        rates["mean_samples"] = float(run.table["samples"].mean())
        rates["undecided"] = sum("1" in digits for digits in run.table["undecided"].tolist())
    return rates


def _verified(run: Run, radii: Sequence[float] | None, alpha: float) -> dict[str, Any]:
    epsilons = run.parameters["epsilons"]
    if epsilons is None:
        return _radii(run, usual_radii(float(run.table["radius"].max())) if radii is None else radii, alpha)
    return {
        "verified_accuracy": [
            {
                "epsilon": epsilon,
                **run.verified_accuracy(epsilon, alpha).to_dict(),
                "verdicts": dict(sorted(Counter(run.verdicts(epsilon)["verdict"].tolist()).items())),
            }
            for epsilon in epsilons
        ]
    }


def _broken_by(run: Run) -> dict[str, int]:
    return dict(sorted(Counter(name for name in run.table["broken_by"].tolist() if name).items()))


def _nearest(run: Run, radii: Sequence[float] | None, alpha: float) -> dict[str, Any]:
    curve = minimum_norm_curve(run, alpha=alpha)
    epsilons = default_epsilons(curve)
    return {
        "robust_accuracy": [{"epsilon": e, **run.robust_accuracy(alpha, epsilon=e).to_dict()} for e in epsilons],
        "broken_by": _broken_by(run),
        "distance_quantiles": {
            str(q): value if math.isfinite(value) else None
            for q, value in zip(QUARTILES, curve.quantiles(QUARTILES), strict=True)
        },
    }


def _attacked(run: Run, radii: Sequence[float] | None, alpha: float) -> dict[str, Any]:
    broken = run.correct & ~run.robust
    distance = float(run.table["distance"][broken].mean()) if broken.any() else None
    return {"broken_by": _broken_by(run), "mean_distance": distance}


def _certified_first(run: Run, radii: Sequence[float] | None, alpha: float) -> dict[str, Any]:
    totals = {name: run.table[column].sum().item() for name, column in _PROOFS.items()}
    return _attacked(run, radii, alpha) | {"certified_first": {**totals, "guarantee": GUARANTEE}}


def _p_a(run: Run, alpha: float) -> dict[str, Any]:
    """Return the distribution of p_A; None for a sequential run."""
    curve = survival_of(log_of_run(run))
    if curve is None:
        return {"p_a": None}
    return {
        "p_a": {
            "about": P_A_NOTE,
            "area": curve.area_estimate(alpha).to_dict(),
            "quantiles": {str(q): value for q, value in zip(QUARTILES, curve.quantiles(QUARTILES), strict=True)},
            "survival": [{"p_a": at, **rate.to_dict()} for at, rate in survival_rates(curve, alpha)],
        }
    }


def _radii(run: Run, radii: Sequence[float], alpha: float) -> dict[str, Any]:
    radii = non_negatives("radii", radii, infinite=True)
    counts = [round(accuracy * len(run)) for accuracy in run.certified_accuracy(radii).tolist()]
    mean = average_radius(run.table["radius"], run.correct)
    return {
        "certified_accuracy": [
            {"radius": radius, **estimate_rate(count, len(run), alpha).to_dict()}
            for radius, count in zip(radii, counts, strict=True)
        ],
        "mean_radius_correct_only": None if math.isnan(mean) else mean,
        "average_certified_radius": {
            **average_certified_radius(run.table["radius"], run.correct, alpha).to_dict(),
            "about": ACR_NOTE if run.header.type.smoothed else ACR_NOTE_OF_PROOFS,
        },
    }


def _sandwiched(run: Run, radii: Sequence[float] | None, alpha: float) -> dict[str, Any]:
    both = Sandwich(run)
    shares = both.shares(sandwich_radii(both) if radii is None else radii, alpha)
    return {
        "shares": [
            {
                "radius": radius,
                "certified": certified.to_dict(),
                "undecided": undecided.to_dict(),
                "attacked": attacked.to_dict(),
            }
            for radius, certified, undecided, attacked in zip(
                shares.radii, shares.certified, shares.undecided, shares.attacked, strict=True
            )
        ],
        "crossings": [vars(crossing) for crossing in both.crossings],
        "allowed_crossings": both.allowed_crossings,
    }


# What a summary has besides the rates of a kind; it applies to the kind's subclasses, too.
_RATES: dict[type, Callable[[Run, Sequence[float] | None, float], dict[str, Any]]] = {
    Certify: _certified,
    Verify: _verified,
    Attack: _attacked,
    CertifiedFirst: _certified_first,
    Minimum: _nearest,
    Sandwiched: _sandwiched,
}

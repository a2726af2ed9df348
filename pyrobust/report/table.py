"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from pyrobust.checks import non_negatives
from pyrobust.errors import InputError
from pyrobust.evaluation import Run
from pyrobust.evaluation.robustness_curve import RobustnessCurve
from pyrobust.metrics import Rate, estimate_rate
from pyrobust.metrics.radii import quarters, rising
from pyrobust.report.caption import describe_run, planned_attacks
from pyrobust.runs.verdicts import STAGES


def default_radii(run: Run) -> list[float]:
    """Radii for a table: 0, 0.25, … up to the largest certified one; wider steps where that would be more than twelve.

    Of a sequential run, those that it decided.

    Args:
        run: of kind certify.

    Returns:
        Rising radii.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> default_radii(certify_dataset(smoother, load_data("digits"), n=1000, max_images=4))
    [0.0, 0.25, 0.5]
    """
    if "radii" in run.parameters:
        return list(run.parameters["radii"])
    return quarters(float(run.table["radius"].max()) if len(run) else 0.0)


def certified_accuracy_table(run: Run, radii: Sequence[float] | None = None) -> Table:
    """Certified accuracy at several radii, with counts, under the run's totals.

    Args:
        run: of kind certify, with at least one image.
        radii: at least 0, in the unit of the input; default `default_radii`.

    Returns:
        A table to print with rich, its caption `describe_run`.

    Raises:
        InputError: the run is of another kind or holds no image, or a radius is negative.
        InputTypeError: radii that are not numbers.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> certified_accuracy_table(run, [0.0, 0.25]).row_count
    6
    """
    radii = default_radii(run) if radii is None else non_negatives("radii", radii, infinite=True)
    accuracies = run.certified_accuracy(radii)
    table = _table(run, "Certified accuracy")
    if "samples" in run.table:
        # Its radii are no larger than what was asked for, so that their mean would say little.
        table.add_row("mean samples of an image", f"{run.table['samples'].mean():,.0f}", "")
        undecided = sum("1" in digits for digits in run.table["undecided"].tolist())
        table.add_row("with a radius undecided at n samples", _percent(undecided / len(run)), str(undecided))
    else:
        right = run.right
        table.add_row(
            "average radius of the right ones", f"{run.table['radius'][right].mean() if right.any() else 0.0:.4f}", ""
        )
    table.add_section()
    for radius, accuracy in zip(radii, accuracies, strict=True):
        table.add_row(f"certified at radius {radius:g}", _percent(accuracy), f"{round(accuracy * len(run))}")
    return table


def prediction_table(run: Run) -> Table:
    """Accuracy and abstentions of a run with the smoothed classifier.

    Args:
        run: of kind certify or predict, with at least one image.

    Returns:
        A table to print with rich, its caption `describe_run`.

    Raises:
        InputError: the run is of another kind or holds no image yet.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> prediction_table(run).row_count
    3
    """
    if run.kind in ("attack", "verify"):
        name = {"attack": "attack_table", "verify": "verification_table"}[run.kind]
        raise InputError(f"run: expected a run of kind certify or predict, got {run.kind}; use {name}")
    return _table(run, "Predictions")


def attack_table(run: Run, alpha: float = 0.05) -> Table:
    """Clean and robust accuracy of a run, with their intervals, and which attack broke how many images.

    Args:
        run: of kind attack, with at least one image.
        alpha: probability that one of the intervals misses, in (0, 1).

    Returns:
        A table to print with rich, its caption `describe_run`.

    Raises:
        InputError: the run is of another kind or holds no image yet.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation import attack_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = attack_dataset(FGSM(load_model("zoo:digits-smooth-0.25"), epsilon=0.1), load_data("digits"), skip=20)
    >>> attack_table(run).row_count
    5
    """
    robust = run.robust
    table = _empty_table(run, "Attack", describe_run(run), f"{100 * (1 - alpha):g} % interval")
    table.add_row("images", "", str(len(run)), "")
    for name, rate in (("clean accuracy", run.clean_accuracy(alpha)), ("robust accuracy", run.robust_accuracy(alpha))):
        _add_rate(table, name, rate)
    _add_no_winner(table, run)
    table.add_section()
    broken_by = run.table["broken_by"].tolist()
    planned = planned_attacks(run.parameters["attack"], run.parameters["settings"])
    for name in dict.fromkeys([*planned, *sorted(set(broken_by) - {"", "clean"})]):
        count = broken_by.count(name)
        table.add_row(f"broken by {escape(name)}", _percent(count / len(run)), str(count), "")
    broken = run.right & ~robust
    distance = f"{run.table['distance'][broken].mean():.4g}" if broken.any() else "none"
    table.add_row(f"mean {run.parameters['norm']} distance of the broken ones", distance, "", "")
    return table


def verification_table(run: Run, alpha: float = 0.05) -> Table:
    """Verified accuracy at every epsilon of a run, or at radii up to the largest certified one, with its interval.

    At epsilons also which stage verified and falsified how many images, and how many are left unknown.

    Args:
        run: of kind verify, with at least one image.
        alpha: probability that one of the intervals misses, in (0, 1).

    Returns:
        A table to print with rich, its caption `describe_run`.

    Raises:
        InputError: the run is of another kind or holds no image yet.

    >>> from pyrobust.evaluation import verify_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = verify_dataset(load_model("zoo:digits-smooth-0.25"), load_data("digits"), epsilons=0.02, skip=20)
    >>> next(verification_table(run).columns[0].cells), verification_table(run).row_count > 4
    ('images', True)
    """
    if run.kind != "verify":
        raise InputError(f"run: expected a run of kind verify, got {run.kind}")
    table = _empty_table(run, "Verification", describe_run(run), f"{100 * (1 - alpha):g} % interval")
    table.add_row("images", "", str(len(run)), "")
    _add_rate(table, "clean accuracy", run.clean_accuracy(alpha))
    _add_no_winner(table, run)
    norm, epsilons = run.parameters["norm"], run.parameters["epsilons"]
    if epsilons is None:
        radius = run.table["radius"]
        right = run.right
        mean = f"{radius[right].mean():.4g}" if right.any() else "none"
        table.add_row("average radius of the right ones", mean, "", "")
        table.add_section()
        for value in rising(float(radius.max())):
            _add_rate(table, f"verified at {norm} {value:g}", run.verified_accuracy(value, alpha))
        return table
    for epsilon in epsilons:
        table.add_section()
        found = run.verdicts(epsilon)
        count = int((found["verdict"] == "verified").sum())
        _add_rate(table, f"verified at {norm} epsilon {epsilon:.4g}", estimate_rate(count, len(run), alpha))
        names = {"verified": "  by {}", "falsified": "falsified by {}", "unknown": "unknown"}
        for verdict, name in names.items():
            stages = found["stage"][found["verdict"] == verdict].tolist()
            for stage in STAGES[verdict]:
                if stage in stages or verdict == "unknown":
                    count = stages.count(stage)
                    table.add_row(name.format(stage), _percent(count / len(run)), str(count), "")
    return table


def curve_table(curve: RobustnessCurve, caption: Sequence[str]) -> Table:
    """Robust accuracy at each epsilon of a curve, with its interval.

    Args:
        curve: of any attack.
        caption: what the rates depend on besides, lines of text.

    Returns:
        A table to print with rich.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation.robustness_curve import robustness_curve
    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> curve = robustness_curve(FGSM, load_model("zoo:digits-smooth-0.25"), data.x[:9], data.y[:9], [0.0, 0.1])
    >>> curve_table(curve, ["Data digits"]).row_count
    2
    """
    table = _empty_table(None, "Robust accuracy", caption, f"{100 * (1 - curve.alpha):g} % interval")
    rows = zip(curve.epsilons, curve.robust_accuracy, curve.counts, curve.lower, curve.upper, strict=True)
    for epsilon, accuracy, count, lower, upper in rows:
        table.add_row(f"{curve.norm} epsilon {epsilon:.4g}", _percent(accuracy), str(count), _interval(lower, upper))
    return table


def _table(run: Run, title: str) -> Table:
    table = _empty_table(run, title, describe_run(run))
    right, abstained = int(run.right.sum()), int((run.table["prediction"] < 0).sum())
    table.add_row("images", "", str(len(run)))
    table.add_row("smoothed prediction right", _percent(right / len(run)), str(right))
    # A sequential run gives an image up before it knows whether it would abstain.
    without = "abstained or given up" if run.header.layout == "sequential" else "abstained"
    table.add_row(without, _percent(abstained / len(run)), str(abstained))
    return table


def _empty_table(run: Run | None, title: str, caption: Sequence[str], *columns: str) -> Table:
    if run is not None and not len(run):
        raise InputError("run: expected at least one image, got none; go on with it first")
    # Names of models and data come from users and files, and could hold markup.
    # The width keeps the caption from being folded into a narrow column.
    table = Table(
        title=title,
        caption=escape("\n".join(caption)),
        title_justify="left",
        caption_justify="left",
        min_width=78,
    )
    table.add_column("")
    for column in ("share", "images", *columns):
        table.add_column(column, justify="right")
    return table


def _add_rate(table: Table, name: str, rate: Rate) -> None:
    table.add_row(name, _percent(rate.value), str(rate.successes), _interval(rate.lower, rate.upper))


def _add_no_winner(table: Table, run: Run) -> None:
    """How many images have logits without a winner, themselves or attacked; no row where none has."""
    count = int(((run.table["prediction"] < 0) | (run.table.get("adversarial", run.table["prediction"]) < 0)).sum())
    if count:
        table.add_row("logits NaN or inf, counted wrong", _percent(count / len(run)), str(count), "")


def _interval(lower: float, upper: float) -> str:
    """Rounded outward."""
    return f"{math.floor(1000 * lower) / 10:.1f} to {math.ceil(1000 * upper) / 10:.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

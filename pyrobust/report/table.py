"""Tables of certifications, predictions and verifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyrobust.checks import non_negatives, number_text
from pyrobust.errors import InputError
from pyrobust.metrics import Rate, average_certified_radius, average_radius, estimate_rate, survival_curve
from pyrobust.metrics.radii import rising, usual_radii
from pyrobust.metrics.survival import SurvivalCurve
from pyrobust.report.caption import (
    ACR_NOTE,
    ACR_NOTE_OF_PROOFS,
    NO_P_A_NOTE,
    P_A_NOTE,
    checked_run,
    describe_run,
)
from pyrobust.report.formats import Column, Interval, Quantity, ReportTable, Row
from pyrobust.runs.kinds.verify import Verify
from pyrobust.runs.kinds.words import norm_of
from pyrobust.runs.run import Run
from pyrobust.runs.verdicts import STAGES

#: Quartiles of distances that tables show.
QUARTILES = (0.25, 0.5, 0.75)
#: Values of p_A at which tables show its survival.
_SURVIVAL = (0.5, 0.75, 0.9, 0.99)
_COLUMNS = (Column("", "left"), Column("share"), Column("images", grouped=False))


def default_radii(run: Run) -> list[float]:
    """Return radii for a table of a certification.

    For a sequential run, they are the radii that the run was asked to test. For any other run, they are 0, 0.25, … up
    to the run's largest certified radius. If steps of 0.25 would give more than twelve radii, the steps are wider. If
    steps of 0.25 would give fewer than four radii, the radii are 0 and round numbers.

    Args:
        run: a run of kind certify.

    Returns:
        Increasing radii.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> default_radii(certify_dataset(smoother, load_data("digits"), n=1000, max_images=4))[:4]
    [0.0, 0.05, 0.1, 0.15]
    """
    if run.header.type.sampled_by_votes:
        return list(run.parameters["radii"])
    return usual_radii(float(run.table["radius"].max()) if len(run) else 0.0)


def certified_accuracy_table(run: Run, radii: Sequence[float] | None = None, alpha: float = 0.05) -> ReportTable:
    """Show p_A's distribution, certified accuracy at several radii, and the average certified radius, with intervals.

    p_A is estimated by the share k/n of an image's noisy samples in the correct class, and is 0 where the smoothed
    prediction is wrong or abstains. Unless the run is sequential, the table has quartiles of p_A. For each of several
    values, it also has the share of images whose p_A is at least this value. The average radius comes last, because it
    is unsuitable for ranking classifiers.

    Args:
        run: a run of kind certify, or of kind verify with radii, with at least one image.
        radii: at least 0, in the unit of the input; default: `default_radii`.
        alpha: probability that a given interval misses the true value, in (0, 1).

    Returns:
        A table to print or to write. Its notes are the lines of `describe_run`, and the definitions of p_A and of the
        average radius.

    Raises:
        InputError: the run is of another kind or holds no image, or a radius is negative.
        InputTypeError: radii that are not numbers.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> [len(section) for section in certified_accuracy_table(run, [0.0, 0.25]).sections]
    [3, 8, 2, 2]
    """
    kind = checked_run(run).header.type
    if kind.certified != "radius":
        raise InputError("run", "a run with certified radii, of kind certify or verify", run.kind, f"use {kind.table}")
    radii = default_radii(run) if radii is None else non_negatives("radii", radii, infinite=True)
    accuracies = run.certified_accuracy(radii)
    totals = _prediction_rows(run, alpha)
    if "samples" in run.table:
        # The radii of a sequential run do not exceed the requested ones: their mean would say little.
        samples = float(run.table["samples"].mean())
        totals.append(("mean samples of an image", Quantity(samples, text=f"{samples:,.0f}"), "", ""))
        undecided = sum("1" in digits for digits in run.table["undecided"].tolist())
        totals.append((*count_cells("with a radius undecided at n samples", undecided, run), ""))
    certified: list[Row] = [
        rate_row(
            f"certified at radius {number_text(radius)}", estimate_rate(round(accuracy * len(run)), len(run), alpha)
        )
        for radius, accuracy in zip(radii, accuracies.tolist(), strict=True)
    ]
    notes = describe_run(run)
    if run.header.type.sampled_by_votes:
        return shares_table("Certified accuracy", [*notes, NO_P_A_NOTE], totals, certified, alpha=alpha)
    curve = _survival(run)
    p_a = [] if curve is None else _p_a_rows(curve, alpha)
    notes += [ACR_NOTE_OF_PROOFS] if curve is None else [P_A_NOTE, ACR_NOTE]  # None: verified radii
    return shares_table("Certified accuracy", notes, totals, p_a, certified, _radius_rows(run, alpha), alpha=alpha)


def prediction_table(run: Run, alpha: float = 0.05) -> ReportTable:
    """Show accuracy and abstentions of a run of a smoothed classifier.

    Args:
        run: a run of kind certify or predict, with at least one image.
        alpha: probability that the interval of the accuracy misses the true value, in (0, 1).

    Returns:
        A table to print or to write, with the lines of `describe_run` as notes.

    Raises:
        InputError: the run is of another kind or holds no image.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, max_images=4)
    >>> len(prediction_table(run).rows)
    3
    """
    kind = checked_run(run).header.type
    if not kind.smoothed or kind.attacked:
        raise InputError("run", "a run of kind certify or predict", run.kind, f"use {kind.table}")
    return shares_table("Predictions", describe_run(run), _prediction_rows(run, alpha), alpha=alpha)


def verification_table(run: Run, alpha: float = 0.05) -> ReportTable:
    """Show verified accuracy with intervals: at a run's epsilons, or at radii up to its largest certified radius.

    For a run with epsilons, the table also counts the images that each stage verified or falsified, and the images
    that remain unknown.

    Args:
        run: a run of kind verify, with at least one image.
        alpha: probability that a given interval misses the true value, in (0, 1).

    Returns:
        A table to print or to write, with the lines of `describe_run` as notes.

    Raises:
        InputError: the run is of another kind or holds no image.

    >>> from pyrobust.evaluation import verify_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = verify_dataset(load_model("zoo:digits-smooth-0.25"), load_data("digits"), epsilons=0.02, skip=20)
    >>> verification_table(run).rows[0][0], len(verification_table(run).rows) > 4
    ('images', True)
    """
    if not isinstance(checked_run(run).header.type, Verify):
        raise InputError("run", "a run of kind verify", run.kind)
    totals = total_rows(run, alpha)
    norm, epsilons = norm_of(run.parameters), run.parameters["epsilons"]
    sections: list[list[Row]] = [totals]
    notes = describe_run(run)
    if epsilons is None:
        sections.append(
            [
                rate_row(f"verified at {norm} {number_text(value)}", run.verified_accuracy(value, alpha))
                for value in rising(float(run.table["radius"].max()))
            ]
        )
        sections.append(_radius_rows(run, alpha))
        notes = [*notes, ACR_NOTE_OF_PROOFS]
    for epsilon in epsilons or ():
        sections.append(_verdict_rows(run, epsilon, alpha))
    return shares_table("Verification", notes, *sections, alpha=alpha)


def table_of(run: Run, **options: Any) -> ReportTable:
    """Return the table for the kind of a run."""
    from pyrobust import report

    made: ReportTable = getattr(report, run.header.type.table)(run, **options)
    return made


def rates_table(run: Run, alpha: float = 0.05) -> ReportTable:
    """Show clean accuracy and the other rates of a run, with intervals; used for runs without a table of their own.

    Args:
        run: a run of any kind, with at least one image.
        alpha: probability that a given interval misses the true value, in (0, 1).

    Returns:
        A table to print or to write, with the lines of `describe_run` as notes.

    Raises:
        InputError: the run holds no image.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation import attack_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = attack_dataset(FGSM(load_model("zoo:digits-smooth-0.25"), 0.1), load_data("digits"), max_images=4)
    >>> [row[0] for row in rates_table(run).rows]
    ['images', 'clean accuracy', 'robust accuracy']
    """
    title = checked_run(run).kind.capitalize()
    return shares_table(title, describe_run(run), total_rows(run, alpha), alpha=alpha)


def total_rows(run: Run, alpha: float) -> list[Row]:
    """Return rows: images, clean accuracy, the rates of the run's kind, and the images without a class, if any."""
    check_images(run)
    rows: list[Row] = [("images", "", len(run), ""), rate_row("clean accuracy", run.clean_accuracy(alpha))]
    rows += [rate_row(rate.title, rate.rate) for rate in run.header.type.rates(run, alpha)]
    return rows + no_class_rows(run)


def shares_table(title: str, notes: Sequence[str], *sections: Sequence[Row], alpha: float | None = None) -> ReportTable:
    """Return a table of shares and counts; with alpha, its last column holds intervals."""
    interval = () if alpha is None else (Column(f"{100 * (1 - alpha):g} % interval"),)
    return ReportTable(title, (*_COLUMNS, *interval), tuple(map(tuple, filter(None, sections))), tuple(notes))


def check_images(run: Run) -> None:
    """Raise InputError for a run without images."""
    if not len(run):
        raise InputError("run", "at least one image", "none", "resume it first")


def _prediction_rows(run: Run, alpha: float) -> list[Row]:
    check_images(run)
    correct, abstained = run.clean_accuracy(alpha), int((run.table["prediction"] < 0).sum())
    # A sequential run may give up an image before it is known whether the prediction abstains.
    without = "abstained or given up" if run.header.type.sampled_by_votes else "abstained"
    return [
        ("images", "", len(run), ""),
        rate_row("smoothed prediction correct", correct),
        (*count_cells(without, abstained, run), ""),
    ]


def _p_a_rows(curve: SurvivalCurve, alpha: float) -> list[Row]:
    """Return rows with the area under the survival curve of p_A, quartiles of p_A, and the curve at several values."""
    area = curve.area_estimate(alpha)
    interval = Interval(area.lower, area.upper, percent=False)
    rows: list[Row] = [("area under the survival curve of p_A", Quantity(area.value), "", interval)]
    names = ("p_A, lower quartile", "p_A, median", "p_A, upper quartile")
    rows += [(name, Quantity(value), "", "") for name, value in zip(names, curve.quantiles(QUARTILES), strict=True)]
    return rows + [
        rate_row(f"p_A {'above 1/2' if at == 0.5 else f'at least {at:g}'}", rate)
        for at, rate in survival_rates(curve, alpha)
    ]


def _survival(run: Run) -> SurvivalCurve | None:
    """Return the survival curve of p_A; None for a run without votes."""
    kind = run.header.type
    votes = kind.class_votes(run)
    if votes is None:
        return None
    return survival_curve(votes, run.parameters["n"], run.correct & kind.counted(run.table["radius"]))


def survival_rates(curve: SurvivalCurve, alpha: float) -> list[tuple[float, Rate]]:
    """Return the share of all images with p_A above 1/2, and the shares with p_A of at least t for several other t."""
    counts = {at: int((curve.p_a > at if at == 0.5 else curve.p_a >= at).sum()) for at in _SURVIVAL}
    return [(at, estimate_rate(count, len(curve), alpha)) for at, count in counts.items()]


def _radius_rows(run: Run, alpha: float) -> list[Row]:
    """Return rows with the average certified radius over all images, and the mean radius of the correct ones."""
    radius, correct = run.table["radius"], run.correct
    average = average_certified_radius(radius, correct, alpha)
    mean = average_radius(radius, correct)
    interval = Interval(average.lower, average.upper, percent=False)
    return [
        ("average certified radius", Quantity(average.value), "", interval),
        ("mean radius (correct only)", Quantity(mean) if correct.any() else "none", "", ""),
    ]


def _verdict_rows(run: Run, epsilon: float, alpha: float) -> list[Row]:
    """Return rows for one epsilon: the verified rate, then the number of images by verdict and stage."""
    verdicts = run.verdicts(epsilon)
    verified = int((verdicts["verdict"] == "verified").sum())
    name = f"verified at {norm_of(run.parameters)} epsilon {number_text(epsilon)}"
    rows: list[Row] = [rate_row(name, estimate_rate(verified, len(run), alpha))]
    for verdict, form in {"verified": "  by {}", "falsified": "falsified by {}", "unknown": "unknown"}.items():
        stages = verdicts["stage"][verdicts["verdict"] == verdict].tolist()
        rows += [
            (*count_cells(form.format(stage), stages.count(stage), run), "")
            for stage in STAGES[verdict]
            if stage in stages or verdict == "unknown"
        ]
    return rows


def rate_row(name: str, rate: Rate) -> Row:
    """Return a row with a rate, its count and its interval."""
    return (name, share_cell(rate.value), rate.successes, Interval(rate.lower, rate.upper))


def count_cells(name: str, count: int, run: Run) -> tuple[str, Quantity, int]:
    """Return the first cells of a row that has a number of images and no interval."""
    return (name, share_cell(count / len(run)), count)


def share_cell(share: float) -> Quantity:
    """Return a share in percent."""
    return Quantity(share, text=f"{100 * share:.1f} %")


def no_class_rows(run: Run) -> list[Row]:
    """Return a row that counts images without a class before or after an attack; no row if all have a class."""
    count = int(((run.table["prediction"] < 0) | (run.table.get("adversarial", run.table["prediction"]) < 0)).sum())
    return [(*count_cells("logits NaN or inf, counted wrong", count, run), "")] if count else []

"""Tables of a plan: the samples and the time that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyrobust.checks import number_text
from pyrobust.errors import InputError
from pyrobust.metrics import SweepTime
from pyrobust.report.formats import Cell, Column, Quantity, ReportTable, Row
from pyrobust.smoothing import Plan, PlannedMethod

# Units of wall times, largest first.
_UNITS = ((3600, "h"), (60, "min"))


def plan_table(plan: Plan, budget: float | None = None) -> ReportTable:
    """Compare the costs, the certified shares and the exact error probabilities of sampling methods.

    Args:
        plan: result of ``pyrobust.smoothing.plan``.
        budget: total number of samples. If it is given, the table has a row with the number of images for which these
            samples suffice.

    Returns:
        A table to print or to write, with the recommendation in its notes.

    Raises:
        InputError: the budget is negative or not finite.

    >>> from pyrobust.smoothing import plan
    >>> table = plan_table(plan([0.6, 0.9, 0.99, 0.999], 0.25, [0.25], n_max=10_000), budget=10**6)
    >>> [str(cell) for cell in table.rows[1]]
    ['images for 1,000,000 samples', '99', '3064', '2938']
    """

    def row(name: str, cell: Callable[[PlannedMethod], Cell]) -> Row:
        return (name, *(cell(method) for method in plan.methods))

    def per_radius(name: str, cell: Callable[[PlannedMethod, int], Cell]) -> list[Row]:
        return [
            (f"{name} {number_text(radius)}", *(cell(method, i) for method in plan.methods))
            for i, radius in enumerate(plan.radii)
        ]

    def share(value: float) -> Quantity:
        return Quantity(value, digits=2, percent=True)

    cost: list[Row] = [row("samples of an image", lambda method: round(method.samples))]
    if budget is not None:
        images = plan.images_for(budget)
        cost.append(row(f"images for {budget:,.0f} samples", lambda method: images[method.name]))
    if len(plan.radii) > 1:
        cost += per_radius("samples, if only at", lambda method, i: round(method.samples_alone[i]))
    sections = (
        tuple(cost),
        tuple(per_radius("certified at", lambda method, i: share(method.certified[i]))),
        tuple(per_radius("undecided at", lambda method, i: share(method.undecided[i]))),
        tuple(per_radius("exact error at", lambda method, i: f"{method.error[i]:.2g}")),
    )
    return ReportTable(
        title=f"Plan: sigma {plan.sigma:g}, alpha {plan.alpha:g}, at most {plan.n_max:,} samples",
        columns=(Column("", "left"), *(Column(method.name) for method in plan.methods)),
        sections=sections,
        notes=(
            f"Recommended: {plan.recommended}: {plan.reason}.",
            f"From {plan.images:,} probabilities, {plan.draws:,} simulated images. Samples include the {plan.n0} that "
            "select the class; standard errors: "
            + ", ".join(f"{method.name} {method.standard_error:,.0f}" for method in plan.methods[1:])
            + f". Certified: correct or not. The hybrid keeps {plan.hybrid:g} of alpha for the last sample.",
        ),
    )


def time_table(times: Mapping[str, Sequence[SweepTime]], notes: Sequence[str] = ()) -> ReportTable:
    """Compare the expected times of sweeps on several numbers of workers.

    Args:
        times: results of ``pyrobust.metrics.sweep_time``, by the name of the method or the run.
        notes: lines below the table, before the table's own notes.

    Returns:
        A table to print or to write.

    Raises:
        InputError: there are no times.

    >>> from pyrobust.metrics import sweep_time
    >>> table = time_table({"attack": [sweep_time([1.5, 2.5], 3600, workers, 32) for workers in (1, 8)]})
    >>> [str(cell) for cell in table.rows[1]]
    ['attack', '8', '16 min', '2', '0.5', '6.2 %']
    """
    if not any(times.values()):
        raise InputError("times", "at least one", "none")
    first = next(time for sweeps in times.values() for time in sweeps)
    names = ("", "workers", "wall time", "worker-hours", "standard error", "waiting")
    chunks = " or ".join(
        f"{chunk:,}" for chunk in dict.fromkeys(sweeps[0].chunk for sweeps in times.values() if sweeps)
    )

    def hours(seconds: float | None) -> Cell:
        return "" if seconds is None else Quantity(seconds / 3600, text=_digits(seconds / 3600))

    def row(name: str, time: SweepTime) -> Row:
        size, unit = next((unit for unit in _UNITS if time.wall_seconds >= 2 * unit[0]), (1, "s"))
        return (
            name,
            time.workers,
            Quantity(time.wall_seconds, text=f"{_digits(time.wall_seconds / size)} {unit}"),
            hours(time.worker_seconds),
            hours(time.standard_error),
            Quantity(time.waiting, digits=1, percent=True),
        )

    return ReportTable(
        title=f"Time: {first.images:,} images in chunks of {chunks}",
        columns=tuple(Column(name, "right" if name else "left") for name in names),
        sections=tuple(tuple(row(name, time) for time in sweeps) for name, sweeps in times.items()),
        notes=(
            *notes,
            "Assumed: workers as fast as the pilot's, each on a device of its own; their start is not included. Chunks "
            "that take equally long are assumed, too: uneven ones end later, at most by the longest. Waiting: share of "
            "the workers' time without a chunk.",
        ),
    )


def _digits(value: float) -> str:
    """Format a number with three significant digits or, from 100 on, with all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

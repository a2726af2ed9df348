"""Table of a plan."""

from __future__ import annotations

from collections.abc import Callable

from pyrobust.checks import number_text
from pyrobust.report.formats import Cell, Column, Quantity, ReportTable, Row
from pyrobust.smoothing import Plan, PlannedMethod


def plan_table(plan: Plan, budget: float | None = None) -> ReportTable:
    """Compare sampling methods: their cost, certified shares and exact errors.

    Args:
        plan: result of ``pyrobust.smoothing.plan``.
        budget: total samples; adds a row with the number of images that they suffice for.

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
            "select the class; standard errors, for a run of as many images: "
            + ", ".join(f"{method.name} {method.standard_error:,.0f}" for method in plan.methods[1:])
            + ".",
            "Certified: of all images, whether or not the class is right. Exact error: of an image just short of that "
            f"radius. The hybrid keeps {plan.hybrid:g} of alpha for one bound at the last sample.",
        ),
    )

"""Figure of success rates: a point and an interval for each row of a table."""

from __future__ import annotations

from pyrobust.errors import InputError
from pyrobust.report.axes import Frame, LineStyles
from pyrobust.report.formats import Quantity, ReportTable

# More captions would leave no room for the figure on a page.
_MOST = 40


def success_frame(table: ReportTable) -> Frame:
    """Draw the success rates of a table with their intervals; the figure can be rendered in one or more formats.

    Args:
        table: table made by `threat_table`. If it has more than 40 rows, only the first 40 rows are drawn, and a
            caption says so.

    Returns:
        The figure.

    Raises:
        InputError: a table without success rates.
        MissingExtraError: matplotlib is not installed.

    >>> from pyrobust.report.verdict_tables import threat_table
    >>> from pyrobust.threats import ThreatVerdict, ThreatVerdicts
    >>> rows = [ThreatVerdict(str(i), behaviour=str(i), success=i < 3) for i in range(10)]
    >>> success_frame(threat_table(ThreatVerdicts(tuple(rows)))).render("png")[1:4]
    b'PNG'
    """
    names = [column.name for column in table.columns]
    if "success rate" not in names:
        raise InputError("table", "one with success rates", table.title, "use threat_table")
    rate_column, behaviours = names.index("success rate"), names.index("behaviours")
    shown = table.rows[:_MOST]
    captions = [f"{i}  {row[0]}: {row[rate_column]}, {row[behaviours]} behaviours" for i, row in enumerate(shown, 1)]
    left_out = len(table.rows) - len(shown)
    captions += [f"{left_out} further rows are in the table."] if left_out else []
    frame = Frame(table.title, names[0], "success rate (%)", [*captions, "\n".join(table.notes[:3])])
    lines = []
    solid = {"linestyle": "-", "linewidth": 2.5}  # dashes would hide the ends; numbers distinguish the rows
    for i, (row, style) in enumerate(zip(shown, LineStyles().of(range(len(shown))), strict=True), 1):
        rate = row[rate_column]
        if not isinstance(rate, Quantity) or rate.lower is None or rate.upper is None:
            continue
        lines += frame.axes.plot([i, i], [100 * rate.lower, 100 * rate.upper], **style | solid)
        frame.axes.plot(
            [i], [100 * rate.value], marker="o", markersize=6, color=style["color"], clip_on=False, zorder=4
        )
    frame.axes.set_xlim(0.5, len(shown) + 0.5)
    frame.axes.set_xticks(range(1, len(shown) + 1))
    frame.label(lines)
    return frame

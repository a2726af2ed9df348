"""The page itself: one HTML file that sends no request, with every string escaped."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import pyrobust
from pyrobust.errors import extra
from pyrobust.report.formats import ReportTable, plain_text
from pyrobust.report.page.adapters import Result, subjects_of
from pyrobust.report.page.chart import Chart
from pyrobust.report.page.figures import accuracy_chart, overlay_chart, radius_charts, survival_chart
from pyrobust.report.page.subject import PageSubject
from pyrobust.report.page.tables import class_table, confidence_table, example_columns, gallery, paired_table
from pyrobust.report.page.words import key_numbers, title_of, verdict
from pyrobust.zoo import LabelledImages
from pyrobust.zoo.files import check_output, write_atomically

if TYPE_CHECKING:
    import jinja2

#: First bytes of every page; a file that begins with them may be overwritten by another page.
BEGINS = b"<!doctype html>\n<!-- pyrobust report -->\n"


class Live(NamedTuple):
    """Notice of a run in progress: a mark, a line of text, and the seconds between reloads (None to not reload)."""

    mark: str
    text: str
    seconds: int | None


def page_html(
    results: Result | Sequence[Result],
    *,
    data: LabelledImages | None = None,
    alpha: float = 0.05,
    radii: Sequence[float] = (),
    title: str | None = None,
    live: Live | None = None,
) -> str:
    """Write results as one self-contained HTML page, which sends no request and needs no network.

    Args:
        results: runs of any kind and certification logs, with at least one example each. Verifications and attacks of
            one network, data set and norm are shown together, as lower and upper bounds.
        data: the data set, for pictures. If None, the data set is loaded again from the files that a run names. A data
            set that comes from code has to be given.
        alpha: probability that a given interval misses the true value, in (0, 1).
        radii: radii of the tables, at least 0. The page begins with the rates of all models at the first positive
            radius. If there are no radii, one common radius is chosen for each norm. It is a radius given to the runs,
            or a round number.
        title: title of the page; default: the models and data.
        live: for a run in progress, the page's notice about it.

    Returns:
        The page. The same results give the same text.

    Raises:
        InputError: there is no result, a result has no examples, no result used the data, or alpha is out of range.
        InputTypeError: an argument of the wrong type.
        MissingExtraError: jinja2 is not installed, or Pillow is not installed and ``data`` is given.

    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation import attack_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = attack_dataset(FGSM(load_model("zoo:digits-smooth-0.25"), 0.1), load_data("digits"), max_images=8)
    >>> page_html(run, title="<Digits>")[:40].encode() == BEGINS[:40]
    True
    """
    subjects = subjects_of(results, data=data, alpha=alpha, radii=radii)
    views = [_view(subject, number) for number, subject in enumerate(subjects)]
    footer = f"Intervals hold with {100 * (1 - alpha):g} % each, for other examples of the same kind."
    return document(
        title if title is not None else title_of(subjects),
        views,
        footer=footer,
        overlays=_overlays(subjects),
        live=live,
    )


@functools.cache
def _environment() -> jinja2.Environment:
    """Return jinja2's environment, which keeps the compiled templates for later pages."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("pyrobust.report.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Marks that change the writing direction would affect text beyond their own.
        finalize=_plain_unless_trusted,
    )


def document(
    title: str,
    subjects: Sequence[dict[str, Any]],
    *,
    footer: str,
    overlays: Sequence[tuple[Chart, ReportTable | None]] = (),
    threats: dict[str, Any] | None = None,
    live: Live | None = None,
) -> str:
    """Render a page of subjects, or of verdicts on threats.

    Args:
        title: title of the page.
        subjects: what the template shows of each subject.
        footer: text that explains the page's intervals.
        overlays: charts of several subjects, each with a table of paired tests or None.
        threats: what the template shows of verdicts on threats, instead of subjects.
        live: notice of a run in progress.

    Returns:
        The page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    with extra("report", "report: needs jinja2"):
        import jinja2  # noqa: F401 (for the error)
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    return (
        _environment()
        .get_template("page.html")
        .render(
            begins=_trusted(BEGINS.decode()),
            title=title,
            subjects=subjects,
            overlays=overlays,
            threats=threats,
            nav=threats["nav"] if threats is not None else _nav(subjects),
            style=_trusted(style),
            script=_trusted(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
            version=pyrobust.__version__,
            footer=footer,
            json=_json,
            live=live,
        )
    )


def _nav(views: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the links at the top: to the subjects or, if there is only one, to its sections."""
    if len(views) > 1:
        return [(view["id"], view["subject"].name) for view in views]
    (view,) = views
    sections = [
        ("distributions", "Distributions", view["charts"]),
        ("classes", "Classes", view["classes"]),
        ("gallery", "Worst and best", view["pictured"]),
        ("examples", "Examples", True),
        ("audit", "Audit", True),
        ("origin", "Origin", True),
    ]
    return [(f"{view['id']}-{section}", title) for section, title, there in sections if there]


def write_page(
    path: str | os.PathLike[str],
    results: Result | Sequence[Result],
    *,
    data: LabelledImages | None = None,
    alpha: float = 0.05,
    radii: Sequence[float] = (),
    title: str | None = None,
    replace: bool = False,
) -> None:
    """Write `page_html` to a file, whole or not at all.

    Args:
        path: path of the page. An existing file is overwritten if it is a page of this kind, or if ``replace`` is true.
        results: runs of any kind and certification logs.
        data: the data set, for pictures. If None, the data set is loaded again from the files that a run names.
        alpha: probability that a given interval misses the true value, in (0, 1).
        radii: radii of the tables, at least 0. The page begins with the rates of all models at the first positive
            radius. If there are no radii, one common radius is chosen for each norm. It is a radius given to the runs,
            or a round number.
        title: title of the page; default: the models and data.
        replace: whether an existing file of any kind may be overwritten; the files of the results are never
            overwritten.

    Raises:
        InputError: writing to ``path`` is not allowed, for example because the file belongs to the results, or one of
            the errors of `page_html` occurs.
        InputTypeError, MissingExtraError: as for `page_html`.
        StoreError: the file cannot be written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from pyrobust.attacks import FGSM
    >>> from pyrobust.evaluation import attack_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> run = attack_dataset(FGSM(load_model("zoo:digits-smooth-0.25"), 0.1), load_data("digits"), max_images=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page(Path(folder) / "page.html", run)
    ...     Path(folder, "page.html").read_bytes().startswith(BEGINS)
    True
    """
    list_of_results = [results] if isinstance(results, Result) else results
    inputs = [result.path for result in list_of_results if isinstance(result, Result) and result.path is not None]
    check_output("path", path, inputs=inputs, replace=replace, begins=BEGINS)
    write_atomically(path, page_html(results, data=data, alpha=alpha, radii=radii, title=title).encode())


def _asset(name: str) -> str:
    return resources.files("pyrobust.report.page").joinpath("templates").joinpath(name).read_text("utf-8")


def _trusted(text: str) -> Any:
    """Mark a text of this package as safe to insert without escaping."""
    from markupsafe import Markup

    return Markup(text)


def _plain_unless_trusted(value: Any) -> Any:
    return value if hasattr(value, "__html__") or not isinstance(value, str) else plain_text(value)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _json(value: Any) -> Any:
    """Write JSON for HTML, without characters that end an element, start a comment or change writing direction."""
    text = json.dumps(_plain(value), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for mark in "<>&'":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return _trusted(text)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _view(subject: PageSubject, number: int) -> dict[str, Any]:
    """Return all that the template shows about a subject."""
    name = f"s{number + 1}"
    charts: list[Chart] = [chart for chart in (survival_chart(subject, f"{name}-survival"),) if chart is not None]
    charts += radius_charts(subject, f"{name}-radii")
    shown = gallery(subject)
    return {
        "id": name,
        "subject": subject,
        "verdict": verdict(subject),
        "numbers": key_numbers(subject),
        "figure": accuracy_chart(subject, f"{name}-accuracy"),
        "charts": charts,
        "classes": class_table(subject),
        "confidence": confidence_table(subject),
        "gallery": shown,
        "pictured": any(each.picture is not None for side in shown.values() for each in side),
        "columns": example_columns(subject),
        "findings": subject.findings,
    }


def _overlays(subjects: Sequence[PageSubject]) -> list[tuple[Chart, ReportTable | None]]:
    """Return charts of comparable subjects (same norm and data; all or none smoothed), and their paired tests."""
    groups: dict[Any, list[PageSubject]] = {}
    for subject in subjects:
        if subject.reach > 0:
            groups.setdefault((subject.norm, subject.data_sha256, subject.smoothed), []).append(subject)
    several = [group for group in groups.values() if len(group) > 1]
    return [
        (overlay_chart(group, f"overlay-{number + 1}"), paired_table(group)) for number, group in enumerate(several)
    ]

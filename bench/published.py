"""The tables of bench/results/published.md, from the certification logs in PYROBUST_DATA."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyrobust.evaluation import CertificationLog, audit, read_certification_log
from pyrobust.metrics.certified import average_certified_radius, certified_accuracy
from pyrobust.metrics.rate import Rate
from pyrobust.metrics.subsets import subset_accuracy, subset_average_certified_radius

PAGE = Path(__file__).resolve().parent / "results" / "published.md"


@dataclass(frozen=True)
class Published:
    """A log, its title, and the published accuracies in % at the radii of its data set, over ``images`` images."""

    file: str
    name: str
    printed: Sequence[int | None]
    source: str
    macer_acr: float | None = None
    images: int = 500


# Figures of the literature, by data set.
_FIGURES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
RADII = {data: figures["radii"] for data, figures in _FIGURES.items()}
LOGS = {data: [Published(**entry) for entry in figures["logs"]] for data, figures in _FIGURES.items()}
ENVELOPES = {data: figures["envelopes"] for data, figures in _FIGURES.items()}


def filled(page: str, folder: Path) -> str:
    """Return the page with its tables computed from the logs."""
    for name, table in tables(folder).items():
        pattern = rf"(<!-- computed: {name} -->\n).*?(<!-- end -->)"
        page, count = re.subn(pattern, lambda match, table=table: match[1] + table + match[2], page, flags=re.S)
        if count != 1:
            raise SystemExit(f"{PAGE}: expected one table {name!r}, got {count}")
    return page


def tables(folder: Path) -> dict[str, str]:
    """Return all computed tables by name, as Markdown."""
    read = {
        data: [(each, read_certification_log(folder / data / f"{each.file}.tsv")) for each in logs]
        for data, logs in LOGS.items()
    }
    made = {"logs": _files(read)}
    for data, logs in read.items():
        made[f"{data} accuracy"] = _accuracies(logs, RADII[data])
        made[f"{data} envelope"] = _envelope(logs, RADII[data][1:], ENVELOPES[data])
    made["radii"] = _average_radii([pair for logs in read.values() for pair in logs])
    return made


def _files(read: dict[str, list[tuple[Published, CertificationLog]]]) -> str:
    rows = []
    for data, logs in read.items():
        for each, log in logs:
            content = log.path.read_bytes()
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            status = audit(log).exit_status
            rows.append([f"{data}/{each.file}.tsv", f"{len(log):,}", blob[:12], "clean" if status == 0 else "faults"])
    return _table(["log", "images", "git blob", "audit"], rows)


def _accuracies(logs: Sequence[tuple[Published, CertificationLog]], radii: Sequence[float]) -> str:
    rows = []
    for each, log in logs:
        rates = _rates(log, radii)
        if each.source:
            rows.append([f"{each.name}: printed [{each.source}], {each.images} images", *map(_whole, each.printed)])
        if len(log) > 500:
            rows.append([f"{each.name}: log, every 20th image", *_shares(_every(log, 20), radii)])
            title, ends = "random 500 of them, 95 %", [subset_accuracy(rate.successes, rate.n, 500) for rate in rates]
        else:
            title, ends = "interval, 95 %", [(rate.lower, rate.upper) for rate in rates]
        rows.append([f"**{each.name}: log, {len(log):,} images**", *(f"**{text}**" for text in _shares(log, radii))])
        rows.append([title, *(f"{100 * low:.1f} to {100 * high:.1f}" for low, high in ends)])
    return _table(["certified accuracy in %", *(f"r = {radius:g}" for radius in radii)], rows)


def _envelope(
    logs: Sequence[tuple[Published, CertificationLog]], radii: Sequence[float], printed: dict[str, list[int]]
) -> str:
    rows = []
    for method, figures in printed.items():
        title = {"cohen": "Cohen et al.", "smoothadv": "Salman et al."}[method]
        rows.append([f"{title}, best classifier of each radius, printed", *map(_whole, figures)])
        for each, log in logs:
            if each.file.startswith(method):
                rows.append([f"{each.name}: log", *_shares(log, radii)])
    return _table(["certified accuracy in %", *(f"r = {radius:g}" for radius in radii)], rows)


def _average_radii(logs: Sequence[tuple[Published, CertificationLog]]) -> str:
    rows = []
    for each, log in logs:
        mean = average_certified_radius(log.radius, log.certified)
        large = len(log) > 500
        low, high = subset_average_certified_radius(log.radius, log.certified, 500) if large else (0.0, 0.0)
        survival = audit(log).metrics.survival
        assert survival is not None
        rows.append(
            [
                f"{each.name}, {len(log):,} images",
                f"{survival.area:.4f}",
                f"{100 * survival.share_below_half:.2f} %",
                f"{mean.value:.4f}",
                f"{mean.lower:.3f} to {mean.upper:.3f}",
                f"{low:.3f} to {high:.3f}" if large else "–",
                "–" if each.macer_acr is None else f"{each.macer_acr:.3f}",
            ]
        )
    header = ["log", "area under survival of p_A", "p_A below ½", "ACR", "95 %", "random 500", "printed [M]"]
    return _table(header, rows)


def _rates(log: CertificationLog, radii: Sequence[float]) -> list[Rate]:
    return certified_accuracy(log.radius, log.certified, radii)


def _shares(log: CertificationLog, radii: Sequence[float]) -> list[str]:
    # digits by the number of images
    return [f"{100 * rate.value:.{2 if rate.n > 1000 else 1}f}" for rate in _rates(log, radii)]


def _every(log: CertificationLog, step: int) -> CertificationLog:
    rows = np.flatnonzero(log.index % step == 0)
    columns = ("index", "label", "prediction", "radius", "correct")
    return replace(log, **{name: getattr(log, name)[rows] for name in columns}, seconds=None, decimals=None, lines=None)


def _whole(figure: int | None) -> str:
    return "–" if figure is None else str(figure)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

"""Synthetic certification logs, and faults planted in logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pyrobust.auditing import Audit, audit, read_certification_log
from pyrobust.metrics.votes import attainable_radii, votes_for_radius

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime"
N, ALPHA = 100_000, 0.001


def three_digits(radius: float) -> str:
    """Format a radius as the reference script does."""
    return f"{radius:.3}"


def six_down(radius: float) -> str:
    """Format a radius as this project does."""
    return f"{np.floor(radius * 1e6) / 1e6:.6f}"


def made_up(
    rows: int = 400,
    *,
    n: int = N,
    alpha: float = ALPHA,
    sigma: float = 0.25,
    show: Callable[[float], str] = three_digits,
    stride: int = 1,
    beta: tuple[float, float] = (4.0, 0.5),
    seed: int = 0,
) -> str:
    """Return the log of a synthetic certification of `rows` images."""
    random = np.random.default_rng(seed)
    votes = random.binomial(n, random.beta(*beta, rows))
    radius = attainable_radii(n, alpha, sigma)[votes]
    label = random.integers(0, 10, rows)
    predict = np.where(radius > 0, np.where(random.random(rows) < 0.8, label, (label + 1) % 10), -1)
    lines = [HEADER]
    for row, (y, p, r) in enumerate(zip(label.tolist(), predict.tolist(), radius.tolist(), strict=True)):
        lines.append(f"{row * stride}\t{y}\t{p}\t{show(r)}\t{int(y == p)}\t0:00:14.{row:06d}")
    return "\n".join(lines) + "\n"


def split(text: str) -> tuple[list[str], list[list[str]]]:
    """Split a log into the fields of its header and rows."""
    header, *rows = (line.split("\t") for line in text.splitlines())
    return header, rows


def joined(header: list[str], rows: list[list[str]]) -> bytes:
    return "".join("\t".join(row) + "\n" for row in [header, *rows]).encode()


@dataclass(frozen=True)
class Planted:
    """A log with a fault.

    Attributes:
        content: bytes of the file.
        kind: kind of the expected finding; "" if reading must fail.
        words: expected text in the message.
        options: arguments of the reader.
    """

    content: bytes
    kind: str
    words: str
    options: dict[str, Any] = field(default_factory=dict)


def _certified_row(rows: list[list[str]], nth: int = 3) -> int:
    """Return the position of a correct row with a radius well above zero."""
    return [i for i, row in enumerate(rows) if row[1] == row[2] and float(row[3]) > 0.1][nth]


def _changed(text: str, column: int, value: str) -> tuple[bytes, int]:
    header, rows = split(text)
    row = _certified_row(rows)
    rows[row][column] = value
    return joined(header, rows), row + 2


def _recertified(text: str, sigma: float, n: int, alpha: float) -> bytes:
    """Replace radii by those of the same shares of votes at another n and alpha, with four decimals."""
    header, rows = split(text)
    radius = np.array([float(row[3]) for row in rows])
    votes = votes_for_radius(radius, N, ALPHA, sigma, decimals=3)[0]
    table = attainable_radii(n, alpha, sigma)
    for row, count in zip(rows, votes.tolist(), strict=True):
        again = table[count * n // N]
        row[3] = f"{again:.4f}"
        if not again:
            row[2], row[4] = "-1", "0"
    return joined(header, rows)


def plant(text: str, sigma: float) -> dict[str, Planted]:
    """Plant each fault in a clean log that has saturated radii."""
    header, rows = split(text)
    right = np.array([row[1] == row[2] for row in rows])
    cumulative = [[*row[:4], str(count), *row[5:]] for row, count in zip(rows, np.cumsum(right), strict=True)]
    means = np.cumsum(right) / np.arange(1, len(rows) + 1)
    running = [[*row[:4], f"{mean:.4f}", *row[5:]] for row, mean in zip(rows, means, strict=True)]
    order = np.random.default_rng(1).permutation(len(rows))
    raised, raised_line = _changed(text, 3, f"{sigma * 5:.3f}")
    nan, nan_line = _changed(text, 3, "nan")
    negative, negative_line = _changed(text, 3, "-0.377")
    twice = _certified_row(rows)
    return {
        "truncation": Planted(text.encode()[: 2 * len(text) // 3 - 3], "truncated", "is truncated"),
        "truncation, line by line": Planted(joined(header, [*rows, rows[-1][:3]]), "truncated", "has 3 of 6 fields"),
        "duplicate": Planted(
            joined(header, [*rows[: twice + 1], *rows[twice:]]),
            "duplicate",
            f"duplicate image: 1 row (line {twice + 3})",
        ),
        "other alpha, given": Planted(text.encode(), "parameters", "made with alpha 0.001 (not 0.01)", {"alpha": 0.01}),
        "other alpha, smaller": Planted(
            _recertified(text, sigma, N, 1e-5), "parameters", "alpha 1e-05", {"n": N, "alpha": ALPHA}
        ),
        "other alpha, larger": Planted(
            _recertified(text, sigma, N, 0.01), "parameters", "alpha 0.01", {"n": N, "alpha": ALPHA}
        ),
        "radius beyond the maximum": Planted(raised, "above-maximum", f"1 row (line {raised_line})"),
        "cumulative correct": Planted(
            joined(header, cumulative), "cumulative-correct", "running count of correct rows"
        ),
        "running mean": Planted(joined(header, running), "cumulative-correct", "running share of correct rows"),
        "shuffled rows": Planted(joined(header, [rows[i] for i in order]), "order", "rows out of order"),
        "NaN": Planted(nan, "nan", f"NaN radius: 1 row (line {nan_line})"),
        "negative radius": Planted(negative, "negative", f"negative radius: 1 row (line {negative_line})"),
        "wrong n, smaller": Planted(text.encode(), "parameters", "made with n 100,000 (not 1,000)", {"n": 1000}),
        "wrong n, larger": Planted(text.encode(), "parameters", "made with n 100,000 (not", {"n": 1_000_000}),
        "wrong n, of the file": Planted(
            _recertified(text, sigma, 1000, ALPHA), "parameters", "n 1,000", {"n": N, "alpha": ALPHA}
        ),
        "missing column": Planted(
            joined(header[:3] + header[4:], [r[:3] + r[4:] for r in rows]), "", "missing column radius"
        ),
        "binary garbage": Planted(np.random.default_rng(2).bytes(4000), "", "got a binary file"),
        "empty file": Planted(b"", "", "the file is empty"),
    }


def audited(folder: Path, content: bytes | str, sigma: float | None = 0.25, **options: float) -> Audit:
    """Audit the content of a file whose name tells sigma, if there is one."""
    path = folder / ("log.tsv" if sigma is None else f"log_sigma{sigma:g}.tsv")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    # ``options`` mixes n, an int, with floats
    return audit(read_certification_log(path, **options))  # type: ignore[arg-type]  # options of several types


def message(report: Audit, kind: str) -> str:
    """Message of the first finding of a kind."""
    return next(finding.message for finding in report.findings if finding.kind == kind)

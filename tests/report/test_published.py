"""bench/results/published.md says what the published logs say."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

published = pytest.importorskip("published", reason="bench is not beside the tests")


@pytest.fixture(scope="module")
def logs():
    folder = os.environ.get("PYROBUST_DATA")
    if folder is None:
        pytest.skip("PYROBUST_DATA is not set")
    return Path(folder) / "logs"


def counted(path, radius):
    """Count rows that are right with at least this radius, in %, without the package."""
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    return 100 * sum(row[1] == row[2] and float(row[3]) >= radius for row in rows) / len(rows)


def test_the_page_matches_the_logs(logs):
    page = published.PAGE.read_text(encoding="utf-8")
    changed = page.replace("42.79", "42.97", 1)
    assert changed != page
    assert published.filled(changed, logs) == page


def test_accuracies_match_counts_of_the_files(logs):
    page = published.PAGE.read_text(encoding="utf-8")
    for data, radii in published.RADII.items():
        for each in published.LOGS[data]:
            row = next(line for line in page.splitlines() if line.startswith(f"| **{each.name}: log, "))
            figures = [float(text) for text in re.findall(r"\*\*([\d.]+)\*\*", row)]
            expected = [counted(logs / data / f"{each.file}.tsv", radius) for radius in radii]
            assert figures == pytest.approx(expected, abs=1e-9)


def test_printed_figures_match_500_images(logs):
    """The papers print the figures of every 20th image, with other noise."""
    for each in published.LOGS["cifar10"]:
        rows = (logs / "cifar10" / f"{each.file}.tsv").read_text().splitlines()[1::20]
        for radius, printed in zip(published.RADII["cifar10"], each.printed, strict=True):
            if printed is not None:
                right = sum(f[1] == f[2] and float(f[3]) >= radius for f in (row.split("\t") for row in rows))
                assert right / 5 == pytest.approx(printed, abs=1.5)
                assert len(rows) == 500


def test_the_text_quotes_its_tables():
    page = published.PAGE.read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| **Cohen, σ 0.50: log, 10,000 images"))
    assert row.split("|")[6].strip(" *") == "21.97"
    assert "counts 2,197, 21.97 %" in " ".join(page.split())
    for word in ("computed", "[C]", "[S]", "[M]", "[G]", "[Z]", "[P]", "[F]"):
        assert word in page

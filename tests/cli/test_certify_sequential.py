"""``pyrobust certify --method sequential`` as a user sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyrobust.evaluation import Run

BASE = ["certify", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25", "--n", "3000"]
QUICK = [*BASE, "--method", "sequential", "--max", "24"]


def test_the_table_and_the_run(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust(*QUICK, "--radii", "1/4,0.5", "--hybrid", "0.5", "--two-class")
    assert done.status == 0, done.err
    name = "certify-digits-smooth-0.25-digits-sigma0.25-sequential-r0.25-0.5-hybrid0.5-two-class-n3000.db"
    assert [file.name for file in tmp_path.iterdir()] == [name]
    run = Run(name)
    assert run.complete
    assert run.parameters["radii"] == [0.25, 0.5]
    assert (run.parameters["hybrid"], run.parameters["two_class"]) == (0.5, True)
    refused = pyrobust(*QUICK, "--radii", "1/4,0.5", "--two-class", "--out", name)
    assert "hybrid: 0.5 stored, 0.01 given" in refused.error
    assert run.table["samples"].min() < 1000
    text = " ".join(done.out.split())
    for words in ("method sequential", "decided: radius 0.25, 0.5", "n at most 3000 samples", "alpha 0.001"):
        assert words in text
    assert f"mean samples of an image │ {run.table['samples'].mean():,.0f} │" in text
    certified = int((run.correct & (run.table["radius"] >= 0.25)).sum())
    line = next(line for line in done.out.splitlines() if "certified at radius 0.25" in line)
    assert line.split("│")[3].strip() == str(certified)
    assert max(map(len, done.out.splitlines())) <= 80


def test_many_radii_give_a_file_name_of_valid_length(pyrobust: Any, tmp_path: Path) -> None:
    radii = [f"0.{i:03}" for i in range(1, 61)]
    for last in ("0.5", "0.6"):
        assert pyrobust(*QUICK[:-1], "2", "--n", "100", "--radii", ",".join([*radii, last])).status == 0
    runs = [Run(file) for file in tmp_path.iterdir()]
    assert sorted(run.parameters["radii"][-1] for run in runs) == [0.5, 0.6]
    refused = pyrobust(*QUICK, "--radii", "0.5", "--out", "x" * 300 + ".db")
    assert "cannot create the file (File name too long)" in refused.error

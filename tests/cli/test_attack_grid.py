"""``pyrobust attack --grid`` and ``--save-images`` as a user sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pyrobust.evaluation import Run
from pyrobust.zoo import load_data

BASE = ["attack", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--attack", "pgd", "--steps", "3"]
BYTES = [*BASE, "--epsilon", "38/255", "--max", "12", "--grid", "1/255"]


def test_saved_images_are_attacked_images_wherever_they_are_loaded(
    pyrobust: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = pyrobust(*BYTES, "--save-images", "adversarial")
    assert done.status == 0, done.err
    assert "linf epsilon 38/255 in steps of 1/255" in " ".join(done.out.split())
    assert "images: adversarial" in done.err
    assert [message[:13] for message in caplog.messages] == ["digits: moved"]
    caplog.clear()
    run = Run(tmp_path / "attack-pgd-digits-smooth-0.25-digits-linf-eps0.14902-grid-1-255.db")
    assert torch.equal(load_data(f"folder:{tmp_path}/adversarial").x, run.examples())
    again = pyrobust(*BASE, "--data", "folder:adversarial", "--epsilon", "0", "--grid", "1/255", "--out", "again.db")
    assert again.status == 0, again.err
    assert Run(tmp_path / "again.db").table["prediction"].tolist() == run.table["adversarial"].tolist()
    assert caplog.messages == []
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "adversarial").glob("*.png")}
    assert pyrobust(*BYTES, "--save-images", "adversarial").status == 0  # complete: nothing to do
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "adversarial").glob("*.png")} == before
    assert pyrobust("audit", str(run.path)).status == 0


def test_auto_and_npz_and_curves(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust(*BASE, "--epsilon", "1/4", "--max", "12", "--grid", "auto", "--out", "auto.db")
    assert done.status == 0, done.err
    assert Run(tmp_path / "auto.db").parameters["grid"] == "1/16"
    assert pyrobust(*BYTES, "--save-images", "a.npz", "--out", "b.db").status == 0
    assert torch.equal(load_data(f"npz:{tmp_path}/a.npz").x, Run(tmp_path / "b.db").examples())
    curve = pyrobust("curve", *BASE[1:], "--epsilons", "0:0.2:3", "--max", "12", "--grid", "1/255")
    assert curve.status == 0, curve.err
    assert "grid 1/255" in curve.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*BASE, "--epsilon", "0.1", "--grid", "bytes"], "--grid: expected a positive fraction"),
        ([*BASE, "--epsilon", "0.1", "--grid", "3"], "grid: expected a step with 2 to"),
        ([*BASE, "--epsilon", "0.1", "--save-images", "a"], "--save-images: expected --grid 1/255"),
        ([*BASE, "--epsilon", "0.1", "--grid", "auto", "--save-images", "a"], "--save-images: expected --grid 1/255"),
        ([*BYTES, "--save-images", "a", "--no-examples"], "--save-images: expected none with --no-examples"),
        ([*BYTES, "--save-images", "taken.txt"], "--save-images: expected a folder, got the file"),
        ([*BYTES, "--save-images", "full"], "--save-images: expected a new or empty folder"),
        ([*BYTES, "--save-images", "taken.npz"], "--save-images: expected a new file"),
    ],
)
def test_bad_input_is_one_error_before_any_work(pyrobust: Any, tmp_path: Path, arguments: Any, message: str) -> None:
    (tmp_path / "full").mkdir()
    for name in ("taken.txt", "taken.npz", "full/mine"):
        (tmp_path / name).write_text("mine")
    assert message in pyrobust(*arguments).error
    assert sorted(file.name for file in tmp_path.iterdir()) == ["full", "taken.npz", "taken.txt"]
    assert (tmp_path / "taken.npz").read_text() == "mine"

"""Smoothing on the grid of the pixel values: ``--grid``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyrobust.evaluation import Run
from pyrobust.zoo import load_data

QUICK = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25", "--n", "100", "--max", "3")


def test_the_grid_of_the_digits_is_detected(pyrobust: Any) -> None:
    for command in ("certify", "predict"):
        done = pyrobust(command, *QUICK, "--out", f"{command}.db")
        assert done.status == 0
        assert "guarantee grid: sound in floating point on the grid of 1/16" in " ".join(done.out.split())
        assert "no usual grid" not in done.err
        run = Run(f"{command}.db")
        assert (run.header.guarantee, run.parameters["grid"]) == ("grid", "1/16")
        named = pyrobust(command, *QUICK, "--grid", "1/16", "--out", f"{command}.db")
        assert named.status == 0
        refused = pyrobust(command, *QUICK, "--grid", "none", "--out", f"{command}.db").error
        assert "guarantee: 'grid' stored, 'real' given" in refused
        assert 'repeat its parameters to resume it (grid="1/16", --grid 1/16), or use another file' in refused


def test_a_run_without_a_grid_says_how_to_resume(pyrobust: Any) -> None:
    run = ["certify", *QUICK, "--out", "run.db"]
    done = pyrobust(*run, "--grid", "none")
    assert done.status == 0
    assert "guarantee real" in " ".join(done.out.split())
    refused = pyrobust(*run).error
    assert "guarantee: 'real' stored, 'grid' given" in refused
    assert "repeat its parameters to resume it (without a grid: grid=None, --grid none), or use another file" in refused
    assert pyrobust(*run, "--grid", "none").status == 0
    # Another difference has nothing to do with it.
    assert "--grid" not in pyrobust(*run, "--grid", "none", "--seed", "1").error


@pytest.mark.parametrize("noise", ["uniform", "laplace"])
def test_other_noise_has_no_grid(pyrobust: Any, noise: str) -> None:
    done = pyrobust("certify", *QUICK, "--noise", noise, "--out", "run.db")
    assert done.status == 0
    assert "grid" not in done.err
    assert Run("run.db").header.guarantee == "real"
    named = pyrobust("certify", *QUICK, "--noise", noise, "--grid", "1/16", "--out", "other.db")
    assert f"--grid: expected none with {noise} noise, got '1/16'" in named.error


def test_images_without_a_usual_grid(pyrobust: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    digits = load_data("digits")
    np.savez(tmp_path / "odd.npz", x=digits.x[:5].numpy() * np.float32(0.7), y=digits.y[:5].numpy())
    odd = [*QUICK[:3], "npz:odd.npz", *QUICK[4:]]
    done = pyrobust("certify", *odd, "--out", "run.db")
    assert done.status == 0
    assert "no usual grid found in the images: guarantee real" in caplog.text
    assert Run("run.db").header.guarantee == "real"
    assert "data: npz" in pyrobust("certify", *odd, "--grid", "1/16", "--out", "other.db").error

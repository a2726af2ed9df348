"""``pyrobust certify``, ``verify`` and the summaries of all sweeps as a user sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.printed import cells, files

from pyrobust.evaluation import Run
from pyrobust.metrics import estimate_rate
from pyrobust.zoo import load_data

BASE = ["--model", "zoo:digits-smooth-0.25", "--data", "digits"]
SMOOTH = [*BASE, "--sigma", "0.25"]
SEQUENTIAL = ["certify", *SMOOTH, "--n", "3000", "--method", "sequential", "--max", "24"]
QUICK = [*SMOOTH, "--n", "100", "--max", "3"]
CROWN = ["verify", *BASE, "--method", "crown", "--max", "24"]
RUNS = {
    "certify": ("--sigma", 0.25, "--n", 100),
    "predict": ("--sigma", 0.25, "--n", 100),
    "attack": ("--epsilon", "8/255", "--attack", "fgsm"),
    "verify": ("--epsilon", "1/255,0.02", "--method", "ibp"),
}


def test_the_table_of_a_sequential_run(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust.ok(*SEQUENTIAL, "--radii", "1/4,0.5", "--hybrid", "0.5", "--two-class")
    name = "certify-digits-smooth-0.25-digits-sigma0.25-sequential-r0.25-0.5-hybrid0.5-two-class-n3000.db"
    assert [file.name for file in tmp_path.iterdir()] == [name]
    run = Run(name)
    assert run.complete
    assert run.parameters["radii"] == [0.25, 0.5]
    assert (run.parameters["hybrid"], run.parameters["two_class"]) == (0.5, True)
    refused = pyrobust(*SEQUENTIAL, "--radii", "1/4,0.5", "--two-class", "--out", name)
    assert "hybrid: 0.5 stored, 0.01 given" in refused.error
    assert run.table["samples"].min() < 1000
    text = " ".join(done.out.split())
    for words in ("method sequential", "decided: radius 0.25, 0.5", "n at most 3000 samples", "alpha 0.001"):
        assert words in text
    assert f"mean samples of an image │ {run.table['samples'].mean():,.0f} │" in text
    undecided = sum("1" in digits for digits in run.table["undecided"].tolist())
    assert undecided
    assert any("undecided at n samples" in line and f" {undecided} " in line for line in done.out.splitlines())
    certified = int((run.correct & (run.table["radius"] >= 0.25)).sum())
    line = next(line for line in done.out.splitlines() if "certified at radius 0.25" in line)
    assert line.split("│")[3].strip() == str(certified)
    assert max(map(len, done.out.splitlines())) <= 80


def test_many_radii_give_a_file_name_of_valid_length(pyrobust: Any, tmp_path: Path) -> None:
    radii = [f"0.{i:03}" for i in range(1, 61)]
    for last in ("0.5", "0.6"):
        pyrobust.ok(*SEQUENTIAL[:-1], "2", "--n", "100", "--radii", ",".join([*radii, last]))
    runs = [Run(file) for file in tmp_path.iterdir()]
    assert sorted(run.parameters["radii"][-1] for run in runs) == [0.5, 0.6]
    refused = pyrobust(*SEQUENTIAL, "--radii", "0.5", "--out", "x" * 300 + ".db")
    assert "cannot create the file (File name too long)" in refused.error


def test_the_grid_of_the_digits_is_detected(pyrobust: Any) -> None:
    for command in ("certify", "predict"):
        done = pyrobust.ok(command, *QUICK, "--out", f"{command}.db")
        assert "guarantee grid: sound in floating point on the grid of 1/16" in " ".join(done.out.split())
        assert "no usual grid" not in done.err
        run = Run(f"{command}.db")
        assert (run.header.guarantee, run.parameters["grid"]) == ("grid", "1/16")
        pyrobust.ok(command, *QUICK, "--grid", "1/16", "--out", f"{command}.db")
        refused = pyrobust(command, *QUICK, "--grid", "none", "--out", f"{command}.db").error
        assert "guarantee: 'grid' stored, 'real' given" in refused
        assert 'repeat its parameters to resume it (grid="1/16", --grid 1/16), or use another file' in refused


def test_a_run_without_a_grid_says_how_to_resume(pyrobust: Any) -> None:
    run = ["certify", *QUICK, "--out", "run.db"]
    done = pyrobust.ok(*run, "--grid", "none")
    assert "guarantee real" in " ".join(done.out.split())
    refused = pyrobust(*run).error
    assert "guarantee: 'real' stored, 'grid' given" in refused
    assert "repeat its parameters to resume it (without a grid: grid=None, --grid none), or use another file" in refused
    pyrobust.ok(*run, "--grid", "none")
    # Another difference has nothing to do with it.
    assert "--grid" not in pyrobust(*run, "--grid", "none", "--seed", "1").error


@pytest.mark.parametrize("noise", ["uniform", "laplace"])
def test_other_noise_has_no_grid(pyrobust: Any, noise: str) -> None:
    done = pyrobust.ok("certify", *QUICK, "--noise", noise, "--out", "run.db")
    assert "grid" not in done.err
    assert Run("run.db").header.guarantee == "real"


def test_images_without_a_usual_grid(pyrobust: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    digits = load_data("digits")
    np.savez(tmp_path / "odd.npz", x=digits.x[:5].numpy() * np.float32(0.7), y=digits.y[:5].numpy())
    odd = [*QUICK[:3], "npz:odd.npz", *QUICK[4:]]
    pyrobust.ok("certify", *odd, "--out", "run.db")
    assert "no usual grid found in the images: guarantee real" in caplog.text
    assert Run("run.db").header.guarantee == "real"
    assert "data: npz" in pyrobust("certify", *odd, "--grid", "1/16", "--out", "other.db").error


def test_the_table_of_a_verification(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust.ok(
        "verify", *BASE, "--method", "cascade", "--epsilon", "0.02,51/1000", "--attack", "pgd", "--max", 48
    )
    name = "verify-cascade-digits-smooth-0.25-digits-linf-eps0.02-0.051.db"
    assert files(tmp_path) == [name]
    assert done.err == f"run: {name} (export its log: pyrobust log {name})\n"
    run = Run(name)
    assert run.kind == "verify"
    assert run.parameters["epsilons"] == [0.02, 0.051]
    assert run.examples().shape == (48, 1, 8, 8)
    for epsilon in (0.02, 0.051):
        rate = estimate_rate(int((run.verdicts(epsilon)["verdict"] == "verified").sum()), 48)
        share, count, interval = cells(done.out, f"verified at linf epsilon {epsilon:g}")
        assert (share, count) == (f"{100 * rate.value:.1f} %", str(rate.successes))
        low, high = map(float, re.findall(r"[\d.]+", interval))
        assert low / 100 <= rate.lower
        assert rate.upper <= high / 100
    for words in (
        *("ibp, crown-ibp, crown in turn", "clip range [0, 1]", "guarantee deterministic, semantics real"),
        *("PGD in linf and [0, 1], seed 0", "steps 40", "95 % interval", "epsilon 0.02, 0.051"),
        *(BASE[1], run.header.model_sha256[:12], run.header.data_sha256[:12], "48 of 382 images", "the first 48"),
    ):
        assert words in " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 80


def test_radii(pyrobust: Any) -> None:
    radii = [*CROWN, "--radius", "--norm", "l2", "--largest", "1/2", "--out", "run.db"]
    done = pyrobust.ok(*radii)
    assert "certified radii up to 0.5" in " ".join(done.out.split())
    assert cells(done.out, "mean radius (correct only)")[0] != "none"
    run = Run("run.db")
    assert 0 < run.table["radius"].max() <= 0.5
    assert run.parameters["norm"] == "l2"
    assert "semantics: 'real' stored, 'float32' given" in pyrobust(*radii, "--semantics", "float32").error


def test_no_clip_range_and_unsound(pyrobust: Any) -> None:
    done = pyrobust.ok(*CROWN, "--epsilon", "0.02", "--clip", "none", "--unsound", "--out", "run.db")
    assert "no clip range" in done.out
    assert "NOT SOUND" in done.out
    assert Run("run.db").parameters["clip"] is None


def test_a_model_that_cannot_be_bounded_is_refused_in_one_line(pyrobust: Any, tmp_path: Path) -> None:
    (tmp_path / "unbounded_for_cli.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.fft.fft(x.flatten(1)).real[:, :10]\n"
    )
    error = pyrobust(
        "verify", "--model", "unbounded_for_cli:Net", "--data", "digits", "--method", "ibp", "--radius"
    ).error
    assert "cannot be bounded" in error
    assert "unbounded_for_cli.py" in files(tmp_path)
    assert not [name for name in files(tmp_path) if name.endswith(".db")]


def test_certify_shows_its_help_whatever_else_is_typed(pyrobust: Any) -> None:
    shown = pyrobust.ok("certify", "--method", "crown", "--help")
    assert "randomized smoothing" in shown.out


@pytest.mark.parametrize("command", RUNS)
def test_summaries_hold_the_rates_of_the_run(pyrobust, tmp_path, command):
    arguments = (command, *BASE, "--max", 6, *RUNS[command], "--out", "run.db")
    done = pyrobust.ok(*arguments, "--json", "run.json")
    assert "json: run.json" in done.err
    text = (tmp_path / "run.json").read_text()
    summary, run = json.loads(text), Run(tmp_path / "run.db")
    assert (summary["kind"], summary["images"], summary["complete"], summary["path"]) == (command, 6, True, "run.db")
    assert summary["parameters"] == run.parameters
    assert summary["clean_accuracy"] == run.clean_accuracy().to_dict()
    if command == "certify":
        radii = [entry["radius"] for entry in summary["certified_accuracy"]]
        assert [entry["value"] for entry in summary["certified_accuracy"]] == run.certified_accuracy(radii).tolist()
        assert summary["mean_radius_correct_only"] == pytest.approx(run.table["radius"][run.correct].mean())
        assert summary["average_certified_radius"]["value"] <= summary["mean_radius_correct_only"]
    elif command == "attack":
        assert summary["robust_accuracy"] == run.robust_accuracy().to_dict()
        assert sum(summary["broken_by"].values()) == 6 - summary["robust_accuracy"]["successes"]
    elif command == "verify":
        assert [entry["epsilon"] for entry in summary["verified_accuracy"]] == [1 / 255, 0.02]
        for entry in summary["verified_accuracy"]:
            assert sum(entry["verdicts"].values()) == 6
    # again, over the earlier summary: the run is resumed and nothing changes
    pyrobust.ok(*arguments, "--json", "run.json")
    assert (tmp_path / "run.json").read_text() == text
    done = pyrobust(*arguments, "--json", "-")
    assert done.out == text
    assert "clean accuracy" in done.err or "smoothed prediction" in done.err


@pytest.mark.parametrize("name", ["certify-digits-smooth-0.25-digits-sigma0.25-n100.db", "run.db-wal"])
def test_a_new_run_is_not_overwritten_by_its_summary(pyrobust, tmp_path, name):
    arguments = ["certify", *QUICK, "--max", "2"]
    arguments += ["--out", "run.db"] if name.startswith("run") else []
    done = pyrobust(*arguments, "--json", name)
    assert done.status == 2
    assert "error: --json: expected a file" in done.err
    run = name.removesuffix("-wal")
    assert [file.name for file in tmp_path.iterdir()] == [run]
    pyrobust.ok("log", run)

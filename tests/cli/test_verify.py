"""``pyrobust verify`` as a user sees it, and ``pyrobust certify`` with its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from printed import cells, files

from pyrobust.evaluation import Run
from pyrobust.metrics import estimate_rate

MODEL = "zoo:digits-smooth-0.25"
BASE = ["verify", "--model", MODEL, "--data", "digits"]
QUICK = [*BASE, "--method", "crown", "--max", "24"]


def test_the_table_shows_the_results_and_settings_of_the_run(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust(*BASE, "--method", "cascade", "--epsilon", "0.02,51/1000", "--attack", "pgd", "--max", 48)
    assert done.status == 0, done.err
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
        *(MODEL, run.header.model_sha256[:12], run.header.data_sha256[:12], "48 of 382 images", "the first 48"),
    ):
        assert words in " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 80


def test_radii(pyrobust: Any) -> None:
    radii = [*QUICK, "--radius", "--norm", "l2", "--largest", "1/2", "--out", "run.db"]
    done = pyrobust(*radii)
    assert done.status == 0, done.err
    assert "certified radii up to 0.5" in " ".join(done.out.split())
    assert cells(done.out, "mean radius (correct only)")[0] != "none"
    run = Run("run.db")
    assert 0 < run.table["radius"].max() <= 0.5
    assert run.parameters["norm"] == "l2"
    assert "semantics: 'real' stored, 'float32' given" in pyrobust(*radii, "--semantics", "float32").error


def test_no_clip_range_and_unsound(pyrobust: Any) -> None:
    done = pyrobust(*QUICK, "--epsilon", "0.02", "--clip", "none", "--unsound", "--out", "run.db")
    assert done.status == 0, done.err
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


CERTIFY = ["certify", "--model", MODEL, "--data", "digits"]


ADVICE = "; to prove bounds of the network itself, run pyrobust verify without --sigma"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--method", "crown", "--sigma", "1"], "--method: expected fixed or sequential, got crown, which is one of"),
        (["--method=ibp", "--radius"], "--method: expected fixed or sequential, got ibp, which is one of"),
        (["--max", "2", "--epsilon", "0.02"], "--epsilon: expected none, as it is an option of"),
        (["--sigma", "0.5", "--radius"], "--radius: expected none, as it is an option of"),
        (["--sigma", "0.5", "--unsound"], "--unsound: expected none, as it is an option of"),
        (["--norm", "l2", "--nothing", "--sigma", "x"], "--norm: expected none, as it is an option of"),
    ],
)
def test_certify_names_verify_for_its_options(
    pyrobust: Any, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    if "--nothing" in arguments:
        assert "No such option: --nothing" in pyrobust(*CERTIFY, *arguments).err
        arguments.remove("--nothing")
    assert pyrobust(*CERTIFY, *arguments).error == f"error: {problem} verify{ADVICE}"
    assert files(tmp_path) == []


def test_certify_keeps_errors_of_its_own_method(pyrobust: Any) -> None:
    shown = pyrobust(*CERTIFY, "--sigma", "1", "--method", "guess").err
    assert "'guess' is not one of 'fixed', 'sequential'" in " ".join(shown.replace("│", " ").split())


def test_certify_shows_its_help_whatever_else_is_typed(pyrobust: Any) -> None:
    shown = pyrobust("certify", "--method", "crown", "--help")
    assert shown.status == 0
    assert "randomized smoothing" in shown.out

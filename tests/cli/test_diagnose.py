"""``pyrobust diagnose``: verdict, exit status, JSON, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NET = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--max", 12)
MODULE = """
import torch
from pyrobust.zoo import load_model

class Quantized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = load_model("zoo:digits-smooth-0.25")

    def forward(self, x):
        return self.net((8 * x).round() / 8)

class Broken(torch.nn.Module):
    def forward(self, x):
        raise KeyError("no layer")
"""


@pytest.fixture(autouse=True)
def _small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyrobust.attacks.diagnosis import trials

    for name in ("_STEPS", "_MORE_STEPS", "_QUERIES", "_TRANSFER_STEPS"):
        monkeypatch.setattr(trials, name, 5)


@pytest.fixture
def defended(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "defended.py").write_text(MODULE)
    return ("--data", "digits", "--max", "12", "--epsilon", "0.1")


def test_nothing_found(pyrobust: Any) -> None:
    done = pyrobust.ok("diagnose", *NET, "--epsilon", "0.1", "--norm", "linf")
    assert done.out.startswith("verdict: nothing found (linf, epsilon 0.1; 12 of 12 images classified correctly)")
    assert "queries (Square)" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert "\x1b" not in done.out
    assert done.err == ""


def test_too_few_images(pyrobust: Any) -> None:
    done = pyrobust(
        "diagnose", "--model", NET[1], "--data", "digits", "--epsilon", "0.1", "--max", "3", "--json", "d.json"
    )
    assert done.status == 1
    assert done.out.startswith("verdict: undecided (linf, epsilon 0.1; 3 of 3 images classified correctly)")
    assert "too little could be examined" in done.out
    assert "black-box: comparing attacks takes at least 9 examples" in done.out


def test_findings_with_evidence_and_remedy(pyrobust: Any, defended: tuple[str, ...]) -> None:
    done = pyrobust("diagnose", "--model", "defended:Quantized", *defended)
    assert done.status == 1
    assert done.out.startswith("verdict: masked")
    text = " ".join(done.out.split())
    assert "the gradient is exactly zero at 12 of 12 examples" in text
    assert "the forward pass calls round" in text
    assert "BPDA(module)" in text
    assert "Athalye, Carlini and Wagner, 2018" in text


def test_json(pyrobust: Any, tmp_path: Path) -> None:
    arguments = ("diagnose", *NET, "--epsilon", "8/255", "--json")
    (tmp_path / "d.json").write_text("of another program")
    first = pyrobust.ok(*arguments, "d.json", "--replace")
    assert "json: d.json" in first.err
    text = (tmp_path / "d.json").read_text()
    report = json.loads(text)
    assert (report["exit_status"], report["verdict"], report["findings"]) == (0, "nothing found", [])
    assert (report["epsilon"], report["norm"], report["examples"]) == (8 / 255, "linf", 12)
    assert report["model"] == "zoo:digits-smooth-0.25"
    # over the earlier one, and on standard output
    pyrobust.ok(*arguments, "d.json")
    assert (tmp_path / "d.json").read_text() == text
    (tmp_path / "audit.json").write_text('{\n "exit_status": 0,\n "logs": []\n}\n')
    assert "which exists" in pyrobust(*arguments, "audit.json").error
    done = pyrobust(*arguments, "-")
    assert done.out == text
    assert "verdict: nothing found" in done.err


def test_a_model_that_fails(pyrobust: Any, defended: tuple[str, ...], tmp_path: Path) -> None:
    done = pyrobust("diagnose", "--model", "defended:Broken", *defended, "--json", "d.json")
    assert done.error.startswith("error: model: failed: KeyError: 'no layer'")
    assert not (tmp_path / "d.json").exists()

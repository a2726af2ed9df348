"""A user's model on the command line: its weights, code, logits and failures; and own attacks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pyrobust.evaluation import Run

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    fails_at = 10**9
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls >= self.fails_at:
            raise ValueError("out of paper")
        return self.layer(x.flatten(1)) * self.factor
"""
CERTIFY = ("certify", "--model", "usernet:Net", "--data", "digits", "--sigma", "0.25", "--n", "100", "--n0", "10")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Write usernet.py with some of its text replaced."""

    def write(old: str = "", new: str = "") -> None:
        assert old in SOURCE
        (tmp_path / "usernet.py").write_text(SOURCE.replace(old, new) if old else SOURCE)
        sys.modules.pop("usernet", None)

    yield write
    sys.modules.pop("usernet", None)


def test_runs_are_named_after_their_weights(pyrobust: Any, source: Callable[..., None], tmp_path: Path) -> None:
    source()
    for seed, name in enumerate(("first", "second")):
        weight = torch.randn(10, 64, generator=torch.Generator().manual_seed(seed))
        torch.save({"layer.weight": weight, "layer.bias": torch.zeros(10)}, tmp_path / f"{name}.pt")
        done = pyrobust.ok(*CERTIFY, "--max", "3", "--weights", f"{name}.pt")
        assert f"weights {name}.pt" in " ".join(done.out.split())
    files = sorted(tmp_path.glob("*.db"))
    assert [file.name for file in files] == [
        "certify-usernet-Net-first-digits-sigma0.25-n100.db",
        "certify-usernet-Net-second-digits-sigma0.25-n100.db",
    ]
    assert Run(files[0]).header.model == "usernet:Net, weights first.pt"


def test_a_network_without_weights_that_guesses_is_noticed(pyrobust: Any, source: Callable[..., None]) -> None:
    source()
    for command in (CERTIFY, ("attack", *CERTIFY[1:5], "--epsilon", "0.1", "--attack", "fgsm")):
        done = pyrobust.ok(*command, "--max", "20", "--out", f"{command[0]}.db")
        assert "no better than a guess among 10 classes, and no weights were given" in done.err
    assert "guess" not in pyrobust(*CERTIFY, "--max", "5", "--out", "few.db").err
    assert "guess" not in pyrobust("certify", "--model", "zoo:digits-smooth-0.25", *CERTIFY[3:], "--max", "20").err


def test_logits_without_a_class_are_noticed(
    pyrobust: Any, source: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    source("factor = 1.0", "factor = float('nan')")
    pyrobust.ok(*CERTIFY, "--max", "3", "--out", "run.db")
    assert "samples have no predicted class and vote against every certificate" in caplog.text
    assert (Run("run.db").table["status"] == "abstain").all()


def test_a_failing_model_keeps_the_run_and_says_how_to_resume(pyrobust: Any, source: Callable[..., None]) -> None:
    source("fails_at = 10**9", "fails_at = 200")
    command = (*CERTIFY, "--max", "80", "--batch-size", "64", "--out", "run.db")
    failed = pyrobust(*command)
    assert failed.status == 2
    stored = len(Run("run.db"))
    assert 0 < stored < 80
    assert f"{stored} of 80 images are saved in run.db" in failed.err
    assert f"resume with: pyrobust {' '.join(command)}" in failed.err
    assert f"error: model: failed after {stored} of 80 images: ValueError: out of paper" in failed.err
    source()
    refused = pyrobust(*command)
    assert "code of the model: " in refused.err
    assert "--allow-changed-code" in refused.err
    pyrobust.ok(*command, "--allow-changed-code")
    assert Run("run.db").complete


# -- attacks

ATTACK = ["attack", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--max", "12"]
ATTACKS = """
import functools
import torch
from pyrobust import PGD, AdversarialAttack

class Mine(AdversarialAttack):
    def __init__(self, model, epsilon, norm="linf", **options):
        super().__init__(model, epsilon, norm, clip_min=options["clip_min"], clip_max=options["clip_max"])
        self.seed = options["seed"]
    def generate(self, x, y, targeted=False, target_labels=None):
        return x + self.project(torch.ones_like(x), x)

def made(model, epsilon, norm):
    return PGD(model, epsilon, norm, steps=3)

def eps(model, eps):
    assert eps == 0.15
    return functools.partial(step, size=eps)

def step(model, x, y, *, size=0.3):
    leaf = x.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(model(leaf), y)
    return leaf.detach() + size * torch.autograd.grad(loss, leaf)[0].sign()

partial = functools.partial(step, size=0.2)

def smaller(model):
    return PGD(model)

def number(model):
    return 3

def failing(model):
    raise ZeroDivisionError("in your code")

class Passing(Mine):
    def __init__(self, model, epsilon, **options):
        AdversarialAttack.__init__(self, model, epsilon, **options)

class Needy:
    def __init__(self, estimator):
        pass
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    """A module of attacks, of another name for each test, as imports are kept."""
    name = f"attacks_{abs(hash(str(tmp_path))):x}"
    (tmp_path / f"{name}.py").write_text(ATTACKS)
    return name


@pytest.mark.parametrize("name", ["Mine", "made", "eps", "step", "partial"])
def test_own_attacks(pyrobust: Any, module: str, name: str) -> None:
    spec = f"{module}:{name}"
    pyrobust.ok(*ATTACK, "--attack", spec, "--epsilon", "0.15", "--seed", "5", "--out", "run.db")
    run = Run("run.db")
    assert run.parameters["attack"] == {"Mine": "Mine", "made": "PGD"}.get(name, "step")
    assert run.parameters["settings"].get("size") == {"eps": 0.15, "partial": 0.2}.get(name)
    seed = run.parameters["settings"].get("seed") if name == "Mine" else run.parameters["seed"]
    assert seed == (0 if name == "made" else 5)  # made() does not take the seed
    assert len(run) == 12
    if name != "Mine":
        assert float(run.robust_accuracy()) < float(run.clean_accuracy())
    pyrobust.ok(*ATTACK, "--attack", spec, "--epsilon", "0.15", "--seed", "5", "--out", "run.db")


def test_curves_and_names_of_runs(pyrobust: Any, module: str, tmp_path: Path) -> None:
    pyrobust.ok("curve", *ATTACK[1:], "--attack", f"{module}:step", "--epsilons", "0:0.2:3")
    pyrobust.ok(*ATTACK, "--attack", f"{module}:step", "--epsilon", "0.2", "--norm", "l2")
    assert (tmp_path / f"attack-{module}-step-digits-smooth-0.25-digits-l2-eps0.2.db").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("absent", [], "has no 'absent'"),
        ("smaller", [], "expected an attack with epsilon 0.15, as in --epsilon, got 0.0313"),
        ("number", [], "attack: expected an attack of foolbox, torchattacks or ART, or a function (model, x, y), got"),
        ("Needy", [], "got one that needs estimator; name a function that makes the attack"),
        ("Passing", ["--seed", "3"], "got an unexpected keyword argument 'seed'; name the arguments"),
        ("made", ["--grid", "1/16"], "expected an attack with grid Fraction(1, 16), as in --grid, got None; take grid"),
        ("step", ["--steps", "3"], "--steps: expected none with --attack"),
        ("step", ["--restarts", "3"], "--restarts: expected none with --attack"),
        ("step", ["--version", "plus"], "--version: expected none with --attack"),
    ],
)
def test_attacks_that_do_not_fit_are_refused(
    pyrobust: Any, module: str, tmp_path: Path, name: str, arguments: list[str], words: str
) -> None:
    assert words in pyrobust(*ATTACK, "--attack", f"{module}:{name}", "--epsilon", "0.15", *arguments).error
    assert not list(tmp_path.glob("*.db*"))


def test_an_own_attack_on_a_grid(pyrobust: Any, module: str) -> None:
    pyrobust.ok(*ATTACK, "--attack", f"{module}:step", "--epsilon", "3/16", "--grid", "1/16", "--out", "run.db")
    levels = Run("run.db").examples() * 16
    assert bool((levels == levels.round()).all())

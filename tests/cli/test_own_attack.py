"""``pyrobust attack --attack module:callable``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyrobust.evaluation import Run

BASE = ["attack", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--max", "12"]
CODE = """
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
    (tmp_path / f"{name}.py").write_text(CODE)
    return name


@pytest.mark.parametrize("name", ["Mine", "made", "eps", "step", "partial"])
def test_own_attacks(pyrobust: Any, module: str, name: str) -> None:
    spec = f"{module}:{name}"
    done = pyrobust(*BASE, "--attack", spec, "--epsilon", "0.15", "--seed", "5", "--out", "run.db")
    assert done.status == 0, done.err
    run = Run("run.db")
    assert run.parameters["attack"] == {"Mine": "Mine", "made": "PGD"}.get(name, "step")
    assert run.parameters["settings"].get("size") == {"eps": 0.15, "partial": 0.2}.get(name)
    seed = run.parameters["settings"].get("seed") if name == "Mine" else run.parameters["seed"]
    assert seed == (0 if name == "made" else 5)  # made() does not take the seed
    assert len(run) == 12
    if name != "Mine":
        assert float(run.robust_accuracy()) < float(run.clean_accuracy())
    again = pyrobust(*BASE, "--attack", spec, "--epsilon", "0.15", "--seed", "5", "--out", "run.db")
    assert again.status == 0, again.err


def test_curves_and_names_of_runs(pyrobust: Any, module: str, tmp_path: Path) -> None:
    done = pyrobust("curve", *BASE[1:], "--attack", f"{module}:step", "--epsilons", "0:0.2:3")
    assert done.status == 0, done.err
    done = pyrobust(*BASE, "--attack", f"{module}:step", "--epsilon", "0.2", "--norm", "l2")
    assert done.status == 0, done.err
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
def test_bad_input(pyrobust: Any, module: str, tmp_path: Path, name: str, arguments: list[str], words: str) -> None:
    assert words in pyrobust(*BASE, "--attack", f"{module}:{name}", "--epsilon", "0.15", *arguments).error
    assert not list(tmp_path.glob("*.db*"))


def test_grid(pyrobust: Any, module: str) -> None:
    done = pyrobust(*BASE, "--attack", f"{module}:step", "--epsilon", "3/16", "--grid", "1/16", "--out", "run.db")
    assert done.status == 0, done.err
    levels = Run("run.db").examples() * 16
    assert bool((levels == levels.round()).all())

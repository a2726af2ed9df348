"""Declared settings: the constructor, its errors, late assignment, and what belongs to the identity of a run."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from typing import Any, get_args, get_type_hints

import pytest
import torch
from support.attack_models import NORMS, images, small_net
from torch import nn

from pyrobust.attacks import APGD, BIM, EAD, FGSM, PGD, AutoAttack, CarliniWagner, DeepFool, Square, TransferAttack
from pyrobust.attacks.catalogue import CATALOGUE
from pyrobust.attacks.engine.base import AdversarialAttack
from pyrobust.attacks.engine.batches import BatchAttack
from pyrobust.attacks.engine.settings import Setting, option_settings, setting, settings_of, stored_settings
from pyrobust.attacks.engine.state import AttackState
from pyrobust.checks import count, positive
from pyrobust.errors import InputError
from pyrobust.evaluation.attack import attack_settings

NET = small_net()
POSITIONAL = ["model", "epsilon", "norm", "clip_min", "clip_max", "device"]
BATCHES = ["clip", "grid", "seed", "batch_size", "dtype", "memory_format", "progress", "callback"]
ATTACKS = sorted({entry.attack for entry in CATALOGUE.values()} | {TransferAttack}, key=lambda attack: attack.__name__)


class Walk(BatchAttack):
    """Steps in one direction.

    Args:
        model, epsilon: as in ``BatchAttack``.

    Raises:
        InputError: a value out of range.
    """

    length: float = setting(positive, "length of a step")
    steps: int = setting(count, "number of steps", default=3, option="steps")

    def _run(self, state: AttackState) -> None:
        state.finish(state.place(torch.full_like(state.x, self.length * self.steps)))


def made(attack: type[Any], **options: Any) -> Any:
    if issubclass(attack, TransferAttack):
        options.setdefault("surrogate", NET)
    return attack(NET, 0.1, attack.norms[0], **options)


def test_a_declaration_is_signature_docstring_and_check() -> None:
    parameters = inspect.signature(Walk).parameters
    assert list(parameters) == [*POSITIONAL, "length", "steps", *BATCHES]
    assert parameters["length"].default is inspect.Parameter.empty
    assert [parameters[name].kind.name for name in ("device", "length")] == ["POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY"]
    assert Walk.__init__.__annotations__["steps"] is int
    doc = inspect.getdoc(Walk) or ""
    assert "    length: length of a step.\n    steps: number of steps.\n\nRaises:" in doc
    with pytest.raises(TypeError, match=r"^Walk\.__init__\(\) missing 1 required keyword-only argument: 'length'$"):
        Walk(NET)  # type: ignore[call-arg]  # an argument is missing
    with pytest.raises(TypeError, match=r"^Walk\.__init__\(\) got an unexpected keyword argument 'width'"):
        Walk(NET, length=0.1, width=1)  # type: ignore[call-arg]  # an argument too many
    with pytest.raises(InputError, match=r"^steps: expected at least 1, got 0"):
        Walk(NET, length=0.1, steps=0)
    attack = Walk(NET, 0.5, length=0.1)
    x = torch.full((2, 1, 6, 6), 0.25)
    assert torch.equal(attack(x.double(), torch.tensor([0, 0])), attack(x.double(), torch.tensor([0, 0])))
    assert attack_settings(attack) == (0, {"length": 0.1, "steps": 3})
    assert option_settings(Walk) == {"steps": "steps"}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_signatures_have_the_arguments_of_every_attack(attack: type[AdversarialAttack]) -> None:
    parameters = inspect.signature(attack).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == POSITIONAL
    assert set(BATCHES) <= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert all(p.kind is not p.VAR_KEYWORD for p in parameters)  # so that editors complete them
    hints = get_type_hints(attack.__init__, vars(sys.modules[attack.__module__]))
    assert set(get_args(get_args(hints["norm"])[0])) == set(NORMS)  # beside other spellings
    with pytest.raises(TypeError, match="step_sizes"):
        attack(NET, step_sizes=0.1)
    doc = inspect.getdoc(attack) or ""
    for name, declared in settings_of(attack).items():
        if declared.init and declared.stored and attack is not AutoAttack:
            assert f"{name}: " in doc, f"{name} is not documented"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_the_identity_is_what_is_declared(attack: type[AdversarialAttack]) -> None:
    """The class of an attack, and each subclass, declares all state besides the settings."""
    settings = settings_of(attack)
    declared = {name for name, declaration in settings.items() if declaration.stored}
    assert stored_settings(made(attack, seed=3)).keys() == declared
    user_attack = made(type("Mine", (attack,), {"__module__": "mine"}))
    user_attack.beta_of_mine = 2
    assert stored_settings(user_attack).keys() == declared | {"beta_of_mine"}


def test_late_assignment() -> None:
    """Settings that depend on each other, conversion, a surrogate, and copies."""
    attack = PGD(NET, restarts=3)
    with pytest.raises(InputError, match=r"^restarts: expected 1 with random_start=False"):
        attack.random_start = False
    assert attack.random_start
    attack.restarts = 1
    attack.random_start = False
    with pytest.raises(InputError, match=r'^multi_epsilon: expected norm="l1", got'):
        APGD(NET).multi_epsilon = True
    attack.momentum = 1  # type: ignore[assignment]  # converted to a float
    for twin in (copy.copy(attack), pickle.loads(pickle.dumps(PGD(nn.Linear(3, 2), momentum=1.0)))):
        assert repr(twin.momentum) == "1.0"
        with pytest.raises(InputError, match=r"^steps: expected at least 1, got 0"):
            twin.steps = 0
        assert twin.steps == 40
    other = nn.Sequential(nn.Flatten(), nn.Linear(36, 5)).double()
    x, y = images(4)
    transfer = TransferAttack(NET, 0.1, surrogate=NET, steps=2)
    transfer.surrogate = other
    assert torch.equal(transfer(x, y), TransferAttack(NET, 0.1, surrogate=other, steps=2)(x, y))


def test_fixed_and_redeclared_settings() -> None:
    assert not hasattr(Setting, "__get__"), "a step reads its settings often: no Python code may run for it"
    assert "restarts" not in inspect.signature(BIM).parameters
    assert stored_settings(BIM(NET))["restarts"] == 1
    defaults = [inspect.signature(attack).parameters["norm"].default for attack in (CarliniWagner, EAD, FGSM, DeepFool)]
    assert defaults == ["l2", "l1", "linf", "l2"]
    for name, option in (("square", "n_queries"), ("pgd", "steps"), ("fgsm", None), ("autoattack", None)):
        assert CATALOGUE[name].steps == option
    assert [CATALOGUE[name].restarts for name in ("bim", "pgd")] == [None, "restarts"]


def test_a_users_constructor_passes_on_what_it_likes() -> None:
    class Mine(PGD):
        def __init__(self, model: Any, epsilon: float = 0.1, shift: float = 0.5, **options: Any) -> None:
            super().__init__(model, epsilon, steps=7, **options)
            self.shift = shift

        def _run(self, state: AttackState) -> None:
            super()._run(state)

    attack = Mine(NET, loss="margin")
    assert (attack.steps, attack.loss, attack.shift) == (7, "margin", 0.5)
    assert attack_settings(attack)[1]["shift"] == 0.5
    with pytest.raises(TypeError, match=r"^PGD\.__init__\(\) got an unexpected keyword argument 'step'"):
        Mine(NET, step=3)


def test_warnings_of_an_attack_are_no_part_of_its_identity() -> None:
    class Mine(APGD):
        pass

    attack = Mine(NET, loss="dlr")
    before = attack_settings(attack)
    attack._flag_zero_gradient(1)
    assert attack_settings(attack) == before
    square = attack_settings(Square(NET))[1]
    assert square.keys() == {"n_queries", "p_init", "restarts", "loss", "rescale_schedule"}

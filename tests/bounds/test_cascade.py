"""Verification in stages: each example is settled once, by the first stage that can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyrobust.attacks import PGD
from pyrobust.bounds import BoundedModel, BoundOptions, Verdicts
from pyrobust.bounds.graph import capture
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics.distance import is_within
from pyrobust.zoo import load_data, load_model

METHODS = ("ibp", "crown-ibp", "crown")


def identity(scale: float = 1.0) -> nn.Module:
    """Return a model whose two logits are its inputs: the margin over a linf ball of radius ε is x₀ − x₁ − 2ε."""
    model = nn.Linear(2, 2)
    model.load_state_dict({"weight": torch.eye(2) * scale, "bias": torch.zeros(2)})
    return model.eval()


@pytest.fixture(scope="module")
def identical() -> BoundedModel:
    return BoundedModel(identity(), torch.zeros(1, 2))


@pytest.fixture(scope="module")
def digits() -> tuple[BoundedModel, Tensor, Tensor]:
    data = load_data("digits")
    return BoundedModel(load_model("zoo:digits-smooth-0.25").eval(), data.x[:1]), data.x[:120], data.y[:120]


def test_a_linear_model_by_hand() -> None:
    x = torch.tensor([[0.75, 0.25], [0.5, 0.375], [0.25, 0.5]])
    verdicts = BoundedModel(identity(), x).verify(x, torch.tensor([0, 0, 0]), 0.125)
    assert verdicts.status == ["verified", "unknown", "falsified"]
    assert verdicts.stage == ["ibp", "", "forward"]
    assert verdicts.margin[:2].tolist() == pytest.approx([0.25, -0.125], abs=1e-5)
    assert verdicts.margin[0] <= 0.25
    assert verdicts.margin[2].isnan()
    assert torch.equal(verdicts.counterexample, x)
    assert verdicts.verified.tolist() == [True, False, False]
    assert verdicts.falsified.tolist() == [False, False, True]
    assert verdicts.to_dict()["status"] == verdicts.status


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_each_example_is_settled_by_the_first_method_that_can(
    digits: tuple[BoundedModel, Tensor, Tensor], norm: str
) -> None:
    bounded, x, y = digits
    epsilon = {"linf": 0.015, "l2": 0.02, "l1": 0.02}[norm]
    options: dict[str, Any] = {"norm": norm, "clip": (0.0, 1.0)}
    alone = {method: bounded.margins(x, y, epsilon, method=method, **options) for method in METHODS}
    verdicts = bounded.verify(x, y, epsilon, **options)
    right = bounded.model(x).argmax(1) == y
    for i in range(len(x)):
        proofs = [method for method in METHODS if alone[method].positive()[i]]
        if not right[i]:
            assert (verdicts.status[i], verdicts.stage[i]) == ("falsified", "forward")
            continue
        assert (verdicts.status[i], verdicts.stage[i]) == (("verified", proofs[0]) if proofs else ("unknown", ""))
        assert verdicts.margin[i] == alone[proofs[0] if proofs else "crown"].lower[i].min()
    assert len(set(verdicts.stage) - {"", "forward"}) >= 2, "expected an epsilon at which the methods differ"


def test_every_stage_gets_the_undecided_examples_alone(
    digits: tuple[BoundedModel, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded, x, y = digits
    radius = torch.linspace(0.004, 0.08, len(x), dtype=torch.float64)
    seen: list[tuple[str, Tensor, Tensor]] = []
    prove = BoundedModel._prove

    def watched(self: BoundedModel, x: Tensor, y: Tensor, epsilon: Any, options: BoundOptions, progress: Any) -> Any:
        if len(x):
            seen.append((str(options.method), x, epsilon))
        return prove(self, x, y, epsilon, options, progress)

    monkeypatch.setattr(BoundedModel, "_prove", watched)
    attacked: list[Tensor] = []

    def attack(x: Tensor, y: Tensor) -> Tensor:
        attacked.append(x)
        return x

    verdicts = bounded.verify(x, y, radius, methods=("ibp", "crown"), attack=attack)
    settled = torch.tensor([stage == "forward" for stage in verdicts.stage])
    assert [method for method, _, _ in seen] == ["ibp", "crown"]
    for method, got, epsilon in seen:
        assert torch.equal(got, x[~settled])
        assert torch.equal(epsilon.flatten(), radius[~settled])
        settled |= torch.tensor([stage == method for stage in verdicts.stage])
    assert torch.equal(attacked[0], x[~settled])
    assert 0 < len(attacked[0]) < len(seen[1][1]) < len(seen[0][1])
    assert "attack" not in verdicts.stage, "x itself is no counterexample"


def test_counterexamples_are_in_the_set_and_fool_the_model(digits: tuple[BoundedModel, Tensor, Tensor]) -> None:
    bounded, x, y = digits
    for norm, epsilon in (("linf", 0.1), ("l2", 0.6)):
        attack = PGD(bounded.model, epsilon, norm, steps=20)
        verdicts = bounded.verify(
            x, y, epsilon, norm=norm, clip=(0.0, 1.0), methods=("crown-ibp",), attack=attack.generate
        )
        attacked = torch.tensor([stage == "attack" for stage in verdicts.stage])
        assert 5 < int(attacked.sum()) < len(x)
        x_adv = verdicts.counterexample
        assert bool(is_within(x_adv, x, norm, torch.full((len(x),), epsilon, dtype=torch.float64)).all())
        assert bool(((x_adv >= 0) & (x_adv <= 1)).all())
        for i in range(len(x)):
            fooled = bool(bounded.model(x_adv[i : i + 1]).argmax(1) != y[i])
            assert fooled == (verdicts.status[i] == "falsified")
            assert attacked[i] or torch.equal(x_adv[i], x[i])


class BatchDependent(nn.Module):
    """A model that predicts class 0 for batches of four and more, and the larger input for smaller ones."""

    def forward(self, x: Tensor) -> Tensor:
        return x if len(x) < 4 else x * 0


def test_close_logits_of_the_forward_pass_are_judged_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "_MANY", 1)  # which would refuse the model
    x = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.9, 0.1], [0.9, 0.1]])
    bounded = BoundedModel(BatchDependent().eval(), x[:2])  # at a size at which it is what was captured
    verdicts = bounded.verify(x, torch.tensor([1, 0, 1, 0]), 0.1)
    # In the batch of four all logits tie, so 0 would be right for the second example; alone it is wrong.
    assert verdicts.status == ["verified", "falsified", "falsified", "verified"]
    assert verdicts.stage[1:3] == ["forward", "forward"]


def test_an_empty_batch_and_one_class(identical: BoundedModel) -> None:
    verdicts = identical.verify(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 0.1, attack=lambda x, y: x)
    assert isinstance(verdicts, Verdicts)
    assert (verdicts.status, verdicts.stage) == ([], [])
    assert verdicts.counterexample.shape == (0, 2)
    assert verdicts.verified.shape == (0,)
    x = torch.zeros(2, 2)
    assert BoundedModel(nn.Linear(2, 1).eval(), x).verify(x, [0, 0], 0.1).status == ["verified"] * 2


def test_an_overflow_proves_nothing() -> None:
    x = torch.tensor([[8.0, 1.0]])
    verdicts = BoundedModel(identity(1e38), x).verify(x, torch.tensor([0]), 0.1)
    assert verdicts.status == ["falsified"], "the deployed model overflows and predicts no class"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"methods": 3}, InputError, "methods: expected names among"),
        ({"methods": ()}, InputError, "methods: expected names among"),
        ({"methods": ("ibp", "ibp")}, InputError, "methods: expected names among .*, each at most once"),
        (
            {"methods": ("crown", "magic")},
            InputError,
            r"methods: expected names among ibp, .*, each at most once, such as .*, got \('crown', 'magic'\)",
        ),
        ({"clip": (0.0, 0.5)}, InputError, "x: expected values in the clip range"),
        ({"attack": 3}, InputTypeError, "attack: expected a function"),
        ({"attack": lambda x, y: None}, InputTypeError, "attack: expected it to return a float tensor, got NoneType"),
        ({"attack": lambda x, y: x[:, :1]}, InputError, "attack: expected it to return shape"),
        (
            {"attack": lambda x, y: x + 0.251},
            InputError,
            r"attack: expected it to return points within epsilon, linf 0.25, got one at 0.25\d+ for example 0 of 1",
        ),
        ({"attack": lambda x, y: x + torch.tensor([[-0.25, 0.25]]), "clip": (0.5, 0.75)}, InputError, "clip range"),
        ({"attack": lambda x, y: x * torch.nan}, InputError, r"to return finite values, got nan at \[0, 0\]"),
        ({"methods": [["ibp"]]}, InputError, "methods: expected names among"),
    ],
)
def test_bad_input(identical: BoundedModel, changes: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"x": torch.tensor([[0.75, 0.625]]), "y": torch.tensor([0]), "epsilon": 0.25}
    with pytest.raises(error, match=words):
        identical.verify(**(arguments | changes))

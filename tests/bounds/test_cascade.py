"""Verification in stages, each example settled by the first that can; certified radii within their resolution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust.attacks import PGD
from pyrobust.bounds import BoundedModel, BoundOptions, Verdicts
from pyrobust.bounds.graph import capture
from pyrobust.bounds.radius_search import LARGEST_RADIUS, RESOLUTION, search_radius
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
    return BoundedModel(load_model("zoo:digits-smooth-0.25").eval(), data.x[:1]), data.x[:80], data.y[:80]


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

    verdicts = bounded.verify(x, y, radius, methods=("IBP", "Crown"), attack=attack)
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
        (
            {"methods": ("crown", "magic")},
            InputError,
            r"methods: expected names among ibp, .*, each at most once, such as .*, got \('crown', 'magic'\)",
        ),
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
    ],
)
def test_bad_input(identical: BoundedModel, changes: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"x": torch.tensor([[0.75, 0.625]]), "y": torch.tensor([0]), "epsilon": 0.25}
    with pytest.raises(error, match=words):
        identical.verify(**(arguments | changes))


class Counted:
    """An engine wrapper that counts bounded examples."""

    def __init__(self, engine) -> None:
        self.engine, self.examples = engine, 0

    def run(self, inputs, *args, **options):
        self.examples += len(inputs)
        return self.engine.run(inputs, *args, **options)


@pytest.mark.parametrize(
    ("norm", "method", "largest"),
    [
        ("linf", "ibp", 0.25),
        ("linf", "crown-ibp", 0.5),
        ("linf", "crown", 0.25),
        ("l2", "crown-ibp", 2.0),
        ("l1", "ibp", 4.0),
    ],
)
def test_radii(norm: str, method: str, largest: float) -> None:
    data, net = load_data("digits"), load_model("zoo:digits-smooth-0.25").eval()
    x, y = data.x[:40], data.y[:40].clone()
    y[:3] = (net(x[:3]).argmax(1) + 1) % 10  # misclassified
    model = BoundedModel(net, x)
    model._engine = counted = Counted(model._engine)
    options = {"norm": norm, "method": method, "clip": (0.0, 1.0)}
    radius = model.certified_radius(x, y, largest=largest, **options)
    assert radius.dtype == torch.float64
    assert ((radius >= 0) & (radius <= largest)).all()
    assert (radius[:3] == 0).all()
    assert (radius > 0).sum() >= len(x) // 2
    assert counted.examples <= 12 * len(x)
    proved = radius > 0
    assert model.margins(x[proved], y[proved], radius[proved], **options).positive().all()
    open_ = radius < largest
    above = (radius + RESOLUTION * largest).clamp(max=largest)
    assert open_.any()
    # Bounds are not monotone: a slightly larger radius may be proved again for a few examples.
    again = model.margins(x[open_], y[open_], above[open_], **options).positive()
    assert again.double().mean() <= 0.05


@pytest.mark.parametrize(
    "curve",
    [
        lambda root, e: root - e,
        lambda root, e: (root - e) * 1e-9,
        lambda root, e: root**3 - e**3,
        lambda root, e: torch.expm1(40 * (root - e)),
        lambda root, e: torch.where(e < root, 1.0, -torch.inf),
        lambda root, e: torch.where(e < root, root - e, torch.nan),
        lambda root, e: torch.where(e < root, 1.0, 0.0),
    ],
)
def test_the_search_ends_within_its_resolution(curve) -> None:
    rng = np.random.default_rng(0)
    root = torch.from_numpy(
        np.concatenate([[0.0, -1.0, 1.0, 5.0, 2e-7, 0.999], rng.random(200), 2.0 ** -rng.uniform(1, 25, 200)])
    )
    calls = [0]

    def margin(chosen: Tensor, epsilon: Tensor) -> Tensor:
        calls[0] += len(chosen)
        return curve(root[chosen], epsilon)

    radii = search_radius(margin, *[torch.ones(len(root), dtype=torch.float64)] * 2)
    inside = (root > 0) & (root < 1)
    assert (radii[root <= 0] == 0).all()
    assert (radii[root > 1] == 1).all()
    assert (radii[inside] < root[inside]).all()
    assert (root[inside] - radii[inside] <= RESOLUTION).all()
    assert calls[0] <= 40 * len(root)
    for largest in ([0.0] * 3, [], [0.3] * 3):
        ends = torch.tensor(largest, dtype=torch.float64)
        assert search_radius(lambda chosen, e: torch.ones(len(chosen)), ends, ends).tolist() == largest
    calls[0], root = 0, torch.full((3,), torch.inf, dtype=torch.float64)
    interrupted = search_radius(margin, root, torch.ones(3, dtype=torch.float64), lambda: False)
    assert interrupted.isfinite().all()
    assert calls[0] == 6  # at 0 and at the first radius


def test_nothing_is_inferred_between_radii() -> None:
    """Search a margin that is positive on separate intervals: every returned radius was evaluated as positive."""
    seen: list[tuple[int, float]] = []

    def margin(chosen: Tensor, epsilon: Tensor) -> Tensor:
        value = torch.sin(40 * epsilon + 1)
        seen.extend((int(i), float(e)) for i, e, v in zip(chosen, epsilon, value, strict=True) if v > 0)
        return value

    radii = search_radius(margin, *[torch.ones(5, dtype=torch.float64)] * 2)
    assert all((i, float(radius)) in seen for i, radius in enumerate(radii))


@pytest.mark.parametrize(("norm", "rate"), [("linf", 2.0), ("l2", 2**0.5), ("l1", 1.0)])
def test_the_default_has_no_limit_but_the_clip_range(norm: str, rate: float) -> None:
    """Bound z₁ + z₂ + 100 > 0: the radius is 100 / rate, unless no input in the clip range is that far away."""
    net = nn.Linear(2, 2, bias=True).double().eval()
    net.load_state_dict({"weight": torch.tensor([[1.0, 1.0], [0.0, 0.0]]), "bias": torch.tensor([100.0, 0.0])})
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    model = BoundedModel(net, x)
    for clip in (None, (-200.0, 200.0), (-51.0, 51.0), (-49.0, 49.0)):
        radius = float(model.certified_radius(x, y, norm=norm, clip=clip, method="crown"))
        exact = 100 / rate if clip is None or clip[1] > 50 else np.inf  # the corner at -50, -50 has the margin 0
        assert exact * (1 - 2 * RESOLUTION) <= radius <= exact
        lipschitz = float(model.certified_radius(x, y, norm=norm, clip=clip, method="lipschitz"))
        assert lipschitz == np.inf if exact == np.inf else lipschitz == pytest.approx(100 / rate, rel=1e-6)
    assert float(model.certified_radius(x, y, norm=norm, largest=3)) == 3.0


def test_a_margin_that_stays_positive_reaches_the_largest_radius_in_few_steps() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        net[2].bias.copy_(torch.tensor([50.0, 0.0]))
    model = BoundedModel(net, torch.zeros(1, 2))
    model._engine = counted = Counted(model._engine)
    assert float(model.certified_radius(torch.zeros(1, 2), torch.zeros(1).long())) == LARGEST_RADIUS
    assert counted.examples < 25


def test_the_default_limit_is_where_all_elements_have_reached_their_farthest_value() -> None:
    """The margin of class 0 is 1.6 - x₀ - x₁, at least 0.02 on [0, 0.79]² and negative at its corner in [0, 1]²."""
    model = nn.Linear(2, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        model.bias.copy_(torch.tensor([1.6, 0.0]))
    x = torch.full((2, 2), 0.5)
    bounded, labels = BoundedModel(model, x), torch.tensor([0, 1])
    for box, radius in [((1.0, 1.0), 0.3), ((0.1, 0.2), 2.0), ((0.0, 0.5), 1.2)]:
        radii = torch.tensor(box, dtype=torch.float64)
        certified = bounded.certified_radius(x, labels, clip=(0, 1), box=radii)
        expected = math.inf if box[0] == 0 else radius  # one element alone stays in the class
        assert float(certified[0]) == pytest.approx(expected, rel=1e-5)
        assert certified[1] == 0
        assert bounded.certified_radius(x, labels, clip=(0, 0.79), box=radii).tolist() == [math.inf, 0]
    # a range that is a point proves nothing of a wrong prediction
    point = torch.full((2,), 0.5)
    assert bounded.certified_radius(x, labels, clip=(point, point))[1] == 0

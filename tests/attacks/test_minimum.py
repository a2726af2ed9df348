"""Minimum-norm attacks against exact distances: closed forms of linear models, enumeration of piecewise-linear ones."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.attack_models import fooled_alone, inside
from support.piecewise_linear import distance_to_other_class, linear_distance, random_net, regions
from torch import Tensor, nn

from pyrobust.attacks import (
    DDN,
    EAD,
    FAB,
    FMN,
    PGD,
    CarliniWagner,
    DeepFool,
    MinimumNormAttack,
    MinimumNormEnsemble,
    SigmaZero,
    SuperDeepFool,
    minimum_norm,
)
from pyrobust.attacks.minimum import ensemble
from pyrobust.attacks.minimum.carlini_wagner import _Adam
from pyrobust.attacks.minimum.nearest import Nearest
from pyrobust.attacks.minimum.sampling import Sampling

SAMPLED = ensemble._SAMPLED
#: Every attack: its class, a norm it knows, and options that make it quick.
QUICK: list[tuple[type[MinimumNormAttack], str, dict[str, Any]]] = [
    *((FMN, norm, {"steps": 25}) for norm in ("linf", "l2", "l1", "l0")),
    *((FAB, norm, {"steps": 8}) for norm in ("linf", "l2", "l1")),
    *((DeepFool, norm, {}) for norm in ("linf", "l2")),
    (SuperDeepFool, "l2", {}),
    (DDN, "l2", {"steps": 25}),
    (CarliniWagner, "l2", {"steps": 15, "searches": 3, "constant": 1.0, "learning_rate": 0.1}),
    (EAD, "l1", {"steps": 15, "searches": 3, "constant": 1.0, "learning_rate": 0.1}),
    (SigmaZero, "l0", {"steps": 40}),
]
EACH = pytest.mark.parametrize(
    ("attack", "norm", "options"), QUICK, ids=[f"{attack.__name__}-{norm}" for attack, norm, _ in QUICK]
)


@pytest.fixture
def net() -> nn.Module:
    """A convolutional net of three classes."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)).eval().requires_grad_(False)
    net[3].bias.sub_(net(torch.rand(200, 3, 4, 4)).mean(0))
    return net


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ensembles sample a tenth of their points: other attacks have to come near."""
    monkeypatch.setitem(ensemble.ATTACKS, "sampling", functools.partial(Sampling, points=200))


NORMS = pytest.mark.parametrize("norm", ["linf", "l2", "l1", "l0"])


def linear(classes: int, inputs: int, seed: int) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(inputs, classes).requires_grad_(False)
    model.weight.copy_(torch.randn(classes, inputs, generator=generator))
    model.bias.copy_(torch.randn(classes, generator=generator) * 0.2)
    return model


def images(count: int, inputs: int, seed: int) -> Tensor:
    return torch.rand(count, inputs, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("attack", "norm"), [(FMN, "linf"), (FMN, "l2"), (FMN, "l1"), (DDN, "l2")])
def test_a_search_comes_near_before_its_points_are_tightened(
    attack: type[MinimumNormAttack], norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Nearest, "tighten", lambda nearest, state: None)
    model, x = linear(2, 6, 1), images(4, 6, 2)
    y = model(x).argmax(1)
    result = attack(model, norm=norm, steps=200).minimum(x, y)
    exact = torch.tensor([linear_distance(model, x[i], int(y[i]), norm) for i in range(4)])
    assert bool((result.distance >= exact * (1 - 1e-4)).all())
    assert bool((result.distance <= exact * 1.01).all())


def test_sampling_covers_the_whole_ball() -> None:
    def corner(x: Tensor) -> Tensor:
        return torch.stack([torch.full_like(x[:, 0], 0.5), (x > 0.9).all(1).float()], 1)

    result = Sampling(corner, points=500).minimum(torch.full((1, 2), 0.05), torch.tensor([0]))
    assert result.distance.item() == pytest.approx(0.85, abs=0.01)


@NORMS
def test_minimum_norm_is_within_one_percent_on_linear_models(norm: str) -> None:
    model, x = linear(3, 16, 0), images(20, 16, 0)
    y = model(x).argmax(1)
    exact = torch.tensor([linear_distance(model, *pair, norm) for pair in zip(x, y.tolist(), strict=True)])
    result = minimum_norm(model, x, y, norm)
    ratio = result.distance[exact.isfinite()] / exact[exact.isfinite()]
    assert not result.success[exact.isinf()].any()
    assert float(ratio.min()) >= 1 - 1e-4  # float32 logits decide, not exact ones
    assert float(ratio.max()) <= (1.0 if norm == "l0" else 1.01)


@EACH
def test_distances_points_and_targets_on_a_linear_model(
    attack: type[MinimumNormAttack], norm: str, options: dict[str, Any]
) -> None:
    model, x = linear(4, 12, 7), images(10, 12, 7)
    y = model(x).argmax(1)
    exact = torch.tensor([linear_distance(model, *pair, norm) for pair in zip(x, y.tolist(), strict=True)])
    result = attack(model, norm=norm, **options).minimum(x, y)
    assert result.success[exact.isfinite()].all()
    ratio = result.distance / exact
    assert float(ratio.median()) <= 1.02
    assert float(ratio.max()) <= (3.0 if norm == "l0" else 1.5)
    median = float(result.distance.median())
    epsilon = 1.01 * median  # points within it may have a margin for the rounding of other batches
    x_adv = attack(model, epsilon, norm, **options).generate(x, y)
    assert inside(x_adv, x, norm, epsilon)
    assert torch.tensor(fooled_alone(model, x_adv, y))[result.distance <= median].all()
    target = (y + 1) % 4
    result = attack(model, norm=norm, **options).minimum(x, y, targeted=True, target_labels=target)
    assert result.success.double().mean() >= 0.6
    for row in result.success.nonzero()[:, 0].tolist():  # alone, since rounding depends on the batch
        assert int(model(result.x_adv[row : row + 1]).argmax()) == int(target[row])
    triples = zip(x, y.tolist(), target.tolist(), strict=True)
    nearer = torch.tensor([linear_distance(model, z, c, norm, [goal]) for z, c, goal in triples])
    assert (result.distance >= nearer * (1 - 1e-4)).all()  # the target's logit is above y's, and above the others'
    assert float((result.distance / nearer).median()) <= 1.1
    already = attack(model, norm=norm, **options).minimum(x, y, targeted=True, target_labels=y)
    assert already.distance.tolist() == [0.0] * 10


@pytest.mark.usefixtures("sparse")
@pytest.mark.parametrize("classes", [(3,), pytest.param((3, 2, 5, 8), marks=pytest.mark.full)], ids=["few", "more"])
@NORMS
def test_minimum_norm_against_enumerated_regions(norm: str, classes: tuple[int, ...]) -> None:
    """Two inputs: the regions of the net are polygons, and the distance to each class's part of them is exact."""
    ratios = []
    for seed, outputs in enumerate(classes):
        net = random_net(seed, hidden=(12, 16, 20)[seed % 3], classes=outputs)
        pieces = regions(net)
        x = images(15, 2, seed)
        y = net(x).argmax(1)
        exact = [distance_to_other_class(pieces, p.double().numpy(), int(c), norm) for p, c in zip(x, y, strict=True)]
        result = minimum_norm(net, x, y, norm)
        ratios += [float(d) / e for d, e in zip(result.distance, exact, strict=True) if math.isfinite(e)]
    assert min(ratios) >= 1 - 1e-4
    assert sum(ratio <= 1.02 for ratio in ratios) >= 0.99 * len(ratios)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize(("norm", "exact"), [("linf", 0.45), ("l2", math.hypot(0.45, 0.2)), ("l1", 0.65)])
def test_a_box_without_gradients_is_found_by_sampling(norm: str, exact: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class 1 is the box [0.1, 0.3]²; up to eight coordinates, the ensemble samples by default."""
    monkeypatch.setattr(ensemble, "_SAMPLED", SAMPLED)  # few steps are none of samples

    def box(x: Tensor) -> Tensor:
        inside = ((x[:, :2] - 0.2).abs() < 0.1).all(1)
        return torch.stack([0 * x[:, 0] + 0.5, inside + 0 * x[:, 0]], 1)

    x, y = torch.tensor([[0.75, 0.5]]), torch.tensor([0])
    attack = MinimumNormEnsemble(box, norm=norm)
    if norm != "linf":
        attack.attacks["sampling"].points = 500
    result = attack.minimum(x, y)
    assert result.found_by == ("sampling",)
    assert exact <= float(result.distance) <= 1.02 * exact
    if norm == "linf":  # in ten coordinates it samples where that is asked for
        assert minimum_norm(box, x.repeat(1, 5), y, norm).forwards < result.forwards - 1000
        named = MinimumNormEnsemble(box, norm=norm, attacks=["sampling"])
        named.attacks["sampling"].points = 20
        assert named.minimum(x.repeat(1, 5), y).forwards > 20


@EACH
def test_the_result_is_what_it_says(
    attack: type[MinimumNormAttack], norm: str, options: dict[str, Any], net: nn.Module
) -> None:
    x = torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    y = net(x).argmax(1)
    y[0] = (y[0] + 1) % 3
    result = attack(net, norm=norm, **options).minimum(x, y)
    assert result.x_adv.shape == x.shape
    assert result.x_adv.dtype == x.dtype
    assert result.distance.dtype == torch.float64
    assert result.norm == norm
    assert result.found_by[0] == "clean"
    assert float(result.distance[0]) == 0
    for row in range(8):
        wrong = int(net(result.x_adv[row : row + 1]).argmax()) != int(y[row])
        assert wrong == bool(result.success[row]) == math.isfinite(result.distance[row])
        assert (result.found_by[row] is not None) == wrong
        assert wrong or torch.equal(result.x_adv[row], x[row])
    success = result.success
    assert inside(result.x_adv[success], x[success], norm, result.distance[success].tolist())
    assert result.forwards > 0
    assert result.backwards > 0


@EACH
def test_distances_scale_with_the_clip_range(
    attack: type[MinimumNormAttack], norm: str, options: dict[str, Any], net: nn.Module
) -> None:
    x = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(2))
    y = net(x).argmax(1)
    wide = attack(lambda z: net(z / 255), norm=norm, clip=(0, 255), **options).minimum(255 * x, y)
    assert wide.success.double().mean() >= 0.5
    if norm != "l0":
        narrow = attack(net, norm=norm, **options).minimum(x, y)
        both = narrow.success & wide.success
        assert torch.allclose(wide.distance[both], 255 * narrow.distance[both], rtol=0.2)


def test_l0_pgd_projects_exactly() -> None:
    """The best k coordinates of every iterate, found by trying all pairs."""
    model, x = linear(3, 6, 13), images(30, 6, 13)
    y = model(x).argmax(1)
    exact = torch.tensor([linear_distance(model, *pair, "l0") for pair in zip(x, y.tolist(), strict=True)])
    x_adv = PGD(model, 2, "l0", steps=30, restarts=3).generate(x, y)
    assert int((x_adv != x).sum(1).max()) <= 2
    fooled = model(x_adv).argmax(1) != y
    assert not fooled[exact > 2].any()
    assert fooled[exact <= 2].double().mean() >= 0.9


def test_nothing_to_find() -> None:
    """A constant model has no boundary: no point, no claim, infinite distance."""
    constant: Callable[[Tensor], Tensor] = lambda x: x[:, :2] * 0 + torch.tensor([1.0, 0.0])
    x, y = images(3, 4, 0), torch.zeros(3, dtype=torch.int64)
    for attack, norm, options in QUICK:
        result = attack(constant, norm=norm, **options).minimum(x, y)
        assert result.distance.tolist() == [math.inf] * 3
        assert result.found_by == (None,) * 3
        assert torch.equal(result.x_adv, x)
        assert result.robust_accuracy(1e9) == 1.0


def test_models_that_return_nan_are_never_fooled_into_a_distance() -> None:
    """NaN logits predict no class: the example is misclassified at distance 0 only where x itself gives NaN."""

    def model(x: Tensor) -> Tensor:
        logits = torch.stack([x[:, 0], 1 - x[:, 0]], 1)
        return torch.where(x[:, :1] < 0.5, torch.nan, logits)

    x, y = torch.tensor([[0.75, 0.5], [0.25, 0.5]]), torch.tensor([0, 0])
    for attack, norm, options in QUICK:
        result = attack(model, norm=norm, **options).minimum(x, y)
        assert float(result.distance[1]) == 0
        if result.success[0]:
            logits = model(result.x_adv[:1])
            assert int(logits.argmax()) != 0 or logits.isnan().any()


def test_ensemble_is_at_least_as_near_as_its_attacks() -> None:
    model, x = linear(5, 16, 17), images(12, 16, 17)
    y = model(x).argmax(1)
    ensemble = MinimumNormEnsemble(model, norm="l2", attacks=["deepfool", "ddn"]).minimum(x, y)
    for attack in (DeepFool(model, norm="l2"), DDN(model)):
        assert (ensemble.distance <= attack.minimum(x, y).distance * (1 + 1e-3)).all()
    assert set(ensemble.found_by) <= {"deepfool", "ddn"}
    later = MinimumNormEnsemble(model, norm="l2", attacks=["sampling", "ddn"], clip_min=-9, clip_max=9).minimum(x, y)
    assert "ddn" in later.found_by  # in sixteen dimensions sampling comes near nothing


@pytest.mark.parametrize(("attack", "norm"), [(CarliniWagner, "l2"), (EAD, "l1")])
def test_early_abort_saves_passes(attack: type[CarliniWagner | EAD], norm: str, net: nn.Module) -> None:
    x = images(8, 48, 2).view(8, 3, 4, 4)
    y = net(x).argmax(1)
    early, late = (attack(net, norm=norm, steps=100, searches=3, abort_early=flag) for flag in (True, False))
    early.minimum(x, y)
    late.minimum(x, y)
    assert 1.2 * early.backwards < late.backwards


@pytest.mark.parametrize(("attack", "norm", "passes"), [(CarliniWagner, "l2", 20), (EAD, "l1", 21)])
def test_examples_leave_at_the_second_check(
    attack: type[CarliniWagner | EAD], norm: str, passes: int, net: nn.Module
) -> None:
    x = images(8, 48, 2).view(8, 3, 4, 4)
    still = attack(net, norm=norm, steps=100, searches=1, learning_rate=1e-12)
    still.minimum(x, net(x).argmax(1))
    assert still.backwards == passes * len(x)


def test_carlini_wagner_takes_the_steps_of_adam() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    lower, upper, active = torch.tensor(-0.5), torch.tensor(1.5), torch.tensor([0.0, 1.0, 3.0]).double()
    state: Any = SimpleNamespace(x=x, lower=lower.double(), upper=upper.double())
    descent = _Adam(state, 0.05)
    w = descent._w.clone().requires_grad_(True)
    adam = torch.optim.Adam([w], lr=0.05, betas=(0.9, 0.999), eps=1e-8)
    for step in range(6):
        slope = torch.randn(3, 4, generator=generator, dtype=torch.float64) * 10.0 ** (step - 3)
        z = lower + (w.tanh() + 1) / 2 * (upper - lower)
        adam.zero_grad()
        (((z - x) / (upper - lower)).square().sum() - (active[:, None] * slope * z).sum()).backward()
        adam.step()
        descent.point(state)
        descent.move(state, slope.clone(), active, step)
        torch.testing.assert_close(descent._w, w.detach(), rtol=1e-9, atol=1e-9)


def test_no_examples() -> None:
    result = minimum_norm(linear(4, 4, 0), torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), "l2")
    assert result.distance.shape == (0,)
    assert math.isnan(result.robust_accuracy(0.1))


@pytest.mark.parametrize("attack", [FMN, DeepFool, SuperDeepFool, FAB, CarliniWagner])
def test_distances_do_not_depend_on_the_scale_of_the_logits(attack: type[MinimumNormAttack]) -> None:
    model, x = linear(4, 12, 19), images(5, 12, 19)
    y = model(x).argmax(1)
    scales = [1.0, 1e-20] if attack is not CarliniWagner else [1.0, 0.5]  # its constant has a range
    steps = {FMN: 30, FAB: 10, CarliniWagner: 100}
    few: dict[str, Any] = {"steps": steps[attack]} if attack in steps else {}
    few |= {"searches": 5} if attack is CarliniWagner else {}
    one, other = (attack(lambda z, s=s: s * model(z), norm="l2", **few).minimum(x, y).distance for s in scales)
    assert torch.allclose(one, other, rtol=0.02)


@EACH
def test_models_of_other_precisions(
    attack: type[MinimumNormAttack], norm: str, options: dict[str, Any], net: nn.Module
) -> None:
    """The points that are returned fool the model as they are, not rounded to float32; half precision comes near."""
    x = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(2)).mul(3).sub(1).clamp(0, 1)
    y = net(x).argmax(1)
    half = attack(copy.deepcopy(net).half(), norm=norm, **options).minimum(x.half(), y).distance
    double = net.double()
    result = attack(lambda z: double(z.double()), norm=norm, **options).minimum(x.double(), y)
    alone = torch.cat([double(point[None]).argmax(1) for point in result.x_adv]) != y
    assert torch.equal(alone, result.success)
    fooled = result.success & half.isfinite()
    assert int(fooled.sum()) >= int(result.success.sum()) - 1
    assert float((half / result.distance)[fooled].median()) < 1.25


def test_super_deepfool_finds_the_nearest_point_of_a_curved_boundary() -> None:
    """An ellipse of half-axes 0.4 and 0.1: DeepFool crosses it anywhere, the nearest point has its normal through x."""
    center, axes = torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.1])

    def ellipse(x: Tensor) -> Tensor:
        inside = 1 - ((x - center) / axes).square().sum(1)
        return torch.stack([inside, -inside], 1)

    x = center + torch.rand(40, 2, generator=torch.Generator().manual_seed(0)).sub(0.5) * axes
    y = torch.zeros(40, dtype=torch.int64)
    angle = torch.linspace(0, 2 * math.pi, 20_000, dtype=torch.float64)
    boundary = center + axes * torch.stack([angle.cos(), angle.sin()], 1)
    exact = torch.cdist(x.double(), boundary).amin(1)
    plain, projected = (attack(ellipse, norm="l2").minimum(x, y).distance for attack in (DeepFool, SuperDeepFool))
    assert bool((projected >= 0.999 * exact).all())
    assert float((projected / exact).max()) < 1.15
    assert float((plain / exact).max()) > 1.4


@pytest.mark.usefixtures("sparse")
def test_a_box_is_the_unit_of_distances() -> None:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
        model.bias.zero_()
    x, y, box = torch.tensor([[0.75, 0.5], [0.9, 0.1]]), [0, 0], [0.5, 0.25]
    result = minimum_norm(model, x, y, box=box)
    # The boundary x₀ = x₁ is reached by changes t·box with 0.75·t = x₀ - x₁.
    assert result.distance.tolist() == pytest.approx([0.25 / 0.75, 0.8 / 0.75], rel=0.005)
    sized = (result.x_adv.double() - x.double()).abs() / torch.tensor(box)
    assert (sized.amax(1) <= result.distance).all()
    few: dict[str, Any] = {"attacks": ["deepfool"]}
    listed = minimum_norm(model, x.tolist(), y, box=torch.tensor([box]), **few)
    assert torch.equal(listed.x_adv, minimum_norm(model, x, y, box=box, **few).x_adv)
    fixed = minimum_norm(model, x, y, box=[0.5, 0.0], **few)
    assert torch.equal(fixed.x_adv[:, 1], x[:, 1]), "an element of radius 0 moved"

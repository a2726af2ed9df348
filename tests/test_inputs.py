"""Inputs as people have them: float64 beside a float32 model."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyrobust import (
    PGD,
    BoundedModel,
    RandomizedSmoothing,
    attack_dataset,
    certified_accuracy_ibp,
    certify_dataset,
    compute_ibp_bounds,
    lipschitz_bound,
    minimum_norm,
    robustness_curve,
    sandwich_dataset,
    verify_dataset,
)
from pyrobust.attacks import AdversarialAttack
from pyrobust.errors import InputError


def net() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 2)).eval()
    weight = torch.tensor([[1.0, -1.0, 0.5], [-1.0, 1.0, -0.5]])
    model.load_state_dict({"0.weight": weight, "0.bias": torch.zeros(2)})
    return model


X = torch.tensor([[0.75, 0.25, 0.5], [0.125, 0.875, 0.5]])
Y = torch.tensor([0, 1])
OFF = X.double() + torch.tensor([0.0, 0.0, 1e-12], dtype=torch.float64)  # values that no float32 has


class Own(AdversarialAttack):
    """A user's attack, which runs the model by itself."""

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        self.model(x)
        return x + self.project(torch.ones_like(x), x)


@pytest.mark.parametrize("attack", [PGD, Own])
def test_attacks_cast_float64_and_say_so_once(attack: Any, caplog: pytest.LogCaptureFixture) -> None:
    attacker = attack(net(), 0.125, clip=(0.125, 0.5 + 1e-12), norm="linf")
    x = OFF.clamp(0.125, 0.5 + 1e-12)
    with caplog.at_level(logging.WARNING):
        x_adv = attacker(x, Y)
        assert x_adv.dtype == torch.float32
        rates = attacker.evaluate(x, Y, x_adv)
    assert rates["avg_perturbation"] <= 0.125  # of the cast x
    assert float(x_adv.double().max()) <= 0.5 + 1e-12
    assert [record.getMessage()[:41] for record in caplog.records] == ["x: float64 beside a model that takes floa"]
    double = attack(net().double(), 0.125, norm="linf")
    assert double(OFF, Y).dtype == torch.float64


def test_a_cast_does_not_leave_the_clip_range() -> None:
    x = torch.tensor([[0.3, -0.3, 0.1], [0.0, 0.3, -0.3]], dtype=torch.float64)
    assert float(x.float().double().max()) > 0.3  # rounded away from 0
    for clip in ((-0.3, 0.3), (x.amin(0), x.amax(0))):
        attack = PGD(net(), 0.0, clip=clip, steps=2)
        moved = attack(x, Y).double()
        assert bool((moved.abs() <= 0.3).all())
        assert torch.allclose(moved, x, rtol=1e-7)


def test_searches_and_sweeps_of_attacks_cast_float64(caplog: pytest.LogCaptureFixture) -> None:
    found = minimum_norm(net(), OFF, Y, "l2", attacks=["deepfool"])
    assert torch.equal(found.distance, minimum_norm(net(), OFF.float(), Y, "l2", attacks=["deepfool"]).distance)
    curve = robustness_curve(PGD, net(), OFF, Y, [0.0, 0.125, 0.5], steps=2)
    assert curve.counts.tolist() == [2, 2, 0]
    assert not curve.outside.any()
    caplog.clear()
    run = attack_dataset(PGD(net(), 0.125, steps=2), (OFF, Y))
    assert [record.getMessage() for record in caplog.records] == [
        "tensors: float64 images rounded to float32, which distances are of"
    ]
    assert len(run) == 2


CERTIFICATES: dict[str, Any] = {
    "certify_batch": lambda x: RandomizedSmoothing(net(), 2, 0.25, grid=None).certify_batch(x, n=10).radius,
    "predict": lambda x: RandomizedSmoothing(net(), 2, 0.25, grid=None).predict(x[0], 10),
    "bounds": lambda x: BoundedModel(net(), X).bounds(x, 0.125).lower,
    "linear_bounds": lambda x: BoundedModel(net(), X).linear_bounds(x, 0.125).lower_b,
    "certified_radius": lambda x: BoundedModel(net(), X).certified_radius(x, Y),
    "verify": lambda x: BoundedModel(net(), X).verify(x, Y, 0.125).margin,
    "compute_ibp_bounds": lambda x: compute_ibp_bounds(net(), x, 0.125)[0],
    "certified_accuracy_ibp": lambda x: certified_accuracy_ibp(net(), [(x, Y)], 0.125)["certified_accuracy"],
    "certify_dataset": lambda x: certify_dataset(
        RandomizedSmoothing(net(), 2, 0.25, grid=None), (x, Y), n=10
    ).certified_accuracy([0.0])[0],
    "verify_dataset": lambda x: verify_dataset(net(), (x.numpy(), Y.numpy()), epsilons=[0.125]).table["radius"],
    "sandwich_dataset": lambda x: sandwich_dataset(net(), [(x, Y)], clip=None).lower,
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_certificates_take_float64_only_where_float32_holds_it(name: str) -> None:
    certify = CERTIFICATES[name]
    if name != "sandwich_dataset":  # which takes longer
        assert torch.equal(torch.as_tensor(certify(X.double())), torch.as_tensor(certify(X)))
    with pytest.raises(
        InputError, match=r"x: expected float32 values.*got 0\.500000000001 at .*x\.to\(torch\.float32\)"
    ):
        certify(OFF)


def test_boxes_and_float64_models_keep_float64() -> None:
    bounded = BoundedModel(net(), OFF)  # an example, whose values do not matter
    lower = bounded.bounds(x_lower=OFF - 0.125, x_upper=OFF + 0.125).lower
    assert lower.dtype == torch.float64
    assert lipschitz_bound(net(), OFF).value > 0
    double = BoundedModel(net().double(), OFF)
    assert bool((double.bounds(OFF, 1e-13).upper - double.bounds(X.double(), 1e-13).lower < 1e-11).all())


def test_images_on_a_grid_of_float64_are_certified_by_their_levels() -> None:
    levels = torch.tensor([[51.0, 102, 7], [3, 200, 9]], dtype=torch.float64) / 255
    smoother = RandomizedSmoothing(net(), 2, 0.25)
    run = certify_dataset(smoother, (levels, Y), n=10)
    assert run.header.guarantee == "grid"

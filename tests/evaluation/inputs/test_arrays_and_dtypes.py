"""Inputs as people have them: float64 beside a float32 model, arrays and lists, loaders, string labels."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyrobust import (
    PGD,
    BoundedModel,
    RandomizedSmoothing,
    attack_dataset,
    calculate_empirical_robustness,
    certified_accuracy_ibp,
    certify_dataset,
    compute_certified_accuracy,
    compute_ibp_bounds,
    lipschitz_bound,
    minimum_norm,
    robustness_curve,
    sandwich,
    sandwich_dataset,
    verify_dataset,
)
from pyrobust.attacks import AdversarialAttack
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import clean_accuracy, distances, predicted_classes
from pyrobust.zoo import ImageSet

pytestmark = pytest.mark.usefixtures("few_restarts")


def net() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 2)).eval()
    weight = torch.tensor([[1.0, -1.0, 0.5], [-1.0, 1.0, -0.5]])
    model.load_state_dict({"0.weight": weight, "0.bias": torch.zeros(2)})
    return model


@functools.cache
def bounded() -> BoundedModel:
    return BoundedModel(net(), X)


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
    result = minimum_norm(net(), OFF, Y, "l2", attacks=["deepfool"])
    assert torch.equal(result.distance, minimum_norm(net(), OFF.float(), Y, "l2", attacks=["deepfool"]).distance)
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
    "bounds": lambda x: bounded().bounds(x, 0.125).lower,
    "linear_bounds": lambda x: bounded().linear_bounds(x, 0.125).lower_b,
    "certified_radius": lambda x: bounded().certified_radius(x, Y),
    "verify": lambda x: bounded().verify(x, Y, 0.125).margin,
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


def reversed_rows(x: Any) -> Any:
    """An array that torch cannot share: read-only, in reversed order, in the other byte order."""
    array = np.ascontiguousarray(np.asarray(x)[::-1]).astype(np.asarray(x).dtype.newbyteorder())[::-1]
    array.flags.writeable = False
    return array


FORMS: dict[str, Any] = {
    "array": np.asarray,
    "odd array": reversed_rows,
    "list": lambda x: x.tolist(),
    "list of tensors": list,
}
SMOOTHER = {"num_classes": 2, "sigma": 0.25, "seed": 3}
CALLS: dict[str, Any] = {
    "attack": lambda x, y: PGD(net(), 0.125, steps=2)(x, y),
    "own attack": lambda x, y: Own(net(), 0.125)(x, y),
    "evaluate": lambda x, y: PGD(net(), 0.125).evaluate(x, y, x)["clean_accuracy"],
    "minimum_norm": lambda x, y: minimum_norm(net(), x, y, "l2", attacks=["deepfool"]).distance,
    "robustness_curve": lambda x, y: robustness_curve(PGD, net(), x, y, [0.0, 0.5], steps=1).counts,
    "certify_batch": lambda x, y: RandomizedSmoothing(net(), **SMOOTHER).certify_batch(x, n=20).counts,
    "certify": lambda x, y: RandomizedSmoothing(net(), **SMOOTHER).certify(x[0], n=20)[1],
    "compute_certified_accuracy": lambda x, y: compute_certified_accuracy(
        RandomizedSmoothing(net(), **SMOOTHER), x, y, n=20
    )["avg_radius"],
    "margins": lambda x, y: BoundedModel(net(), x).margins(x, y, 0.125).lower,
    "boxes": lambda x, y: BoundedModel(net(), x).bounds(x_lower=x, x_upper=x).lower,
    "compute_ibp_bounds": lambda x, y: compute_ibp_bounds(net(), x, 0.125)[0],
    "certified_accuracy_ibp": lambda x, y: certified_accuracy_ibp(net(), (x, y), 0.1)["certified_accuracy"],
    "attack_dataset": lambda x, y: attack_dataset(PGD(net(), 0.125, steps=1), (x, y)).examples(),
    "metrics": lambda x, y: float(clean_accuracy(predicted_classes(x), y)),
    "distances": lambda x, y: distances(x, x),
    "ImageSet": lambda x, y: ImageSet("own", x, y).x,
}


@pytest.mark.parametrize(
    ("name", "form"), [*((name, "odd array") for name in CALLS), *(("attack", form) for form in FORMS)]
)
def test_arrays_and_lists_are_what_their_tensors_are(name: str, form: str) -> None:
    call, convert = CALLS[name], FORMS[form]
    expected, result = call(X, Y), call(convert(X), convert(Y))
    assert torch.equal(torch.as_tensor(result), torch.as_tensor(expected))


def test_numbers_in_lists_have_the_dtype_of_the_model() -> None:
    x = [[0.1, 0.9, 0.3]]
    assert PGD(net(), 0.125, steps=1)(x, [1]).dtype == torch.float32
    assert PGD(net().double(), 0.0, steps=1)(x, [1]).tolist() == x
    assert RandomizedSmoothing(net(), 2, 0.25).certify(x[0], n=100)[0] == 1


def test_modules_get_arrays_as_tensors() -> None:
    rate = calculate_empirical_robustness(net(), (np.asarray(X), Y.tolist()), PGD, 0.5)
    assert rate == calculate_empirical_robustness(net(), (X, Y), PGD, 0.5)


@pytest.mark.parametrize(
    ("call", "function"),
    [
        (lambda x: PGD(net(), 0.125)(x, Y), "attack_dataset"),
        (lambda x: RandomizedSmoothing(net(), 2, 0.25).certify_batch(x), "certify_dataset"),
        (lambda x: RandomizedSmoothing(net(), 2, 0.25).predict_batch(x, n=10), "predict_dataset"),
        (lambda x: bounded().verify(x, Y, 0.125), "verify_dataset"),
        (lambda x: sandwich(net(), x, Y), "sandwich_dataset"),
    ],
)
def test_a_loader_in_place_of_a_batch_names_the_function_for_it(call: Any, function: str) -> None:
    for data in (DataLoader(TensorDataset(X, Y)), iter([(X, Y)]), ImageSet("own", X, Y)):
        with pytest.raises(InputTypeError, match=rf"^x: expected a tensor.*data set or loader to {function}$"):
            call(data)


STRINGS: dict[str, Any] = {
    "attack": lambda y: PGD(net(), 0.125)(X, y),
    "verify": lambda y: BoundedModel(net(), X).verify(X, y, 0.125),
    "metrics": lambda y: clean_accuracy(Y, y),
    "verify_dataset": lambda y: verify_dataset(net(), (X, y), epsilons=[0.125]),
    "certify_dataset": lambda y: certify_dataset(RandomizedSmoothing(net(), 2, 0.25), list(zip(X, y, strict=True))),
    "attack_dataset": lambda y: attack_dataset(PGD(net(), 0.125), DataLoader(list(zip(X, list(y), strict=True)))),
}


@pytest.mark.parametrize("name", STRINGS)
def test_string_labels_are_refused_with_how_to_number_them(name: str) -> None:
    for y in (["cat", "dog"], np.array(["cat", "dog"])):
        with pytest.raises((InputError, InputTypeError), match=r"classes\.index\(label\) for label in labels"):
            STRINGS[name](y)


def test_the_number_of_classes_is_that_of_the_outputs() -> None:
    explicit, inferred = RandomizedSmoothing(net(), 2, 0.25), RandomizedSmoothing(net(), sigma=0.25)
    with pytest.raises(InputError, match=r"^num_classes: expected a number before the first example"):
        _ = inferred.num_classes
    for call in (
        lambda smoother: smoother.certify(X[0], n=20),
        lambda smoother: smoother.predict_batch(X, n=20).counts.tolist(),
        lambda smoother: smoother.certify_batch(X, n=20, method="sequential", radii=[0.1]).counts.tolist(),
        lambda smoother: certify_dataset(smoother, (X, Y), n=20).parameters,
        lambda smoother: compute_certified_accuracy(smoother, X, Y, n=20),
    ):
        assert call(RandomizedSmoothing(net(), sigma=0.25)) == call(explicit)
    inferred.votes(X, n=5)
    assert inferred.num_classes == 2
    with pytest.raises(InputTypeError, match=r"^sigma: expected a number, got None"):
        RandomizedSmoothing(net())

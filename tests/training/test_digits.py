"""Training recipes of the bundled nets: the certified one, and the base classifiers for smoothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyrobust.attacks import PGD
from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError
from pyrobust.training import digits_ibp, digits_smooth, train_digits_ibp, train_digits_smooth
from pyrobust.zoo import ImageSet, load_digits, load_model, model_hash

EPSILON = 0.1
#: Clean and certified accuracy of the bundled certified net.
CERTIFIED = (0.924, 0.825)
#: Clean, noisy and smoothed accuracy of the bundled nets for smoothing.
SMOOTHED = {0.25: (0.976, 0.934, 0.979), 0.5: (0.958, 0.746, 0.945)}
#: Difference of accuracy allowed for training with another machine's rounding: seven of the 382 images.
TOLERANCE = 0.02


def test_accuracies_of_the_certified_net() -> None:
    """Clean and certified ones; PGD breaks images, none of them certified."""
    data, net = load_digits(), load_model("zoo:digits-ibp-0.10")
    assert digits_ibp.accuracies(net, data, EPSILON) == pytest.approx(CERTIFIED, abs=0.003)
    proved = BoundedModel(net, data.x[:1]).certify(data.x, data.y, EPSILON, method="ibp", clip=(0.0, 1.0))
    x_adv = PGD(net, epsilon=EPSILON, steps=20).generate(data.x, data.y)
    with torch.inference_mode():
        right = net(x_adv).argmax(1) == data.y
    assert bool(right[proved].all())
    assert not bool(right.all())


@pytest.mark.parametrize("sigma", SMOOTHED)
def test_accuracies_of_the_nets_for_smoothing(sigma: float) -> None:
    net = load_model(f"zoo:digits-smooth-{sigma:.2f}")
    assert digits_smooth._accuracies(net, load_digits(), sigma, 0) == pytest.approx(SMOOTHED[sigma], abs=0.002)


def head(images: ImageSet, count: int) -> ImageSet:
    return ImageSet("few", images.x[:count], images.y[:count])


def cheaper(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], ImageSet], batch: int) -> None:
    """Train on other images, in smaller batches, and vote with fewer noisy copies."""
    for recipe in (digits_ibp, digits_smooth):
        monkeypatch.setattr(recipe, "load_digits", load)
        monkeypatch.setattr(recipe, "_BATCH", batch)
    monkeypatch.setattr(digits_smooth, "_COPIES", 20)


@pytest.mark.parametrize(
    ("train", "settings", "rate", "least"),
    [
        (train_digits_ibp, {"epsilon": 0.02, "method": "ibp", "epochs": 6}, "certified_accuracy", 0.6),
        (train_digits_ibp, {"epsilon": 0.02, "method": "crown-ibp", "epochs": 4}, "certified_accuracy", 0.6),
        (train_digits_smooth, {"sigma": 0.25, "epochs": 12}, "smoothed_accuracy", 0.85),
    ],
)
def test_short_run_learns_and_touches_no_global_state(
    train: Any, settings: dict[str, Any], rate: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {split: head(load_digits(split), count) for split, count in (("train", 640), ("test", 128))}
    cheaper(monkeypatch, few.__getitem__, batch=64)
    seen: list[tuple[int, int, float]] = []
    # numpy's legacy global state must stay untouched.
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    threads = torch.get_num_threads()
    first = train(**settings, progress=lambda *report: seen.append(report))
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.get_num_threads() == threads
    epochs = settings["epochs"]
    assert [(epoch, total) for epoch, total, _ in seen] == [(epoch, epochs) for epoch in range(1, epochs + 1)]
    assert seen[-1][2] < seen[0][2] / 2
    assert getattr(first, rate) > least
    if rate == "certified_accuracy":
        assert first.clean_accuracy >= first.certified_accuracy
    assert not first.model.training

    first.save(tmp_path / "a.pt")
    architecture = "zoo:digits-ibp-0.10" if train is train_digits_ibp else "zoo:digits-smooth-0.25"
    assert model_hash(load_model(architecture, tmp_path / "a.pt")) == model_hash(first.model)


@pytest.mark.parametrize(
    ("train", "settings", "repeated"),
    [
        (train_digits_ibp, [{}, {"method": "crown-ibp"}, {"seed": 1}, {"epsilon": 0.2}], 2),
        (train_digits_smooth, [{"sigma": 0.25}, {"sigma": 0.25, "seed": 1}, {"sigma": 0.5}], 1),
    ],
)
def test_runs_repeat_and_settings_change_the_weights(
    train: Any, settings: list[dict[str, Any]], repeated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = head(load_digits("train"), 192)
    cheaper(monkeypatch, lambda split: few, batch=32)  # six steps, so that the ramps have some within them
    runs = [train(epochs=1, **setting) for setting in settings]
    assert len({model_hash(run.model) for run in runs}) == len(settings)
    threads = torch.get_num_threads()
    torch.manual_seed(99)
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        with torch.inference_mode():
            again = [train(epochs=1, **setting) for setting in settings[:repeated]]
    finally:
        torch.set_num_threads(threads)
    for first, second in zip(runs, again, strict=False):
        assert model_hash(second.model) == model_hash(first.model)
        assert second.to_dict() | {"seconds": 0} == first.to_dict() | {"seconds": 0}


@pytest.mark.parametrize(
    ("train", "name", "values"),
    [
        (train_digits_ibp, "epsilon", [0.0, 1.0, float("nan")]),
        (train_digits_ibp, "method", ["crown"]),
        (train_digits_smooth, "sigma", [0.0, float("nan"), 101.0]),
        *((train, "seed", [-1, 1 << 63]) for train in (train_digits_ibp, train_digits_smooth)),
        *((train, "epochs", [0]) for train in (train_digits_ibp, train_digits_smooth)),
    ],
)
def test_invalid_arguments_are_rejected(train: Any, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InputError, match=f"{train.__name__}: {name}: expected"):
            train(**{"epochs": 1, "sigma" if train is train_digits_smooth else "epsilon": 0.25, name: value})


@pytest.mark.full
def test_full_run_reproduces_the_certified_net() -> None:
    result = train_digits_ibp(EPSILON)
    assert (result.clean_accuracy, result.certified_accuracy) == pytest.approx(CERTIFIED, abs=TOLERANCE)


@pytest.mark.full
@pytest.mark.parametrize("sigma", SMOOTHED)
def test_full_run_reproduces_the_nets_for_smoothing(sigma: float) -> None:
    result = train_digits_smooth(sigma)
    rates = (result.clean_accuracy, result.noisy_accuracy, result.smoothed_accuracy)
    assert rates == pytest.approx(SMOOTHED[sigma], abs=TOLERANCE)

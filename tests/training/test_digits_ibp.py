"""Training recipe of the bundled certified net."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pyrobust.attacks import PGD
from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError
from pyrobust.training import train_digits_ibp
from pyrobust.training.digits_ibp import accuracies
from pyrobust.zoo import load_digits, load_model, model_hash

EPSILON = 0.1
#: Clean and certified accuracy of the bundled net.
BUNDLED = (0.924, 0.825)
#: Difference of accuracy allowed for training with another machine's rounding: eight of the 382 images.
TOLERANCE = 0.02


def test_accuracies_of_the_bundled_net() -> None:
    clean, certified = accuracies(load_model("zoo:digits-ibp-0.10"), load_digits(), EPSILON)
    assert (clean, certified) == pytest.approx(BUNDLED, abs=0.003)
    assert clean >= 0.9
    assert certified >= 0.8


def test_pgd_does_not_break_certified_images() -> None:
    data, net = load_digits(), load_model("zoo:digits-ibp-0.10")
    proved = BoundedModel(net, data.x[:1]).certify(data.x, data.y, EPSILON, method="ibp", clip=(0.0, 1.0))
    x_adv = PGD(net, epsilon=EPSILON, steps=20).generate(data.x, data.y)
    with torch.inference_mode():
        right = net(x_adv).argmax(1) == data.y
    assert bool(right[proved].all())
    assert not bool(right.all())


@pytest.mark.parametrize("method", ["ibp", "crown-ibp"])
def test_short_run_learns_and_touches_no_global_state(method: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []
    # numpy's legacy global state must stay untouched.
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    threads = torch.get_num_threads()
    epochs = 12 if method == "ibp" else 5
    report = {"method": method, "epochs": epochs}
    first = train_digits_ibp(0.02, progress=lambda *report: seen.append(report), **report)
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.get_num_threads() == threads
    assert [epoch for epoch, _, _ in seen] == list(range(1, epochs + 1))
    assert seen[-1][2] < seen[0][2] / 2
    assert first.clean_accuracy >= first.certified_accuracy > 0.6
    assert not first.model.training

    first.save(tmp_path / "a.pt")
    assert model_hash(load_model("zoo:digits-ibp-0.10", tmp_path / "a.pt")) == model_hash(first.model)


def test_runs_repeat_and_seed_epsilon_and_method_change_the_weights() -> None:
    settings = ({}, {"seed": 1}, {"epsilon": 0.2}, {"method": "crown-ibp"})
    runs = [train_digits_ibp(epochs=1, **setting) for setting in settings]
    assert len({model_hash(run.model) for run in runs}) == len(settings)
    torch.manual_seed(99)
    for first, setting in ((runs[0], settings[0]), (runs[3], settings[3])):
        with torch.inference_mode():
            again = train_digits_ibp(epochs=1, **setting)
        assert model_hash(again.model) == model_hash(first.model)
        assert again.to_dict() | {"seconds": 0} == first.to_dict() | {"seconds": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"method": "crown"}, "method"),
        ({"seed": -1}, "seed"),
        ({"epochs": 0}, "epochs"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"train_digits_ibp: {message}: expected"):
        train_digits_ibp(**({"epochs": 1} | arguments))


@pytest.mark.full
def test_full_run_reproduces_the_bundled_accuracies() -> None:
    result = train_digits_ibp(EPSILON)
    assert (result.clean_accuracy, result.certified_accuracy) == pytest.approx(BUNDLED, abs=TOLERANCE)

"""Training recipe of the bundled base classifiers for smoothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pyrobust.errors import InputError
from pyrobust.training import train_digits_smooth
from pyrobust.training.digits_smooth import _accuracies
from pyrobust.zoo import load_digits, load_model, model_hash

#: Clean, noisy and smoothed accuracy of the bundled nets.
BUNDLED = {0.25: (0.976, 0.934, 0.979), 0.5: (0.958, 0.746, 0.945)}
#: Difference of accuracy allowed for training with another machine's rounding: seven of the 382 images.
TOLERANCE = 0.02


def bundled(sigma: float) -> torch.nn.Module:
    return load_model(f"zoo:digits-smooth-{sigma:.2f}")


@pytest.mark.parametrize("sigma", [0.25, 0.5])
def test_accuracies_of_the_bundled_nets(sigma: float) -> None:
    assert _accuracies(bundled(sigma), load_digits(), sigma, 0) == pytest.approx(BUNDLED[sigma], abs=0.002)


def test_short_run_learns_and_touches_no_global_state(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float]] = []
    # numpy's legacy global state must stay untouched.
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    threads = torch.get_num_threads()
    first = train_digits_smooth(0.25, epochs=12, progress=lambda *report: seen.append(report))
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.get_num_threads() == threads
    assert [epoch for epoch, _, _ in seen] == list(range(1, 13))
    assert {total for _, total, _ in seen} == {12}
    assert seen[-1][2] < seen[0][2] / 2
    assert first.smoothed_accuracy > 0.85
    assert not first.model.training

    first.save(tmp_path / "a.pt")
    assert model_hash(load_model("zoo:digits-smooth-0.25", tmp_path / "a.pt")) == model_hash(first.model)


def test_runs_repeat_and_seed_and_sigma_change_the_weights() -> None:
    first, *others = (
        train_digits_smooth(sigma, seed=seed, epochs=1) for sigma, seed in ((0.25, 0), (0.25, 1), (0.5, 0))
    )
    assert len({model_hash(run.model) for run in (first, *others)}) == 3
    threads = torch.get_num_threads()
    torch.manual_seed(99)
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        with torch.inference_mode():
            again = train_digits_smooth(0.25, epochs=1)
    finally:
        torch.set_num_threads(threads)
    assert model_hash(again.model) == model_hash(first.model)
    assert again.to_dict() | {"seconds": 0} == first.to_dict() | {"seconds": 0}


@pytest.mark.parametrize(
    ("sigma", "seed", "epochs", "message"),
    [
        (0.0, 0, 1, "sigma"),
        (float("nan"), 0, 1, "sigma"),
        (0.25, -1, 1, "seed"),
        (0.25, 1 << 63, 1, "seed"),
        (0.25, 0, 0, "epochs"),
    ],
)
def test_invalid_arguments_are_rejected(sigma: float, seed: int, epochs: int, message: str) -> None:
    with pytest.raises(InputError, match=f"train_digits_smooth: {message}: expected"):
        train_digits_smooth(sigma, seed=seed, epochs=epochs)


@pytest.mark.full
@pytest.mark.parametrize("sigma", [0.25, 0.5])
def test_full_run_reproduces_the_bundled_accuracies(sigma: float) -> None:
    result = train_digits_smooth(sigma)
    accuracies = (result.clean_accuracy, result.noisy_accuracy, result.smoothed_accuracy)
    assert accuracies == pytest.approx(BUNDLED[sigma], abs=TOLERANCE)

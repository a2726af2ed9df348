"""Sequences of numbers, lists in messages, and what an interpreter shows of a result."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyrobust
from pyrobust import ops, zoo
from pyrobust.errors import InputTypeError
from pyrobust.values import numbers, some


@pytest.mark.parametrize(
    "values", [(0, 0.25), [np.float32(0), np.float64(0.25)], np.array([0, 0.25]), torch.tensor([0, 0.25])]
)
def test_sequences_of_numbers(values: Any) -> None:
    found = numbers("radii", values)
    assert found == [0.0, 0.25]
    assert all(type(value) is float for value in found)


@pytest.mark.parametrize(
    "values", ["25", "", b"25", ["0.25"], [0.1, "0.25"], np.array(["0.25"]), 0.25, None, [None], [[0.1, 0.2]]]
)
def test_what_is_no_sequence_of_numbers(values: Any) -> None:
    with pytest.raises(InputTypeError, match=r"^radii: expected a sequence of numbers, got "):
        numbers("radii", values)


def test_a_message_names_the_first_few() -> None:
    assert some([]) == ""
    assert some(range(5)) == "0, 1, 2, 3, 4"
    assert some(range(6)) == "0, 1, 2, 3, 4 and 1 more"
    with pytest.raises(InputTypeError) as error:
        numbers("radii", ["0.25"] * 2000)
    assert "and 1,995 more" in str(error.value)
    assert len(str(error.value)) < 120


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A result of each class that holds arrays, of twelve images."""
    net, data = zoo.load_model("zoo:digits-smooth-0.25"), zoo.load_data("digits")
    x, y = data.x[:12], data.y[:12]
    path = tmp_path_factory.mktemp("run") / "run.db"
    smoother = pyrobust.RandomizedSmoothing(net, 10, 0.25, grid="auto")
    run = pyrobust.certify_dataset(smoother, data, n=100, max_images=12, out=path)
    log = pyrobust.read_certification_log(path)
    bounded = pyrobust.BoundedModel(net, x)
    attack = pyrobust.AutoAttack(net, 0.1, attacks_to_run=["apgd-ce"])
    attack.generate(x, y)
    made = [
        smoother.certify_batch(x, n=100, radii=[0.1, 0.2]),
        smoother.certify_batch(x, n=100, method="sequential", radii=np.linspace(0, 0.3, 500).tolist()),
        smoother.predict_batch(x, n=100),
        run,
        log,
        pyrobust.audit(log),
        pyrobust.survival_curve(np.arange(12), 100, np.ones(12, dtype=bool)),
        pyrobust.robustness_curve(pyrobust.FGSM, net, x, y, [0.0, 0.1]),
        bounded.bounds(x, 0.01),
        bounded.verify(x, y, 0.05),
        attack.result,
        pyrobust.FAB(net, 0.1, steps=2).minimal_perturbation(x, y),
        ops.grid_noise(0.25, Fraction(1, 255)),
    ]
    return {f"{type(result).__name__} {place}": result for place, result in enumerate(made)}


def test_a_result_is_shown_in_a_line_without_its_arrays(results: dict[str, object]) -> None:
    for result in results.values():
        shown = repr(result).replace(str(Path(getattr(result, "path", None) or "-")), "")
        assert shown.startswith(f"{type(result).__name__}(")
        assert "12" in shown or isinstance(result, ops.GridNoise)
        assert "array" not in shown
        assert "tensor" not in shown
        assert "\n" not in shown
        assert len(shown) < 320, shown


def test_certificates_are_shown_with_what_they_say(results: dict[str, object]) -> None:
    for name in ("Certificates 0", "Certificates 1"):
        found = results[name]
        assert isinstance(found, pyrobust.Certificates)
        shown = repr(found)
        assert f"images=12, certified={(found.prediction >= 0).sum()}, " in shown
        assert "sigma=0.25, norm='l2', guarantee='grid', grid='1/16'" in shown
        assert "n0=100, n=100, alpha=0.001, seed=0)" in shown
        assert ("certified_at={0.1: " in shown) == (len(found.radii) == 2)
    verdicts = results["Verdicts 9"]
    assert isinstance(verdicts, pyrobust.Verdicts)
    assert repr(verdicts) == (
        f"Verdicts(examples=12, verified={int(verdicts.verified.sum())}, "
        f"falsified={int(verdicts.falsified.sum())}, unknown={verdicts.status.count('unknown')})"
    )

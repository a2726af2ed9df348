"""Sequences of numbers, lists in messages, and what an interpreter shows of a result."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyrobust
from pyrobust import ops, zoo
from pyrobust.checks import numbers, some
from pyrobust.compat import torchattacks
from pyrobust.errors import InputError, InputTypeError, StoreError
from pyrobust.evaluation import Run
from pyrobust.report.caption import describe_run
from pyrobust.smoothing import pilot_probabilities, plan
from pyrobust.smoothing.radius import two_class_radius
from pyrobust.smoothing.sequential import CertificationRule


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


_NET, _DATA = zoo.load_model("zoo:digits-smooth-0.25"), zoo.load_data("digits")
_X, _Y = _DATA.x[:2], _DATA.y[:2]
_SMOOTHER = pyrobust.RandomizedSmoothing(_NET, 10, 0.25)
TAKERS: dict[str, Callable[[Any], object]] = {
    "radii, certify_batch": lambda v: _SMOOTHER.certify_batch(_X, n=10, radii=v),
    "radii, sequential": lambda v: _SMOOTHER.certify_batch(_X, n=10, radii=v, method="sequential"),
    "radii, rule": lambda v: CertificationRule(v, 3, 0.5, "gaussian", "l2", 100, 0.001),
    "radii, dataset": lambda v: pyrobust.certify_dataset(_SMOOTHER, _DATA, n=10, radii=v, method="sequential"),
    "radii, compute": lambda v: pyrobust.compute_certified_accuracy(_SMOOTHER, _X, _Y, radii=v, n=10),
    "radii, run": lambda v: pyrobust.certify_dataset(_SMOOTHER, _DATA, n=10, max_images=1).certified_accuracy(v),
    "radii, metric": lambda v: pyrobust.certified_accuracy(np.ones(3), np.ones(3, dtype=bool), v),
    "radii, plan": lambda v: plan([0.9], 0.25, v),
    "p, plan": lambda v: plan(v, 0.25, [0.1]),
    "p_lower": lambda v: pyrobust.certified_radius(v, 0.25),
    "p_a_lower": lambda v: two_class_radius(v, 0.1, 0.25),
    "p_b_upper": lambda v: two_class_radius(0.9, v, 0.25),
    "epsilons, curve": lambda v: pyrobust.robustness_curve(pyrobust.FGSM, _NET, _X, _Y, v),
    "epsilons, dictionary": lambda v: pyrobust.compute_robustness_curve(pyrobust.FGSM, _NET, _X, _Y, v),
    "epsilons, verify": lambda v: pyrobust.verify_dataset(_NET, _DATA, epsilons=v, max_images=1),
    "clip, verify": lambda v: pyrobust.verify_dataset(_NET, _DATA, epsilons=0.1, clip=v, max_images=1),
    "clip, bounds": lambda v: pyrobust.BoundedModel(_NET, _X).bounds(_X, 0.1, clip=v),
    "normalize": lambda v: pyrobust.RandomizedSmoothing(_NET, 10, 0.25, normalize=v),
    "normalize, mean and std": lambda v: pyrobust.RandomizedSmoothing(_NET, 10, 0.25, normalize=(v, v)),
    "mean": lambda v: torchattacks.PGD(_NET).set_normalization_used(v, v),
    "indices": lambda v: _SMOOTHER.certify_batch(_X, n=10, indices=v),
    "q": lambda v: pyrobust.survival_curve(np.arange(5), 10, np.ones(5, dtype=bool)).quantiles(v),
}


@pytest.mark.parametrize("value", ["12", "0.25"])
@pytest.mark.parametrize("taker", TAKERS)
def test_a_string_is_no_sequence_of_numbers_anywhere(taker: str, value: Any) -> None:
    with pytest.raises(InputTypeError, match=rf"^{taker.split(',')[0]}: expected "):
        TAKERS[taker](value)


def test_no_message_lists_thousands_of_radii() -> None:
    radii = np.linspace(0, 1, 2000).tolist()
    with pytest.raises(InputError, match=r"at most 1024 finite numbers, got 2000: .* and 1,995 more$") as error:
        _SMOOTHER.certify_batch(_X, n=10, radii=radii, method="sequential")
    assert len(str(error.value)) < 200
    with pytest.raises(InputError, match=r"epsilons: expected positive numbers, .* and 1,995 more$"):
        pyrobust.verify_dataset(_NET, _DATA, epsilons=radii, max_images=1)
    with pytest.raises(InputError, match=r"^n: expected .* and 1,995 more$"):
        pilot_probabilities([1, 2], [5] * 2000)


def test_another_run_is_told_by_the_first_radius_that_differs(tmp_path: Path) -> None:
    radii = np.linspace(0, 0.3, 1000).tolist()

    def certify(radii: list[float]) -> pyrobust.Run:
        return pyrobust.certify_dataset(
            _SMOOTHER, _DATA, n=10, max_images=1, method="sequential", radii=radii, out=tmp_path / "run.db"
        )

    assert "radius 0, 0.0003003, 0.000600601, " in describe_run(certify(radii))[0]
    assert "0.0033033 and 988 more" in describe_run(Run(tmp_path / "run.db"))[0]
    with pytest.raises(StoreError, match=r"radii: 1000 there, 999 now; the first that differs is number 1000") as error:
        certify(radii[:-1])
    assert len(str(error.value)) < 400


def test_epsilons_may_come_as_an_array() -> None:
    for epsilons in (np.array([0.02, 0.01]), torch.tensor([0.02, 0.01], dtype=torch.float64), np.float64(0.01), 0.01):
        run = pyrobust.verify_dataset(_NET, _DATA, epsilons=epsilons, max_images=1, method="ibp")
        assert run.parameters["epsilons"][0] == 0.01


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

"""Minimum-norm sweeps: exact distances, every claim checked again, resumed, sharded, merged, damaged."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.attack_runs import IMAGES, Threshold, digits, pixels
from torch import Tensor

from pyrobust.attacks import FAB, PGD, MinimumNorm, MinimumNormAttack
from pyrobust.errors import InputError, InputTypeError, StoreError
from pyrobust.evaluation import Run, SweepProgress, attack_dataset, format_log
from pyrobust.report import attack_table, describe_run, run_summary
from pyrobust.zoo import load_model


def fab(**options: Any) -> FAB:
    return FAB(load_model("zoo:digits-smooth-0.25"), **({"norm": "l2", "steps": 3} | options))


class Claims(MinimumNormAttack):
    """A user's attack: claims that points are adversarial examples at distance 1e-6."""

    def __init__(self, model: Any, x_adv: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model)
        self.x_adv = x_adv

    def _search(self, state: Any, nearest: Any) -> None:
        raise AssertionError

    def minimum(self, x: Tensor, y: Tensor, *arguments: Any, **keywords: Any) -> MinimumNorm:
        n, near = len(x), torch.full((len(x),), 1e-6, dtype=torch.float64)
        return MinimumNorm(self.x_adv(x), near, torch.ones(n, dtype=torch.bool), ("Claims",) * n, self.norm, 0, 0)


def exact(x_adv: Tensor, x: Tensor, norm: str) -> list[Fraction]:
    """Distances as rationals; squared in l2."""
    pairs = zip(x_adv.flatten(1).tolist(), x.flatten(1).tolist(), strict=True)
    deltas = [[abs(Fraction(a) - Fraction(b)) for a, b in zip(*pair, strict=True)] for pair in pairs]
    return [Fraction(max(d) if norm == "linf" else sum(z * z if norm == "l2" else z for z in d)) for d in deltas]


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_stored_distances_are_exact_and_rounded_up(norm: str) -> None:
    data = digits()
    run = attack_dataset(fab(norm=norm), data, minimum=True)
    x_adv, table = run.examples(), run.table
    power = 2 if norm == "l2" else 1
    for distance, truth in zip(table["distance"].tolist(), exact(x_adv, data.x, norm), strict=True):
        assert Fraction(distance) ** power >= truth
        assert distance == 0 or Fraction(math.nextafter(distance, 0)) ** power < truth
    model = load_model("zoo:digits-smooth-0.25")
    assert table["adversarial"].tolist() == [int(model(x_adv[i : i + 1]).argmax()) for i in range(IMAGES)]
    assert set(table["broken_by"]) <= {"FAB", "clean"}
    assert (run.header.layout, run.kind, run.header.guarantee) == ("minimum", "attack", "empirical")
    assert "epsilon" not in run.parameters
    closest = fab(norm=norm).minimum(data.x, data.y)
    assert np.array_equal(table["distance"], closest.distance.numpy())


@pytest.fixture
def boundary(tmp_path: Path) -> Run:
    """Examples 0.25 and 0.5 away; the last is misclassified without an attack."""
    attack = FAB(Threshold(), norm="linf")
    return attack_dataset(attack, pixels(0.25, 0.0, 0.75), minimum=True, out=tmp_path / "run.db")


def test_distances_of_a_known_boundary(boundary: Run) -> None:
    distance = boundary.table["distance"]
    assert distance.tolist() == pytest.approx([0.25, 0.5, 0.0], rel=0.02)
    assert boundary.table["broken_by"].tolist() == ["FAB", "FAB", "clean"]
    assert torch.equal(boundary.examples([2]), pixels(0.75).x)
    at_its_distance = distance[0]  # an example is broken
    for epsilon, count in ((0.0, 2), (0.2, 2), (math.nextafter(at_its_distance, 0), 2), (at_its_distance, 1), (0.6, 0)):
        assert boundary.robust_accuracy(epsilon=epsilon).successes == count
    text = " ".join(describe_run(boundary))
    assert "Nearest adversarial examples, linf" in text
    assert "no lower bound of robustness" in text
    assert "FAB in linf and [0, 1], seed 0" in text


def test_where_none_was_found_the_distance_is_infinite(tmp_path: Path) -> None:
    def constant(x: Tensor) -> Tensor:
        return torch.tensor([[1.0, 0.0]]).repeat(len(x), 1) + 0 * x.square().flatten(1).sum(1, keepdim=True)

    path = tmp_path / "run.db"
    run = attack_dataset(FAB(constant, steps=2), pixels(0.25, 0.75), minimum=True, out=path, model_name="constant")
    assert run.table["distance"].tolist() == [math.inf] * 2
    assert run.table["broken_by"].tolist() == ["", ""]
    assert torch.equal(run.examples(), pixels(0.25, 0.75).x)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT distance FROM result").fetchall() == [(None,), (None,)]
    assert format_log(run).splitlines()[1].split("\t")[4] == ""
    assert run_summary(run)["distance_quantiles"] == {"0.25": None, "0.5": None, "0.75": None}
    assert "none found" in str([row for row in attack_table(run).rows])


def test_claims_are_checked_again() -> None:
    data = pixels(0.25, 0.5, 0.75)
    # Not adversarial in the first row, as it claims; at 0.25 and not 1e-6 in the second.
    run = attack_dataset(Claims(Threshold(), lambda x: x + 0.2), data, minimum=True)
    assert run.table["broken_by"].tolist() == ["", "Claims", "clean"]
    assert run.table["distance"][[0, 2]].tolist() == [math.inf, 0.0]
    assert Fraction(run.table["distance"][1]) == Fraction(float(torch.tensor(0.5) + 0.2)) - Fraction(0.5)
    assert torch.equal(run.examples([0, 2]), data.x[[0, 2]])
    for wrong, message in (
        (lambda x: x + 0.5, "Claims.minimum to stay in the clip range"),
        (lambda x: x * math.nan, "Claims.minimum to return finite values"),
        (lambda x: x[:, :, :1], "Claims.minimum to return shape"),
    ):
        with pytest.raises(InputError, match=message):
            attack_dataset(Claims(Threshold(), wrong), data, minimum=True)


def test_bad_input(tmp_path: Path) -> None:
    class Tensors(FAB):
        def minimum(self, x: Tensor, *arguments: Any, **keywords: Any) -> Any:
            return x

    for attack, minimum, words in (
        (PGD(Threshold()), True, "expected a MinimumNormAttack with minimum=True, such as FMN, got PGD"),
        (FAB(Threshold()), 1, "minimum: expected"),
        (Tensors(Threshold()), True, r"expected Tensors.minimum to return a MinimumNorm, got"),
    ):
        with pytest.raises(InputTypeError, match=words):
            attack_dataset(attack, pixels(0.2), minimum=minimum, out=tmp_path / "run.db")  # type: ignore[arg-type]  # a wrong type
    assert not list(tmp_path.iterdir())
    run = attack_dataset(FAB(Threshold()), pixels(0.2), minimum=True)
    for wrong, error in ((None, InputError), (-0.1, InputError), (math.nan, InputError), ("x", InputTypeError)):
        with pytest.raises(error, match=r"^epsilon: expected"):
            run.robust_accuracy(epsilon=wrong)  # type: ignore[arg-type]  # a wrong type
    fixed = attack_dataset(PGD(Threshold(), 0.1), pixels(0.2))
    assert fixed.robust_accuracy(epsilon=0.1) == fixed.robust_accuracy()
    with pytest.raises(InputError, match=r"epsilon: expected that of the run, 0\.1, got 0\.2"):
        fixed.robust_accuracy(epsilon=0.2)


def test_a_run_is_resumed_as_what_it_is(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_images": 4, "batch_size": 2, "out": tmp_path / "run.db"}
    seen: list[SweepProgress] = []
    attack_dataset(fab(), digits(), minimum=True, progress=seen.append, **options)
    assert {now.robust for now in seen} == {None}, "a share of images without any adversarial example says nothing"
    with pytest.raises(StoreError, match="minimum: True stored, None given; epsilon: None stored, "):
        attack_dataset(fab(epsilon=0.5), digits(), **options)
    assert attack_dataset(fab(epsilon=0.7), digits(), minimum=True, **options).complete, "epsilon does not matter"

"""Logits without a winner, such as NaN, count as wrong in every accuracy, and are logged once."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from pyrobust.attacks import FGSM, AutoAttack
from pyrobust.evaluation import (
    attack_dataset,
    calculate_empirical_robustness,
    certified_accuracy_ibp,
    compute_robustness_curve,
    read_log,
    verify_dataset,
    write_log,
)
from pyrobust.report import attack_table, verification_table

#: Four images, of class 1 if bright; the model returns NaN for the darkest one.
X = torch.tensor([0.05, 0.3, 0.7, 0.9]).view(4, 1, 1, 1).expand(4, 1, 2, 2).contiguous()
Y = torch.tensor([0, 0, 1, 1])


class Undecided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3))
        logits = torch.stack([0.5 - mean, mean - 0.5], 1)
        return torch.where(mean[:, None] < 0.1, math.nan, logits)


def evaluated() -> float:
    attack = FGSM(Undecided(), epsilon=0.0)
    found = attack.evaluate(X, Y, attack.generate(X, Y))
    assert found["clean_accuracy"] == found["robust_accuracy"]
    return found["robust_accuracy"]


def by_autoattack() -> float:
    attack = AutoAttack(Undecided(), epsilon=0.0, attacks_to_run=["apgd-ce"])
    attack.generate(X, Y)
    assert attack.result.broken_by == ("clean", None, None, None)
    return attack.result.robust_accuracy


def in_a_run() -> float:
    run = attack_dataset(FGSM(Undecided(), epsilon=0.0), (X, Y), batch_size=1)
    assert run.robust.tolist() == [False, True, True, True]
    return float(run.robust_accuracy())


def on_a_curve() -> float:
    return compute_robustness_curve(FGSM, Undecided(), X, Y, [0.0])[0.0]


def of_a_function() -> float:
    """Of the three examples that are right, scaled to all four."""
    return 0.75 * calculate_empirical_robustness(Undecided(), (X, Y), lambda model, x, y, budget: x, 0.0)


@pytest.mark.parametrize("measure", [evaluated, by_autoattack, in_a_run, on_a_curve, of_a_function])
def test_no_winner_counts_as_wrong_and_is_logged_once(
    measure: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pyrobust"):
        assert measure() == 0.75
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1, said
    assert "examples have no predicted class" in said[0]
    assert "count as wrong" in said[0]


def test_tables_count_rows_without_a_winner(tmp_path: Path) -> None:
    class Overflowing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(1))

    model = Overflowing(4, 2)
    with torch.no_grad():
        model.weight.fill_(3e38)  # too much for float32 but for the darkest image
    attacked = attack_dataset(FGSM(Undecided(), epsilon=0.0), (X, Y))
    verified = verify_dataset(model, (X, Y), epsilons=0.1)
    for table, count in ((attack_table(attacked), "25.0 %"), (verification_table(verified), "75.0 %")):
        console = Console(width=100, file=io.StringIO(), record=True)
        console.print(table)
        line = next(line for line in console.export_text().splitlines() if "logits NaN or inf, counted wrong" in line)
        assert count in line
    assert certified_accuracy_ibp(model, (X, Y), 0.0)["certified_accuracy"] == 0
    write_log(attacked, tmp_path / "log.tsv")
    assert read_log(tmp_path / "log.tsv")["predict"].tolist() == [-1, 0, 1, 1]

"""Runs and curves of attacks that leave out what is proved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.attack_runs import Crowd, digits, fitted
from torch import Tensor

from pyrobust.attacks import FAB, AutoAttack, Square
from pyrobust.attacks.certified_first import Proof, Prover
from pyrobust.errors import InputError, ModelError
from pyrobust.evaluation import (
    attack_dataset,
    confirm_curve,
    minimum_norm_curve,
    robustness_curve,
)
from pyrobust.report import attack_table, describe_run, run_summary
from pyrobust.zoo import ImageSet, load_model

IMAGES = 40
EPSILON = 0.02


class Quick(AutoAttack):
    """AutoAttack with a few steps."""

    def __init__(self, model: Any, epsilon: float | Tensor = EPSILON, **options: Any) -> None:
        super().__init__(model, epsilon, **options)
        for each in self.attacks.values():
            each.__dict__["n_queries" if isinstance(each, Square) else "steps"] = 5


def quick(**options: Any) -> AutoAttack:
    return Quick(fitted(), **options)


def test_the_results_are_those_of_a_run_without_proofs_and_say_what_was_proved() -> None:
    first, plain = (
        attack_dataset(quick(**options), digits(16), batch_size=8) for options in ({"certify_first": True}, {})
    )
    for name in ("index", "label", "prediction", "adversarial", "broken_by", "distance"):
        assert np.array_equal(first.table[name], plain.table[name], equal_nan=name == "distance"), name
    assert torch.equal(first.examples(), plain.examples())
    proved = first.table["proved"] == 1
    assert 0 < proved.sum() < 16
    assert (first.table["broken_by"][proved] == "").all()
    assert ((first.table["rows_saved"] > 0) == proved).all()
    assert 0 < first.table["proof_seconds"].sum() <= first.table["seconds"].sum()
    assert (first.header.layout, first.header.guarantee) == ("certified-first", "empirical")
    assert first.parameters["certify_first"] is True
    assert "certify_first" not in first.parameters["settings"]
    assert first.parameters == plain.parameters | {"certify_first": True}
    assert "proved" not in plain.table
    words = "Certified first: images proved robust (deterministic, float32 semantics) are not attacked"
    assert words in describe_run(first)
    rows = {row[0]: row for row in attack_table(first).rows}
    assert rows["proved robust, not attacked"][2] == proved.sum()
    assert float(rows["rows of the model saved, at least"][1].value) == first.table["rows_saved"].sum()
    summary = run_summary(first)["certified_first"]
    assert (summary["proved"], summary["guarantee"]) == (proved.sum(), "deterministic, float32 semantics")
    without = attack_dataset(quick(certify_first=True, dtype=torch.bfloat16), digits(16), max_images=4)
    assert without.table["proved"].sum() == without.table["rows_saved"].sum() == 0


@pytest.mark.usefixtures("unprobed")
def test_a_proof_that_the_model_contradicts_alone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_proved(self: Prover, x: Tensor, *arguments: Any) -> Proof:
        return Proof(torch.ones(len(x), dtype=torch.bool), 0.0, None)

    monkeypatch.setattr(Prover, "prove", all_proved)
    attack = AutoAttack(Crowd(), certify_first=True, attacks_to_run=["square"])
    data = ImageSet("crowd", torch.rand(8, 1, 4, 4), torch.ones(8, dtype=torch.int64))
    with pytest.raises(ModelError, match=r"^crossing: image 0 is proved robust .* and the model misclassifies it"):
        attack_dataset(attack, data)


def test_curves_are_the_same() -> None:
    net, data = load_model("zoo:digits-ibp-0.10"), digits(IMAGES)
    epsilons = [0.0, 0.05, 0.1, 0.15]
    plain, first = (
        robustness_curve(Quick, net, data.x, data.y, epsilons, **options) for options in ({}, {"certify_first": True})
    )
    assert np.array_equal(first.broken_epsilon, plain.broken_epsilon)
    assert first.counts.tolist() == plain.counts.tolist()
    assert plain.proved_epsilon is None
    assert first.proved_epsilon is not None
    assert (first.proved_epsilon < first.broken_epsilon)[first.broken_epsilon > 0].all()
    assert set(first.proved_epsilon) <= set(epsilons)
    assert (first.proved_epsilon > 0).any()
    assert first.forwards is not None
    assert plain.forwards is not None
    assert first.forwards < plain.forwards / 2
    assert first.to_dict()["proved_epsilon"] == first.proved_epsilon.tolist()


def test_confirmations_leave_out_what_is_proved() -> None:
    net, data = fitted(), digits(24)
    curve = minimum_norm_curve(FAB(net, steps=1).minimum(data.x, data.y))
    plain = confirm_curve(curve, Quick(net, 0.04), data.x, data.y)
    first = confirm_curve(curve, Quick(net, 0.04, certify_first=True), data.x, data.y)
    assert np.array_equal(first.broken_epsilon, plain.broken_epsilon)
    (done,), (without,) = first.confirmations, plain.confirmations
    assert (done.examples, done.broken, without.proved) == (without.examples, without.broken, 0)
    assert done.broken > 0
    assert 0 < done.proved <= done.examples - done.broken
    with pytest.raises(InputError, match="one epsilon in linf"):
        confirm_curve(curve, Quick(net, 0.04, norm="l2", certify_first=True), data.x, data.y)

"""Verification of whole data sets by a Lipschitz constant: the same contract as by bound propagation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from example_parameters import example
from sweep_models import same
from verify_models import IMAGES, digits, net, verify

from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError, StoreError
from pyrobust.evaluation import Run
from pyrobust.report import describe_run, verification_table
from pyrobust.runs.kinds.verify import Verify


def test_radii_are_stored(tmp_path: Path) -> None:
    data, model = digits(), net().eval()
    path = tmp_path / "run.db"
    options = {"epsilons": None, "radius": True, "method": "lipschitz", "norm": "l2"}
    run = verify(model, data, **options, out=path)
    expected = BoundedModel(model, data.x[:1]).certified_radius(data.x, data.y, norm="l2", method="lipschitz")
    right = (model(data.x).argmax(1) == data.y).numpy()
    assert np.array_equal(run.table["radius"], np.where(right, expected.numpy(), 0.0))
    assert (run.table["radius"] > 0).sum() > IMAGES // 2
    assert set(run.table["stages"].tolist()) <= {"lipschitz", ""}
    assert run.header.guarantee == "deterministic"
    assert same(Run(path), run)
    assert same(verify(model, data, **options, batch_size=5), run)
    radius = float(np.median(run.table["radius"]))
    assert run.verified_accuracy(radius).successes == (run.table["radius"] >= radius).sum()
    text = str(describe_run(run))
    assert "Lipschitz constant; l2" in text
    assert "Bound propagation" not in text
    assert len(verification_table(run).rows) > 3
    with pytest.raises(StoreError, match="method: 'lipschitz' stored, 'ibp' given"):
        verify(model, data, **(options | {"method": "ibp"}), out=path)


def test_epsilons_and_an_attack() -> None:
    data, model = digits(), net().eval()
    radius = BoundedModel(model, data.x[:1]).certified_radius(data.x, data.y, norm="l2", method="lipschitz")
    epsilons = sorted({float(radius.median()), 1.0})
    run = verify(model, data, epsilons=epsilons, method="lipschitz", norm="l2", attack="pgd")
    found = run.verdicts(epsilons[0])
    proved = found["verdict"] == "verified"
    assert np.array_equal(proved, (radius >= epsilons[0]).numpy())
    assert np.array_equal(proved, found["margin"] > 0)
    assert set(found["stage"][proved].tolist()) == {"lipschitz"}
    assert "falsified" in run.verdicts(1.0)["verdict"]
    assert (run.verdicts(1.0)["stage"] == "attack").any()


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='semantics: expected "real" with method "lipschitz", got \'float32\''):
        verify(method="lipschitz", semantics="float32", out=tmp_path / "run.db")
    assert not (tmp_path / "run.db").exists()
    Verify().check(example("verify") | {"method": "lipschitz"})
    with pytest.raises(ValueError, match="method"):
        Verify().check(example("verify") | {"method": "lip"})

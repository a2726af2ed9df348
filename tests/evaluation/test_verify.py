"""Verification of whole data sets: runs store what the bounded model returns, however the work is split."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.attack_runs import IMAGES, digits, fitted, pgd
from support.sweep_models import same
from support.verify_models import EPSILONS, Brightness, grey, net, verify
from torch import nn

from pyrobust.bounds import BoundedModel, BoundOptions
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.evaluation import attack_dataset, format_log, read_log, write_log
from pyrobust.metrics import estimate_rate
from pyrobust.metrics.distance import is_within
from pyrobust.report import certified_accuracy_table, describe_run, prediction_table, verification_table
from pyrobust.zoo import load_data


@pytest.mark.parametrize(("method", "norm"), [("cascade", "linf"), ("crown-ibp", "l2"), ("ibp", "l1")])
def test_verdicts_equal_those_of_the_bounded_model(method: str, norm: str) -> None:
    data, model = digits(), net().eval()
    epsilons = {"linf": [0.01, 0.05], "l2": [0.01, 0.05], "l1": [0.01, 0.02]}[norm]
    run = verify(model, data, method=method, norm=norm, epsilons=epsilons[::-1], batch_size=5)
    assert run.parameters["epsilons"] == epsilons
    assert run.header.guarantee == "deterministic"
    methods = ("ibp", "crown-ibp", "crown") if method == "cascade" else (method,)
    bounded = BoundedModel(model, data.x[:1])
    best = np.zeros(IMAGES)
    for epsilon in epsilons:
        expected = bounded.verify(data.x, data.y, epsilon, norm=norm, clip=(0.0, 1.0), methods=methods)
        verdicts = run.verdicts(epsilon)
        assert verdicts["verdict"].tolist() == expected.status
        assert verdicts["stage"].tolist() == expected.stage
        assert np.array_equal(verdicts["margin"], expected.margin.numpy(), equal_nan=True)
        best[expected.verified.numpy()] = epsilon
    assert run.table["radius"].tolist() == best.tolist()
    for epsilon in epsilons:
        count = int((best >= epsilon).sum())
        assert run.verified_accuracy(epsilon) == estimate_rate(count, IMAGES)
    assert run.certified_accuracy([0.0, epsilons[0]]).tolist() == [(best > 0).mean(), (best >= epsilons[0]).mean()]
    assert "unknown" in run.verdicts(epsilons[1])["verdict"]


def test_options_are_an_object_or_keywords() -> None:
    options = BoundOptions(norm="l2", method="crown-ibp", clip=(0.0, 1.0), semantics="float32")
    few: dict[str, Any] = {"epsilons": [0.05], "skip": 8}
    run = verify(options=options, **few)
    spelled_out = verify(norm="l2", method="crown-ibp", semantics="float32", **few)
    assert run.header == spelled_out.header
    assert same(run, spelled_out)
    for one, stored in (
        (verify(options=options, method="ibp", clip=None, **few), ["l2", "ibp", None, "float32"]),
        (verify(**few), ["linf", "cascade", [0.0, 1.0], "real"]),
    ):
        assert [one.parameters[name] for name in ("norm", "method", "clip", "semantics")] == stored


def test_radii_are_the_largest_that_a_method_proved() -> None:
    data, model = digits(), net().eval()
    run = verify(model, data, epsilons=None, radius=True, largest=0.06, max_images=8)
    bounded = BoundedModel(model, data.x[:1])
    radii = {
        name: bounded.certified_radius(data.x[:8], data.y[:8], method=name, clip=(0.0, 1.0), largest=0.06).numpy()
        for name in ("ibp", "crown-ibp", "crown")
    }
    right = (model(data.x[:8]).argmax(1) == data.y[:8]).numpy()
    assert np.array_equal(run.table["radius"], np.where(right, np.max(list(radii.values()), axis=0), 0.0))
    assert (run.table["radius"] == 0.06).any()
    for row, stage in enumerate(run.table["stages"].tolist()):
        assert not right[row] or radii[stage][row] == run.table["radius"][row]
    with pytest.raises(InputError, match="expected a run at given epsilons"):
        run.verdicts(0.05)


def test_counterexamples_are_stored_and_valid() -> None:
    data = load_data("digits")
    model = net()
    run = verify(model, data, attack="pgd", skip=8)
    x_adv, index = run.examples(), run.table["index"]
    x, y = data.x[index], data.y[index]
    right = run.correct
    smallest = torch.full((len(run),), torch.inf, dtype=torch.float64)
    for epsilon in reversed(EPSILONS):
        verdicts = run.verdicts(epsilon)
        smallest[torch.from_numpy(verdicts["stage"] == "attack")] = epsilon
        assert ((verdicts["stage"] == "forward") == ~right).all()
    broken = smallest.isfinite()
    assert 3 < int(broken.sum()) < len(run)
    assert bool(is_within(x_adv[broken], x[broken], "linf", smallest[broken]).all())
    assert bool((model(x_adv[broken]).argmax(1) != y[broken]).all())
    assert torch.equal(x_adv[~broken], x[~broken])
    # Falsified images stay falsified at larger epsilons; an attack does not change proofs.
    plain = verify(model, data, skip=8)
    for epsilon in EPSILONS:
        with_attack, without = run.verdicts(epsilon)["verdict"], plain.verdicts(epsilon)["verdict"]
        assert ((with_attack == "falsified") >= (smallest <= epsilon).numpy()).all()
        assert ((with_attack == "verified") == (without == "verified")).all()
    assert not plain.parameters["examples"]
    with pytest.raises(InputError, match=r"got a verification without attack$"):
        plain.examples()


@pytest.mark.usefixtures("unprobed")
def test_an_attack_that_breaks_a_certificate_is_a_bug(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model computes something else for a single image, which its capture misses; the bounds hold for the batch."""
    for comparison in ("_compare", "_compare_values"):
        monkeypatch.setattr(f"pyrobust.bounds.graph.capture.{comparison}", lambda *_: None)
    data = grey(0.75, 0.25)
    assert verify(Brightness(), data, epsilons=[0.2], attack="pgd").verified_accuracy(0.2).successes == 2
    # Alone, the margin of the first image is 2·0.75 − 1 − 0.2 = 0.3, and falls by 2·0.2 within the ball.
    path = tmp_path / "run.db"
    with pytest.raises(ModelError, match=r"image 0 is certified at 0.2 in linf .*broke it at distance 0.1999"):
        verify(Brightness(0.2), data, epsilons=[0.2], attack="pgd", out=path)
    assert not path.exists(), "no result of the chunk is stored"
    assert verify(Brightness(0.2), data, epsilons=[0.2]).verified_accuracy(0.2).successes == 2
    # Behind by no more than the rounding error of logits of 8: the exact network may be right.
    close, options = grey(0.7502), {"epsilons": [0.25], "attack": "pgd"}
    with caplog.at_level(logging.WARNING, logger="pyrobust"):
        run = verify(Brightness(1e-3), close, **options)
    assert run.verdicts(0.25)["verdict"].tolist() == ["verified"]
    assert "own rounding" in caplog.text
    with pytest.raises(ModelError, match="crossing"):
        verify(Brightness(1e-3), close, semantics="float32", **options)


def test_models_keep_their_mode_and_may_be_float64() -> None:
    model = net().train()
    run = verify(model, skip=8, attack="pgd", sound=False)
    assert all(module.training for module in model.modules())
    assert (run.header.guarantee, run.parameters["sound"]) == ("none", False)
    assert "NOT SOUND" in "\n".join(verification_table(run).notes)
    wide = verify(net().double(), skip=8)
    assert wide.parameters["dtype"] == "float64"
    assert np.array_equal(wide.table["prediction"], run.table["prediction"])


def test_tables_and_the_log(tmp_path: Path) -> None:
    run = verify(model := fitted(), digits(), attack="pgd")
    write_log(run, tmp_path / "log.tsv")
    assert np.array_equal(read_log(tmp_path / "log.tsv")["radius"], run.table["radius"])
    assert format_log(run).splitlines()[0].split() == ["idx", "label", "predict", "radius", "correct", "time"]
    cells = [[str(cell) for cell in column] for column in zip(*verification_table(run).rows, strict=True)]
    for epsilon in EPSILONS:
        row = cells[0].index(f"verified at linf epsilon {epsilon:g}")
        assert cells[2][cells[0].index("unknown", row)] == str((run.verdicts(epsilon)["verdict"] == "unknown").sum())
    searched = verify(model, epsilons=None, radius=True, max_images=8)
    names = [row[0] for row in verification_table(searched).rows]
    assert 5 <= sum(str(name).startswith("verified at") for name in names) <= 12
    with pytest.raises(InputError, match="use verification_table"):
        prediction_table(run)
    assert len(certified_accuracy_table(run, [0.01]).rows) == 6
    assert len(verification_table(verify(model, data=(digits().x[:1], digits().y[:1] + 1), epsilons=0.1)).rows) > 3


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"epsilons": None}, InputError, "epsilons: expected either epsilons or radius, got neither"),
        ({"radius": True}, InputError, "epsilons: expected either epsilons or radius, got both"),
        ({"radius": 1}, InputTypeError, "radius: expected True or False"),
        ({"epsilons": []}, InputError, "epsilons: expected positive numbers, each once"),
        ({"epsilons": None, "radius": True, "largest": -1}, InputError, "largest: expected a finite number"),
        ({"epsilons": None, "radius": True, "attack": "pgd"}, InputError, "attack: expected none without epsilons"),
        ({"attack": "magic"}, InputError, "attack: expected pgd or None, got 'magic'"),
        ({"method": "beta-crown"}, InputError, "method: expected one of ibp, crown-ibp, crown, alpha-crown, lipschitz"),
        ({"iterations": 5}, InputError, "iterations, time_limit: expected none for a run"),
        ({"clip": (0.0, 0.5)}, InputError, r"data: digits: expected pixels in \[0.0, 0.5\], the clip range"),
        (
            {"method": "lipschitz", "semantics": "float32"},
            InputError,
            'expected "real" with method "lipschitz"',
        ),
        ({"epsilon": 0.1}, InputTypeError, r"argument 'epsilon' \(did you mean 'epsilons'\?\)"),
        ({"model": lambda x: x}, InputTypeError, "model: expected a torch.nn.Module"),
        ({"model": nn.Linear(3, 2)}, ModelError, "model: its forward pass failed on inputs .*: RuntimeError: mat1"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}, InputError, "expected labels of 0 to 2"),
        ({"model": nn.Linear(8, 2).half()}, InputTypeError, "model: expected parameters of float32 or float64"),
        ({"seed": -1, "attack": "pgd"}, InputError, "seed: expected"),
    ],
)
def test_bad_input_leaves_no_file(tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        verify(**({"out": tmp_path / "run.db"} | changes))
    assert list(tmp_path.iterdir()) == []


def test_other_kinds_have_no_verdicts() -> None:
    run = attack_dataset(pgd(), digits())
    verified = verify(epsilons=0.02, skip=8)
    for call, words in (
        (lambda: run.verdicts(0.1), "verdicts: expected a run of kind verify, got attack"),
        (lambda: run.verified_accuracy(0.1), "verified_accuracy: expected a run of kind verify"),
        (lambda: verification_table(run), "run: expected a run of kind verify, got attack"),
        (lambda: verified.verified_accuracy(0.0), "epsilon: expected a finite number above 0"),
        (lambda: verified.robust, "robust: expected a run of kind attack"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_lipschitz_radii_are_stored() -> None:
    data, model = digits(), fitted()
    run = verify(model, data, epsilons=None, radius=True, method="lipschitz", norm="l2")
    proved = BoundedModel(model, data.x[:1]).certified_radius(data.x, data.y, norm="l2", method="lipschitz")
    right = (model(data.x).argmax(1) == data.y).numpy()
    assert np.array_equal(run.table["radius"], np.where(right, proved.numpy(), 0.0))
    assert (run.table["radius"] > 0).sum() > IMAGES // 2
    assert set(run.table["stages"].tolist()) <= {"lipschitz", ""}
    radius = float(np.median(run.table["radius"]))
    assert run.verified_accuracy(radius).successes == (run.table["radius"] >= radius).sum()
    text = str(describe_run(run))
    assert "Lipschitz constant; l2" in text
    assert "Bound propagation" not in text
    assert len(verification_table(run).rows) > 3
    # At epsilons, and beside an attack.
    epsilons = sorted({float(proved.median()), 1.0})
    run = verify(model, data, epsilons=epsilons, method="lipschitz", norm="l2", attack="pgd")
    verdicts = run.verdicts(epsilons[0])
    verified = verdicts["verdict"] == "verified"
    assert np.array_equal(verified, (proved >= epsilons[0]).numpy())
    assert np.array_equal(verified, verdicts["margin"] > 0)
    assert set(verdicts["stage"][verified].tolist()) == {"lipschitz"}
    assert "falsified" in run.verdicts(1.0)["verdict"]
    assert (run.verdicts(1.0)["stage"] == "attack").any()

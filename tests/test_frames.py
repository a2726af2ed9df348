"""Results as data frames and as HTML, and objects as text."""

from __future__ import annotations

import copy
import dataclasses
import html
import pickle
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pyrobust
from pyrobust.bounds.differentiable import DifferentiableBounds
from pyrobust.errors import InputError, MissingExtraError
from pyrobust.frames import plain_fields
from pyrobust.metrics import survival_curve
from pyrobust.ops import grid_noise
from pyrobust.report import Column, Quantity, ReportTable
from pyrobust.smoothing import plan
from pyrobust.zoo import load_data, load_model

MODEL, DATA = "zoo:digits-smooth-0.25", load_data("digits")
X, Y = DATA.x[:12], DATA.y[:12]
NAMES = (
    *("Certificates", "Predictions", "Run", "Bounds", "Verdicts", "LipschitzBound", "RobustnessCurve", "SurvivalCurve"),
    *("Plan", "AutoAttackResult", "ReportTable"),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One result of each kind, of twelve images where it has images."""
    net, path = load_model(MODEL), tmp_path_factory.mktemp("run") / "run.db"
    smoother = pyrobust.RandomizedSmoothing(net, 10, 0.25, grid="auto")
    bounded = pyrobust.BoundedModel(net, DATA.x[:1])
    attack = pyrobust.AutoAttack(net, 0.1, attacks_to_run=["apgd-ce"])
    attack.generate(X, Y)
    run = pyrobust.certify_dataset(smoother, DATA, n=50, max_images=12, out=path)
    log = pyrobust.read_certification_log(path)
    many = np.linspace(0, 0.3, 60).tolist()
    made = [
        smoother.certify_batch(X, n=50, radii=[0.1, 0.2]),
        smoother.predict_batch(X, n=50),
        run,
        bounded.bounds(X, 0.01, method="ibp"),
        bounded.verify(X, Y, 0.01, method="ibp"),
        pyrobust.lipschitz_bound(net, DATA.x[:1], norm="linf"),
        pyrobust.robustness_curve(pyrobust.FGSM, net, X, Y, [0.0, 0.1]),
        survival_curve(np.arange(12), 100, np.ones(12, dtype=bool)),
        plan([0.9, 0.99], 0.25, [0.1, 0.25], n_max=1000),
        attack.result,
        ReportTable("T", (Column("a"), Column("b")), (((1, Quantity(0.5, 0.25, 0.75)),),), ("note",)),
        log,
        pyrobust.audit(log),
        pyrobust.FAB(net, 0.1, steps=2).minimum(X, Y),
        grid_noise(0.25, Fraction(1, 255)),
    ]
    named: dict[str, Any] = {type(result).__name__: result for result in made}
    assert set(NAMES) < set(named)
    return named | {"sequential": smoother.certify_batch(X, n=50, method="sequential", radii=many)}


@pytest.mark.parametrize("name", NAMES)
def test_results_are_frames_and_html(results: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="the extra pandas")
    result = results[name]
    frame = result.to_pandas()
    assert len(frame) > 0
    page = result._repr_html_()
    assert page.count("<tr>") - 1 == min(len(frame), 10)
    assert ("rows</p>" in page) is (len(frame) > 10)
    if name != "ReportTable":
        assert html.escape(repr(result)) in page
        assert all(f"<th>{html.escape(column)}</th>" in page for column in frame.columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r'^to_pandas: needs pandas; install it with .*"pyrobust\[pandas\]"'):
        result.to_pandas()
    assert result._repr_html_() == page


def test_frames_hold_the_columns_and_their_parameters(results: dict[str, Any]) -> None:
    pytest.importorskip("pandas", reason="the extra pandas")
    bounds: Any = results["Bounds"]
    frame = bounds.to_pandas()
    assert frame[(frame.set == 1) & (frame.row == 3)].lower.item() == float(bounds.lower[1, 3])
    assert frame.attrs["method"] == "ibp"
    table = results["ReportTable"].to_pandas()
    assert table.to_dict("list") == {"a": [1], "b": [0.5], "b lower": [0.25], "b upper": [0.75]}
    assert table.attrs["notes"] == ["note"]
    assert len(results["Plan"].to_pandas()) == 3 * 2


def test_html_escapes_every_text() -> None:
    table = ReportTable("<t>", (Column("<c>"),), ((("<cell>",),),), ("<note>",))
    assert not re.search("<(t|c|cell|note)>", table._repr_html_())


def test_objects_show_what_they_are_made_of(results: dict[str, Any]) -> None:
    net = load_model(MODEL)
    smoother = pyrobust.RandomizedSmoothing(net, 10, 0.25, grid="1/16", seed=3)
    assert repr(smoother) == (
        "RandomizedSmoothing(model='Sequential', num_classes=10, sigma=0.25, noise='gaussian', norm='l2', seed=3, "
        "grid='1/16', device='cpu', dtype='float32')"
    )
    bounded = pyrobust.BoundedModel(net, DATA.x[:1], engine="torch")
    assert repr(bounded) == (
        "BoundedModel(model='Sequential', shape=(1, 8, 8), outputs=10, layers=9, engine='torch', device='cpu')"
    )
    assert repr(DifferentiableBounds(net, DATA.x[:1])) == (
        "DifferentiableBounds(model='Sequential', shape=(1, 8, 8), outputs=10)"
    )
    assert repr(DATA) == "ImageSet(name='digits', images=382, shape=(1, 8, 8), classes=10)"


def test_repr_of_a_result_is_one_line_without_arrays(results: dict[str, Any]) -> None:
    assert not [name for name, result in results.items() if " object at 0x" in repr(result)]
    for name in sorted(set(results) - {"LipschitzBound", "Plan", "ReportTable"}):
        shown = repr(results[name]).replace(str(Path(getattr(results[name], "path", None) or "-")), "")
        assert shown.startswith(f"{type(results[name]).__name__}(")
        assert "12" in shown or name == "GridNoise"
        assert not [word for word in ("array", "tensor", "\n") if word in shown]
        assert len(shown) < 320, shown


def test_repr_of_certificates_and_verdicts(results: dict[str, Any]) -> None:
    for result in (results["Certificates"], results["sequential"]):
        shown = repr(result)
        assert f"images=12, certified={(result.prediction >= 0).sum()}, " in shown
        assert "sigma=0.25, norm='l2', guarantee='grid', grid='1/16'" in shown
        assert "n0=100, n=50, alpha=0.001, seed=0, keyed_by='values'" in shown
        assert ("certified_at={0.1: " in shown) == (len(result.radii) == 2)
    verdicts = results["Verdicts"]
    assert repr(verdicts) == (
        f"Verdicts(examples=12, verified={int(verdicts.verified.sum())}, "
        f"falsified={int(verdicts.falsified.sum())}, unknown={verdicts.status.count('unknown')})"
    )


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_bounded_model_is_pickled_with_its_engine(engine: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.rand(5, 4)
    bounded = pyrobust.BoundedModel(net, x, engine=engine)
    net.train()  # the mode is no part of the bounds
    for again in (pickle.loads(pickle.dumps(bounded)), copy.deepcopy(bounded)):
        assert again.model.training
        assert repr(again) == repr(bounded)
        net.eval(), again.model.eval()
        for method in ("ibp", "crown", "lipschitz"):
            ours, theirs = (model.bounds(x, 0.1, method=method) for model in (bounded, again))
            assert torch.equal(ours.lower, theirs.lower)
            assert torch.equal(ours.upper, theirs.upper)
        net.train()
    net[0].weight.data[0, 0] += 1
    with pytest.raises(InputError, match="model: expected the parameters of the capture"):
        pickle.dumps(bounded)


def test_fields_become_plain_values():
    pair = dataclasses.make_dataclass("Pair", ["first", "second"])
    inner = pair(torch.tensor([1, 2]), {"key": (pair(0.5, None), "text")})
    assert plain_fields(pair(inner, [inner.first])) == {
        "first": {"first": [1, 2], "second": {"key": ({"first": 0.5, "second": None}, "text")}},
        "second": [[1, 2]],
    }

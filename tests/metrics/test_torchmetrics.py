"""The torchmetrics metrics against the functions, by batches and by processes."""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from metric_cases import CASES, batches, concatenated, updated, value_of

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError, MissingExtraError

torchmetrics = pytest.importorskip("torchmetrics", reason="the extra torchmetrics")
from pyrobust.metrics import torchmetrics as metric_classes  # noqa: E402

MEANS = [name for name in CASES if issubclass(getattr(metric_classes, name), metric_classes.MeanMetric)]
COUNTED = [name for name in CASES if issubclass(getattr(metric_classes, name), metric_classes.CountedMetric)]


def expected(name, parts):
    return pytest.approx(float(value_of(name, parts)), rel=1e-12)


def rate_of(name, parts):
    value, n = value_of(name, parts), sum(len(part["labels"]) for part in parts)
    # Metrics of Lipschitz constants return only the share.
    return metrics.estimate_rate(round(float(value) * n), n) if isinstance(value, torch.Tensor) else value


def test_every_metric_has_a_case():
    assert set(CASES) | {"CountedMetric", "MeanMetric"} == set(metric_classes.__all__)
    assert len(COUNTED) == 10


@pytest.mark.parametrize("name", CASES)
def test_batches_give_the_functions_value(name):
    parts = batches()
    metric = updated(name, parts)
    value = metric.compute()
    assert value.dtype == torch.float64
    assert value.shape == ()
    assert float(value) == expected(name, parts)
    assert float(updated(name, [concatenated(parts)]).compute()) == expected(name, parts)
    assert float(updated(name, parts[::-1]).compute()) == expected(name, parts)
    assert float(pickle.loads(pickle.dumps(metric)).compute()) == expected(name, parts)
    if name in COUNTED:
        assert metric.rate() == rate_of(name, parts)
        assert metric.rate(0.2).alpha == 0.2
    metric.reset()
    arguments = [parts[0][column] for column in CASES[name][1]]
    # Calling a metric returns the value of the batch and updates the state.
    assert float(metric(*arguments)) == expected(name, parts[:1])
    assert float(metric.compute()) == expected(name, parts[:1])


def test_states_are_sums():
    """Only one metric keeps examples; all others have states of constant size."""
    lists = [name for name in CASES if any(isinstance(d, list) for d in updated(name, [])._defaults.values())]
    assert lists == ["PerturbationQuantile"]
    for name in set(CASES) - set(lists):
        assert set(updated(name, [])._reductions.values()) == {torchmetrics.utilities.dim_zero_sum}


def test_metrics_reduce_over_two_processes(tmp_path):
    """Each process updates its own batches and computes the function's value on all of them."""
    script = Path(__file__).parent / "metric_processes.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr
    parts = batches()
    for rank, own in ((0, parts[:1]), (1, parts[1:])):
        results = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(results) == set(CASES)
        for name, result in results.items():
            assert result["value"] == expected(name, parts), (rank, name)
            assert result["value of the second's"] == expected(name, parts), (rank, name)
            if name in COUNTED:
                assert result["rate"] == rate_of(name, parts).to_dict()
                assert result["own"] == int(updated(name, own).total)


def test_metrics_accept_logits():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [math.nan, 1.0]])
    labels = torch.tensor([0, 0, 1])
    metric = metric_classes.RobustAccuracy()
    metric.update(logits, logits.flip(1), labels)
    assert metric.rate() == metrics.robust_accuracy(torch.tensor([0, 1, -1]), torch.tensor([1, 0, -1]), labels)


def test_gpu(cuda):
    for name, (_, columns, _) in CASES.items():
        metric = updated(name, []).to(cuda)
        for part in batches():
            metric.update(*(part[column].to(cuda) for column in columns))
        value = metric.compute()
        assert value.device == cuda
        assert float(value) == expected(name, batches())


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_to_compute():
    for name in set(CASES) - set(MEANS):
        with pytest.raises(InputError, match="compute: expected at least one example, got none; call update first"):
            updated(name, []).compute()
    nothing_right = metric_classes.SuccessRateOnCorrect()
    nothing_right.update(torch.tensor([1]), torch.tensor([1]), torch.tensor([0]))
    with pytest.raises(InputError, match="compute: expected at least one example"):
        nothing_right.rate()
    failed = metric_classes.MeanDistance()
    failed.update(torch.tensor([0.5]), torch.tensor([False]))
    assert math.isnan(failed.compute())


def test_bad_arguments():
    votes, flags = torch.tensor([11]), torch.tensor([True])
    for make, error, match in [
        (lambda: metric_classes.CertifiedAccuracy(-0.5), InputError, "at: expected a finite number of at least 0"),
        (lambda: metric_classes.CertificationGap(-0.5), InputError, "at: expected a finite number of at least 0"),
        (lambda: metric_classes.PerturbationQuantile(1.5), InputError, r"q: expected shares in \[0, 1\]"),
        (
            lambda: metric_classes.BinaryProvableRobustAccuracy(-1.0),
            InputError,
            "epsilon: expected a finite number of at least 0",
        ),
        (lambda: metric_classes.SurvivalArea(0), InputError, "n: expected 1 to"),
        (lambda: metric_classes.SurvivalQuantile(10, -0.5), InputError, r"q: expected shares in \[0, 1\]"),
        (lambda: metric_classes.HardShare(10, 0.5), InputError, r"below: expected a number in \(0.5, 1\]"),
        (lambda: metric_classes.CleanAccuracy().update("0", [0]), InputTypeError, "clean: expected a tensor"),
        (
            lambda: metric_classes.ShareBelowHalf(10).update(votes, flags),
            InputError,
            "votes: expected least <= votes <= most <= n",
        ),
        (
            lambda: metric_classes.CertificationGap(0.5).update(flags, torch.rand(2), flags.expand(2)),
            InputError,
            "robust: expected one for each of the 2 examples, got 1",
        ),
    ]:
        with pytest.raises(error, match=match):
            make()


def test_missing_torchmetrics_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    for name in ("pyrobust.metrics.torchmetrics.base", "pyrobust.metrics.torchmetrics"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r'pip install "pyrobust\[torchmetrics\]"$'):
        importlib.import_module("pyrobust.metrics.torchmetrics")

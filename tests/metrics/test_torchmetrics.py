"""The torchmetrics twins: what the functions give, by batches and by processes."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from metric_cases import CASES, batches, fed, together

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError

torchmetrics = pytest.importorskip("torchmetrics", reason="the extra torchmetrics")
from pyrobust.metrics import torchmetrics as twins  # noqa: E402

TRUE = torch.tensor([True, True])
MEANS = [name for name in CASES if issubclass(getattr(twins, name), twins.MeanMetric)]
COUNTED = [name for name in CASES if issubclass(getattr(twins, name), twins.CountedMetric)]


def expected(name, parts):
    return pytest.approx(float(CASES[name][2](together(parts))), rel=1e-12)


def rate_of(name, parts):
    columns = together(parts)
    value, n = CASES[name][2](columns), len(columns["labels"])
    # Those of Lipschitz constants are functions that return a share alone.
    return metrics.estimate_rate(round(float(value) * n), n) if isinstance(value, torch.Tensor) else value


def test_there_is_a_case_for_each():
    assert set(CASES) | {"CountedMetric", "MeanMetric"} == set(twins.__all__)
    assert len(COUNTED) == 10


@pytest.mark.parametrize("name", CASES)
def test_batches_add_up(name):
    parts = batches()
    metric = fed(name, parts)
    value = metric.compute()
    assert value.dtype == torch.float64
    assert value.shape == ()
    assert float(value) == expected(name, parts)
    assert float(fed(name, [together(parts)]).compute()) == expected(name, parts)
    assert float(fed(name, parts[::-1]).compute()) == expected(name, parts)
    assert float(pickle.loads(pickle.dumps(metric)).compute()) == expected(name, parts)
    metric.reset()
    arguments = [parts[0][column] for column in CASES[name][1]]
    # Called, a metric gives the value of the batch and keeps it.
    assert float(metric(*arguments)) == expected(name, parts[:1])
    assert float(metric.compute()) == expected(name, parts[:1])


@pytest.mark.parametrize("name", COUNTED)
def test_rates_have_the_functions_interval(name):
    parts = batches()
    assert fed(name, parts).rate() == rate_of(name, parts)
    assert fed(name, parts).rate(0.2).alpha == 0.2


def test_states_are_sums():
    """One keeps examples; all others take the same room however many there are."""
    lists = [name for name in CASES if any(isinstance(d, list) for d in fed(name, [])._defaults.values())]
    assert lists == ["PerturbationQuantile"]
    for name in set(CASES) - set(lists):
        assert set(fed(name, [])._reductions.values()) == {torchmetrics.utilities.dim_zero_sum}


def test_two_processes(tmp_path):
    """Each sees its own batches and finds what the function finds of all of them."""
    script = Path(__file__).parent / "metric_processes.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr
    parts = batches()
    for rank, own in ((0, parts[:1]), (1, parts[1:])):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(found) == set(CASES)
        for name, result in found.items():
            assert result["value"] == expected(name, parts), (rank, name)
            assert result["value of the second's"] == expected(name, parts), (rank, name)
            if name in COUNTED:
                assert result["rate"] == rate_of(name, parts).to_dict()
                assert result["own"] == int(fed(name, own).total)


def test_logits_do_as_well():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [math.nan, 1.0]])
    labels = torch.tensor([0, 0, 1])
    metric = twins.RobustAccuracy()
    metric.update(logits, logits.flip(1), labels)
    assert metric.rate() == metrics.robust_accuracy(torch.tensor([0, 1, -1]), torch.tensor([1, 0, -1]), labels)


def test_a_collection():
    parts = batches()
    both = torchmetrics.MetricCollection([twins.CleanAccuracy(), twins.StandardRisk()])
    for part in parts:
        both.update(part["clean"], part["labels"])
    assert {name: float(value) for name, value in both.compute().items()} == {
        name: expected(name, parts) for name in ("CleanAccuracy", "StandardRisk")
    }


def test_gpu(cuda):
    for name, (_, columns, _) in CASES.items():
        metric = fed(name, []).to(cuda)
        for part in batches():
            metric.update(*(part[column].to(cuda) for column in columns))
        value = metric.compute()
        assert value.device == cuda
        assert float(value) == expected(name, batches())


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_to_compute():
    for name in set(CASES) - set(MEANS):
        with pytest.raises(InputError, match="compute: expected at least one example, got none; call update first"):
            fed(name, []).compute()
    nothing_right = twins.AttackSuccessRateGivenCorrect()
    nothing_right.update(torch.tensor([1]), torch.tensor([1]), torch.tensor([0]))
    with pytest.raises(InputError, match="compute: expected at least one example"):
        nothing_right.rate()
    failed = twins.MeanDistance()
    failed.update(torch.tensor([0.5]), torch.tensor([False]))
    assert math.isnan(failed.compute())


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: twins.CertifiedAccuracy(-0.5), InputError, "at: expected a finite number of at least 0"),
        (lambda: twins.CertificationGap("0.5"), InputTypeError, "at: expected a number"),
        (lambda: twins.PerturbationQuantile(1.5), InputError, r"q: expected shares in \[0, 1\]"),
        (
            lambda: twins.BinaryProvableRobustAccuracy(-1.0),
            InputError,
            "epsilon: expected a finite number of at least 0",
        ),
        (
            lambda: twins.CategoricalProvableAvgRobustness().update([0], [0]),
            InputTypeError,
            "logits: expected a tensor",
        ),
        (lambda: twins.SurvivalArea(0), InputError, "n: expected 1 to"),
        (lambda: twins.SurvivalQuantile(10, -0.5), InputError, r"q: expected shares in \[0, 1\]"),
        (lambda: twins.HardShare(10, 0.5), InputError, r"below: expected a number in \(0.5, 1\]"),
        (lambda: twins.CleanAccuracy().update([0], [0]), InputTypeError, "clean: expected a tensor"),
        (
            lambda: twins.ShareBelowHalf(10).update(torch.tensor([11]), torch.tensor([True])),
            InputError,
            "votes: expected least <= votes <= most <= n",
        ),
        (
            lambda: twins.CertificationGap(0.5).update(TRUE[:1], torch.rand(2), TRUE),
            InputError,
            "robust: expected one for each of the 2 examples, got 1",
        ),
    ],
)
def test_bad_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_a_missing_package_is_named():
    code = """
import sys
sys.modules["torchmetrics"] = None
import pyrobust
from pyrobust.errors import MissingExtraError
try:
    import pyrobust.metrics.torchmetrics
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith('pip install "pyrobust[torchmetrics]"'), done.stderr

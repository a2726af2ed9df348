"""The torchmetrics metrics against the functions, by batches and by processes."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError, MissingExtraError

torchmetrics = pytest.importorskip("torchmetrics", reason="the extra torchmetrics")
from pyrobust.metrics import torchmetrics as metric_classes

SIZES = (7, 1, 12, 20)
SAMPLES = 200


def batches():
    """Columns by name, one dictionary per batch; the second batch has no correct example."""
    generator = torch.Generator().manual_seed(3)
    other = torch.Generator().manual_seed(4)
    batches = []
    for size in SIZES:
        labels = torch.randint(0, 3, (size,), generator=generator)
        shift = torch.randint(0, 2, (3, size), generator=generator)
        if size == 1:
            shift[0] = 1
        correct = shift[2] == 0
        batches.append(
            {
                "clean": (labels + shift[0]) % 3,
                "adversarial": (labels + shift[1]) % 3,
                "labels": labels,
                "distances": torch.rand(size, generator=generator),
                "success": shift[1] == 1,
                "radius": torch.rand(size, generator=generator, dtype=torch.float64) * correct,
                "correct": correct,
                "robust": shift[0] == 0,
                "votes": torch.randint(90, SAMPLES + 1, (size,), generator=generator),
                "logits": torch.randn(size, 3, generator=other),
                "logit": torch.randn(size, 1, generator=other),
                "side": torch.randint(0, 2, (size,), generator=other),
            }
        )
    return batches


def gap(robust, radius, correct):
    attacked = metrics.estimate_rate(int(robust.sum()), len(robust))
    return metrics.certification_gap(attacked, metrics.certified_accuracy(radius, correct, [0.4])[0])


PREDICTIONS = ("clean", "adversarial", "labels")
RADII = ("radius", "correct")
VOTES = ("votes", "correct")
LOGITS = ("logits", "labels")

# Name: arguments of the class, columns for `update`, function of these columns, or None for the object of that name.
CASES = {
    "CleanAccuracy": ({}, ("clean", "labels"), metrics.clean_accuracy),
    "StandardRisk": ({}, ("clean", "labels"), metrics.standard_risk),
    "RobustAccuracy": ({}, PREDICTIONS, metrics.robust_accuracy),
    "RobustRisk": ({}, PREDICTIONS, metrics.robust_risk),
    "AttackSuccessRate": ({}, PREDICTIONS, metrics.attack_success_rate),
    "SuccessRateOnCorrect": ({}, PREDICTIONS, metrics.success_rate_on_correct),
    "TargetedSuccessRate": ({}, ("adversarial", "labels"), metrics.targeted_success_rate),
    "MeanDistance": ({}, ("distances", "success"), metrics.mean_distance),
    "PerturbationQuantile": ({"q": 0.3}, ("distances",), lambda d: metrics.perturbation_quantiles(d, [0.3])[0]),
    "CertifiedAccuracy": ({"at": 0.4}, RADII, lambda r, c: metrics.certified_accuracy(r, c, [0.4])[0]),
    "CertificationGap": ({"at": 0.4}, ("robust", *RADII), gap),
    "AverageRadius": ({}, RADII, metrics.average_radius),
    "AverageCertifiedRadius": ({}, RADII, metrics.average_certified_radius),
    "BinaryProvableRobustAccuracy": ({"epsilon": 0.3, "lip_const": 2.0}, ("logit", "side"), None),
    "BinaryProvableAvgRobustness": ({"negative_robustness": True}, ("logit", "side"), None),
    "CategoricalProvableRobustAccuracy": ({"epsilon": 0.3, "disjoint_neurons": False}, LOGITS, None),
    "CategoricalProvableAvgRobustness": ({"lip_const": 3.0}, LOGITS, None),
    "SurvivalArea": ({"n": SAMPLES}, VOTES, lambda v, c: metrics.survival_curve(v, SAMPLES, c).area),
    "ShareBelowHalf": ({"n": SAMPLES}, VOTES, lambda v, c: metrics.survival_curve(v, SAMPLES, c).share_below_half),
    "HardShare": (
        {"n": SAMPLES, "below": 0.8},
        VOTES,
        lambda v, c: metrics.survival_curve(v, SAMPLES, c).hard_share(0.8),
    ),
    "SurvivalQuantile": (
        {"n": SAMPLES, "q": 0.7},
        VOTES,
        lambda v, c: metrics.survival_curve(v, SAMPLES, c).quantiles([0.7])[0],
    ),
}


def value_of(name, parts):
    """The function's value on all of these batches."""
    arguments, columns, function = CASES[name]
    joined = {column: torch.cat([batch[column] for batch in parts]) for column in columns}
    return (function or getattr(metrics, name)(**arguments))(*(joined[column] for column in columns))


def updated(name, parts):
    """The metric after these batches."""
    arguments, columns, _ = CASES[name]
    metric = getattr(metric_classes, name)(**arguments)
    for batch in parts:
        metric.update(*(batch[column] for column in columns))
    return metric


COUNTED = [name for name in CASES if issubclass(getattr(metric_classes, name), metric_classes.CountedMetric)]


def expected(name, parts):
    return pytest.approx(float(value_of(name, parts)), rel=1e-12)


def rate_of(name, parts):
    value, n = value_of(name, parts), sum(len(batch["labels"]) for batch in parts)
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


def work(rank, folder):
    """One of two processes: the first batch for one, the others for the other; then all for one and none for the other.

    Writes the results to a file, because an exception of pytest would not leave the process.
    """
    torch.set_num_threads(1)  # the threads of the parent are not here
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for name in CASES:
        metric = updated(name, batches()[1:] if rank else batches()[:1])
        results[name] = {"value": float(metric.compute())}
        if name in COUNTED:
            # After gathering, the process continues with its own counts.
            results[name] |= {"rate": metric.rate().to_dict(), "own": int(metric.total)}
        results[name]["value of the second's"] = float(updated(name, batches() if rank else []).compute())
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def test_metrics_reduce_over_two_processes(tmp_path, monkeypatch):
    """Each process updates its own batches and computes the function's value on all of them."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    mp.start_processes(work, (tmp_path,), nprocs=2, start_method="fork")  # without another import of torch
    parts = batches()
    for rank, rank_parts in ((0, parts[:1]), (1, parts[1:])):
        results = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(results) == set(CASES)
        for name, result in results.items():
            assert result["value"] == expected(name, parts), (rank, name)
            assert result["value of the second's"] == expected(name, parts), (rank, name)
            if name in COUNTED:
                assert result["rate"] == rate_of(name, parts).to_dict()
                assert result["own"] == int(updated(name, rank_parts).total)


def test_metrics_accept_logits():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [math.nan, 1.0]])
    labels = torch.tensor([0, 0, 1])
    metric = metric_classes.RobustAccuracy()
    metric.update(logits, logits.flip(1), labels)
    assert metric.rate() == metrics.robust_accuracy(torch.tensor([0, 1, -1]), torch.tensor([1, 0, -1]), labels)


def test_gpu(cuda):
    for name, (_, columns, _) in CASES.items():
        metric = updated(name, []).to(cuda)
        for batch in batches():
            metric.update(*(batch[column].to(cuda) for column in columns))
        value = metric.compute()
        assert value.device == cuda
        assert float(value) == expected(name, batches())


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_to_compute():
    means = {name for name in CASES if issubclass(getattr(metric_classes, name), metric_classes.MeanMetric)}
    for name in set(CASES) - means:
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
    for make, match in [
        (lambda: metric_classes.CertifiedAccuracy(-0.5), "at: expected a finite number of at least 0"),
        (lambda: metric_classes.CertificationGap(-0.5), "at: expected a finite number of at least 0"),
        (lambda: metric_classes.PerturbationQuantile(1.5), r"q: expected shares in \[0, 1\]"),
        (lambda: metric_classes.BinaryProvableRobustAccuracy(-1.0), "epsilon: expected a finite number of at least 0"),
        (lambda: metric_classes.SurvivalArea(0), "n: expected 1 to"),
        (lambda: metric_classes.SurvivalQuantile(10, -0.5), r"q: expected shares in \[0, 1\]"),
        (lambda: metric_classes.HardShare(10, 0.5), r"below: expected a number in \(0.5, 1\]"),
        (lambda: metric_classes.ShareBelowHalf(10).update(votes, flags), "votes: expected least <= votes <= most <= n"),
        (
            lambda: metric_classes.CertificationGap(0.5).update(flags, torch.rand(2), flags.expand(2)),
            "robust: .* got 1",
        ),
    ]:
        with pytest.raises(InputError, match=match):
            make()
    with pytest.raises(InputTypeError, match="clean: expected a tensor"):
        metric_classes.CleanAccuracy().update("0", [0])


def test_missing_torchmetrics_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    for name in ("pyrobust.metrics.torchmetrics.base", "pyrobust.metrics.torchmetrics"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r'pip install "pyrobust\[torchmetrics\]"$'):
        importlib.import_module("pyrobust.metrics.torchmetrics")

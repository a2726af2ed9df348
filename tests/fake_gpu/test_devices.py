"""Everything that runs a model, and metrics, on a GPU or on devices that differ: the CPU's results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attack_models import shortened
from support.fake_cuda import FakeCuda, FakeTensor, MixedDevicesError
from support.gpu_nets import labelled, small_net
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

import pyrobust
import pyrobust.compat.robustbench as robustbench
import pyrobust.compat.torchattacks as torchattacks
from pyrobust import BoundedModel, RandomizedSmoothing, metrics
from pyrobust.attacks import EOT, AutoAttack, diagnose
from pyrobust.attacks.catalogue import CATALOGUE
from pyrobust.attacks.diagnosis import surrogate, trials
from pyrobust.attacks.minimum import ensemble
from pyrobust.bounds import DifferentiableBounds
from pyrobust.compat.autoattack import AutoAttack as DropIn
from pyrobust.compat.smoothing import Smooth
from pyrobust.errors import InputError, ModelError
from pyrobust.metrics import torchmetrics as twins
from pyrobust.training import ibp_loss

#: Devices of a model and of its images.
PAIRS = [("cuda:1", "cuda:0"), ("cpu", "cuda:1"), ("cuda:1", "cpu")]
GPU = torch.device("cuda:1")
SLOW = ("ead", "hop-skip-jump", "spsa")
Call = Callable[[nn.Module, Tensor, Tensor], Any]


def numbers(value: Any) -> Any:
    """Return the result of a call, comparable, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, str):
        return [ord(letter) for letter in value]
    if isinstance(value, tuple | list):
        return [numbers(item) for item in value]
    return value


@functools.cache
def on_the_cpu(call: Call) -> Any:
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # fake GPUs make each operation slow
        return numbers(call(small_net(), *labelled()))


def agree(call: Call, pair: tuple[str, str], off: float = 1e-6) -> None:
    """Check a call against the CPU's, where the kernels are the same, and that the model stays where it is."""
    net, (x, y) = small_net().to(pair[0]), labelled()
    got = numbers(call(net, x.to(pair[1]), y.to(pair[1])))
    assert next(net.parameters()).device == torch.device(pair[0])
    torch.testing.assert_close(got, on_the_cpu(call), rtol=10 * off, atol=off)


# --- attacks


@functools.cache
def attacked(name: str, norm: str) -> Call:
    entry = CATALOGUE[name]
    options = dict(entry.settings)
    if entry.steps:
        options[entry.steps] = 2 if name in SLOW else 5
    options |= {"searches": 2} if name in ("cw", "ead") else {}
    if name == "autoattack":
        options["version"] = "rand"
    if name == "spsa":
        options["samples"] = 8

    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        if name == "autoattack":
            model = EOT(model, 4)
        x_adv = entry.attack(model, 3 if norm == "l0" else 0.2, norm, **options).generate(x, y)
        assert x_adv.device == x.device
        return x_adv

    return call


ATTACKS = [
    (name, norm)
    for name, entry in CATALOGUE.items()
    for norm in (entry.attack.norms[:1] if name in (*SLOW, "autoattack") else entry.attack.norms)
]


@pytest.mark.parametrize(("name", "norm"), ATTACKS)
def test_attacks(fake_cuda: FakeCuda, few_steps: None, name: str, norm: str) -> None:
    agree(attacked(name, norm), ("cuda:1", "cuda:1"))


@pytest.mark.parametrize("pair", PAIRS[1:], ids="-".join)
@pytest.mark.parametrize("name", ["pgd", "apgd-t", "square", "deepfool"])
def test_attacks_on_two_devices(fake_cuda: FakeCuda, few_steps: None, name: str, pair: tuple[str, str]) -> None:
    agree(attacked(name, CATALOGUE[name].attack.norms[0]), pair)


@pytest.mark.parametrize("name", sorted(set(torchattacks.__all__) - {"Attack", "MultiAttack", "EADL1", "EADEN"}))
def test_drop_in_attacks(fake_cuda: FakeCuda, few_steps: None, name: str) -> None:
    attack = getattr(torchattacks, name)(small_net().to(GPU))
    for setting in ("steps", "n_queries", "max_iterations"):
        if hasattr(attack, setting):
            setattr(attack, setting, 3)
    x, y = (value.to(GPU) for value in labelled())
    x_adv = attack(x, y)
    assert (x_adv.shape, x_adv.device) == (x.shape, GPU)


def test_diagnose(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in ("_STEPS", "_MORE_STEPS", "_QUERIES", "_TRANSFER_STEPS"):
        monkeypatch.setattr(trials, budget, 4)
    monkeypatch.setattr(trials, "_MORE_RESTARTS", 2)
    monkeypatch.setattr(surrogate, "_STEPS_PER_ROUND", 2)
    x, y = labelled()
    assert diagnose(small_net().to(GPU), x.to(GPU), y, 0.05).verdict in ("nothing found", "undecided")


# --- everything else that runs a model


def attacks_on_a_grid(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    return [pyrobust.PGD(model, "20/255", norm, grid="1/255", steps=4)(x, y) for norm in ("linf", "l2", "l1")]


def drop_in_autoattack(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    attack = DropIn(model, eps=0.2, verbose=False, version="custom", attacks_to_run=["apgd-ce", "square"])
    attack.apgd.n_iter, attack.square.n_queries = 4, 20
    return attack.run_standard_evaluation(x, y)


def benchmark(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    def quick(model: nn.Module, **options: Any) -> DropIn:
        attack = DropIn(model, **(options | {"version": "custom"}), attacks_to_run=["apgd-ce"])
        attack.apgd.n_iter = 4
        return attack

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robustbench, "AutoAttack", quick)
        return robustbench.benchmark(model, 2, "digits", eps=0.1, data=labelled(2))


def smoothing(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    counts = []
    for options in ({"grid": "1/255"}, {"grid": None, "normalize": ([0.5], [0.25])}):
        smoother = RandomizedSmoothing(model, 4, 0.25, batch_size=16, **options)
        fixed = smoother.certify_batch(x, n0=10, n=20, indices=range(4))
        sequential = smoother.certify_batch(x, n0=10, n=60, method="sequential", radii=[0.1], indices=range(4))
        predicted = smoother.predict_batch(x, n=20, indices=range(4))
        counts += [torch.from_numpy(votes) for votes in (fixed.counts, sequential.counts, predicted.counts)]
    return counts


def drop_in_smoothing(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    return Smooth(model, 4, 0.25, seed=1).certify(x[0], 10, 100, 0.01, 32)


def bounds_and_radii(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    bounded = BoundedModel(model, x, engine="torch")
    assert bounded.device == next(model.parameters()).device
    bounds = [bounded.bounds(x, 0.01, method=method) for method in ("ibp", "crown-ibp", "crown", "lipschitz")]
    radius = bounded.certified_radius(x[:2], y[:2], method="crown-ibp", largest=2.0**-8)
    return [(b.lower, b.upper) for b in bounds], radius, bounded.certify(x, y, 0.01)


def verdicts(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    device = next(model.parameters()).device
    status = [str(status) for status in BoundedModel(model, x, engine="torch").verify(x, y, 0.05).status]
    return status, list(pyrobust.certified_accuracy_ibp(model, [(x, y)], 0.01, device).values())


def ibp_bounds(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    """The CPU's engine rounds in float32, a GPU's in float64."""
    return pyrobust.compute_ibp_bounds(model, x, 0.01)


def training_losses(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    bounded = DifferentiableBounds(model, labelled()[0])
    margins = [bounded.margins(x, y.cpu(), 0.01, method=method) for method in ("ibp", "crown-ibp")]
    torch.stack(margins).sum().backward()
    return margins, next(model.parameters()).grad


def sweeps(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    data = labelled(2)
    certified = pyrobust.certify_dataset(RandomizedSmoothing(model, 4, 0.25, batch_size=16), data, n0=10, n=40)
    attacks = pyrobust.attack_dataset(pyrobust.PGD(model, 0.2, steps=3), data)
    verified = pyrobust.verify_dataset(model, data, epsilons=[0.01])
    return [len(certified), len(attacks), len(verified)]


CALLS = (
    *(attacks_on_a_grid, drop_in_autoattack, benchmark, smoothing, drop_in_smoothing, bounds_and_radii, verdicts),
    *(ibp_bounds, training_losses, sweeps),
)


@pytest.mark.parametrize("pair", PAIRS[:2], ids="-".join)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_calls(fake_cuda: FakeCuda, few_steps: None, call: Call, pair: tuple[str, str]) -> None:
    agree(call, pair, 1e-4 if call is ibp_bounds else 1e-6)


def test_sandwich(fake_cuda: FakeCuda, few_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble, "_BUDGETS", {"fmn": {"steps": 5, "restarts": 2}, "fab-t": {"steps": 3}})
    x, y = labelled(1)
    both = [
        pyrobust.sandwich(small_net().to(device), x, y, semantics="real", method="lipschitz") for device in (GPU, "cpu")
    ]
    assert both[0].lower.tolist() == pytest.approx(both[1].lower.tolist(), rel=1e-5)
    assert both[0].upper.tolist() == pytest.approx(both[1].upper.tolist(), rel=1e-5)
    assert both[0].crossings == both[1].crossings


def test_ibp_loss(fake_cuda: FakeCuda) -> None:
    agree(lambda model, x, y: ibp_loss(DifferentiableBounds(model, x), x, y, 0.01), ("cuda:1", "cuda:1"))


# --- what is refused, in one line


def test_mixed_devices_raise(fake_cuda: FakeCuda) -> None:
    for other in ("cpu", "cuda:0"):
        with pytest.raises(MixedDevicesError, match="same device"):
            torch.ones(2, device=GPU) + torch.ones(2, device=other)
    assert isinstance(torch.ones(2, device=GPU) + 1, FakeTensor)


def test_a_callable_over_a_module_elsewhere(fake_cuda: FakeCuda) -> None:
    net = small_net().to(GPU)
    x, y = labelled()
    for run in (
        lambda: pyrobust.PGD(lambda batch: net(batch), 0.1)(x, y),
        lambda: RandomizedSmoothing(lambda batch: net(batch), 4, 0.25, device="cuda:0").votes(x, n=5),
    ):
        with pytest.raises(ModelError, match=r"^model: expected all of its tensors on .* a callable is not moved"):
            run()


def test_a_module_moved_after_construction(fake_cuda: FakeCuda) -> None:
    net = small_net()
    x, y = labelled()
    attack = pyrobust.PGD(net, 0.1)
    net.to(GPU)
    with pytest.raises(ModelError, match="a module that was moved afterwards"):
        attack(x, y)


def test_convolutions_of_a_gpu_are_not_float32(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = labelled()
    for engine in ("torch", "native"):
        bounded = BoundedModel(small_net().to(GPU), x, engine=engine)
        assert len(bounded.verify(x, y, 0.01).status) == 4
        for call in (bounded.verify, bounded.certify, bounded.margins):
            with pytest.raises(InputError, match=r'semantics: expected "real".* Winograd'):
                call(x, y, 0.01, semantics="float32")
    dense = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval().to(GPU)
    assert len(BoundedModel(dense, x).verify(x, y, 0.01, semantics="float32").status) == 4
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with pytest.raises(InputError, match=r'semantics: expected "real".* TF32'):
        BoundedModel(dense, x).verify(x, y, 0.01, semantics="float32")


def test_certificates_first_of_a_gpu(fake_cuda: FakeCuda) -> None:
    x, y = labelled()
    attack = shortened(AutoAttack(small_net().to(GPU), 0.01, certify_first=True), 2)
    attack.generate(x, y)
    assert attack.result is not None
    assert attack.result.certified_first is not None
    assert "Winograd" in str(attack.result.certified_first.reason)


# --- metrics

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [1.0, 0.0, 3.0], [0.3, 0.2, 0.1]])
ATTACKED = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 0.5], [1.0, 4.0, 3.0], [0.3, 0.2, 0.1]])
LABELS = torch.tensor([0, 1, 2, 2])
RADIUS = torch.tensor([0.5, 0.25, 0.1, 0.0], dtype=torch.float64)

PURE: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "clean accuracy": lambda logits, _, labels, __: metrics.clean_accuracy(metrics.predicted_classes(logits), labels),
    "robust accuracy": lambda logits, attacked, labels, _: metrics.robust_accuracy(
        metrics.predicted_classes(logits), metrics.predicted_classes(attacked), labels
    ),
    "success": lambda logits, attacked, labels, _: metrics.attack_success_rate(
        metrics.predicted_classes(logits), metrics.predicted_classes(attacked), labels
    ),
    "success on correct": lambda logits, attacked, labels, _: metrics.success_rate_on_correct(
        metrics.predicted_classes(logits), metrics.predicted_classes(attacked), labels
    ),
    "targeted": lambda _, attacked, labels, __: metrics.targeted_success_rate(
        metrics.predicted_classes(attacked), labels
    ),
    "distances": lambda logits, attacked, *_: metrics.distances(attacked, logits, "l2").sum(),
    "mean distance": lambda logits, attacked, labels, radius: metrics.mean_distance(radius, labels == 2),
    "certified": lambda *args: sum(map(float, metrics.certified_accuracy(args[3], args[2] < 2, [0.0, 0.2]))),
    "average radius": lambda *args: metrics.average_radius(args[3], args[2] < 2),
    "lipschitz": lambda logits, _, labels, __: pyrobust.CategoricalProvableAvgRobustness()(logits, labels),
    "accuracy by lipschitz": lambda logits, _, labels, __: pyrobust.CategoricalProvableRobustAccuracy(0.2)(
        logits, labels
    ),
}


@pytest.mark.parametrize("name", PURE)
def test_functions(fake_cuda: FakeCuda, name: str) -> None:
    arguments = LOGITS, ATTACKED, LABELS, RADIUS
    assert float(PURE[name](*(value.to("cuda:1") for value in arguments))) == float(PURE[name](*arguments))


@pytest.mark.parametrize("make", [twins.RobustAccuracy, twins.CategoricalProvableAvgRobustness])
def test_torchmetrics(fake_cuda: FakeCuda, make: Any) -> None:
    arguments = (LOGITS, ATTACKED, LABELS) if make is twins.RobustAccuracy else (LOGITS, LABELS)
    values = []
    for device in ("cpu", "cuda:1"):
        metric = make().to(device)
        metric.update(*(value.to(device) for value in arguments))
        values.append(float(metric.compute()))
    assert values[0] == values[1]

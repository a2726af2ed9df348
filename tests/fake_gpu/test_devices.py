"""Everything that runs a model, with model and images on a GPU, or on devices that differ, and the CPU's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda, FakeTensor, MixedDevicesError
from gpu_nets import labelled, small_net
from torch import Tensor, nn

import pyrobust
import pyrobust.compat.robustbench as robustbench
import pyrobust.compat.torchattacks as torchattacks
from pyrobust import BoundedModel, RandomizedSmoothing
from pyrobust.attacks import AutoAttack, diagnose
from pyrobust.attacks.catalogue import CATALOGUE
from pyrobust.attacks.diagnosis import trials
from pyrobust.bounds import DifferentiableBounds
from pyrobust.compat.autoattack import AutoAttack as DropIn
from pyrobust.compat.smoothing import Smooth
from pyrobust.errors import InputError, ModelError
from pyrobust.training import ibp_loss

PAIRS = [("cuda:1", "cuda:1"), ("cuda:1", "cpu"), ("cpu", "cuda:1"), ("cuda:1", "cuda:0")]
GPU = torch.device("cuda:1")
SLOW = ("ead", "hop-skip-jump", "spsa")


@pytest.fixture(params=PAIRS, ids="-".join)
def placed(request: pytest.FixtureRequest, fake_cuda: FakeCuda) -> tuple[nn.Module, Tensor, Tensor]:
    """A net on one device, images and labels on another."""
    model, images = request.param
    x, y = labelled()
    return small_net().to(model), x.to(images), y.to(images)


def numbers(value: Any) -> Any:
    """Return the result of a call, comparable, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, str):
        return [ord(letter) for letter in value]
    if isinstance(value, tuple | list):
        return [numbers(item) for item in value]
    return value


def agree(
    call: Callable[[nn.Module, Tensor, Tensor], Any], placed: tuple[nn.Module, Tensor, Tensor], off: float = 1e-6
) -> None:
    """Check a call against the CPU's, where the kernels are the same, and that the model stays where it is."""
    place = next(placed[0].parameters()).device
    got, want = numbers(call(*placed)), numbers(call(small_net(), *labelled()))
    assert next(placed[0].parameters()).device == place
    torch.testing.assert_close(got, want, rtol=10 * off, atol=off)


def attacked(name: str, norm: str) -> Callable[[nn.Module, Tensor, Tensor], Any]:
    entry = CATALOGUE[name]
    options = dict(entry.settings)
    if entry.steps:
        options[entry.steps] = 2 if name in SLOW else 5
    if name == "autoattack":
        options["version"] = "rand"
    if name == "spsa":
        options["samples"] = 8

    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
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
    x, y = labelled()
    agree(attacked(name, norm), (small_net().to(GPU), x.to(GPU), y.to(GPU)))


@pytest.mark.parametrize("name", ["pgd", "fgsm", "apgd-dlr", "apgd-t", "fab-t", "square", "ddn", "deepfool"])
def test_attacks_on_two_devices(placed: tuple[nn.Module, Tensor, Tensor], name: str) -> None:
    agree(attacked(name, CATALOGUE[name].attack.norms[0]), placed)


def test_attacks_on_a_grid(placed: tuple[nn.Module, Tensor, Tensor]) -> None:
    for norm in ("linf", "l2", "l1"):
        agree(lambda model, x, y, norm=norm: pyrobust.PGD(model, "20/255", norm, grid="1/255", steps=4)(x, y), placed)


def test_diagnose(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in ("_STEPS", "_MORE_STEPS", "_QUERIES", "_TRANSFER_STEPS"):
        monkeypatch.setattr(trials, budget, 8)
    x, y = labelled()
    assert diagnose(small_net().to(GPU), x.to(GPU), y, 0.05).verdict in ("nothing found", "undecided")


@pytest.mark.parametrize("name", sorted(set(torchattacks.__all__) - {"Attack", "MultiAttack", "EADL1", "EADEN"}))
def test_drop_in_attacks(fake_cuda: FakeCuda, few_steps: None, name: str) -> None:
    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        attack = getattr(torchattacks, name)(model)
        for setting in ("steps", "n_queries", "max_iterations"):
            if hasattr(attack, setting):
                setattr(attack, setting, 3)
        if hasattr(attack, "seed"):
            attack.seed = 1
        torch.manual_seed(0)
        return attack(x, y).shape

    x, y = labelled()
    agree(call, (small_net().to(GPU), x.to(GPU), y.to(GPU)))


def test_drop_in_autoattack(placed: tuple[nn.Module, Tensor, Tensor], few_steps: None) -> None:
    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        attack = DropIn(model, eps=0.2, verbose=False, version="custom", attacks_to_run=["apgd-ce", "square"])
        attack.apgd.n_iter, attack.square.n_queries = 4, 20
        return attack.run_standard_evaluation(x, y)

    agree(call, placed)


def test_benchmark(placed: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(model: nn.Module, **options: Any) -> DropIn:
        attack = DropIn(model, **(options | {"version": "custom"}), attacks_to_run=["apgd-ce"])
        attack.apgd.n_iter = 4
        return attack

    monkeypatch.setattr(robustbench, "AutoAttack", quick)
    agree(lambda model, x, y: robustbench.benchmark(model, 2, "digits", eps=0.1, data=labelled(2)), placed)


@pytest.mark.parametrize("noise", ["grid", "gaussian", "normalized"])
def test_smoothing(placed: tuple[nn.Module, Tensor, Tensor], noise: str) -> None:
    options: dict[str, Any] = {"batch_size": 16, "grid": "1/255" if noise == "grid" else None}
    if noise == "normalized":
        options["normalize"] = ([0.5], [0.25])

    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        smoother = RandomizedSmoothing(model, 4, 0.25, **options)
        fixed = smoother.certify_batch(x, n0=10, n=60, indices=range(4))
        sequential = smoother.certify_batch(x, n0=10, n=300, method="sequential", radii=[0.1], indices=range(4))
        predicted = smoother.predict_batch(x, n=60, indices=range(4))
        return [torch.from_numpy(votes) for votes in (fixed.counts, sequential.counts, predicted.counts)]

    agree(call, placed)


def test_drop_in_smoothing(placed: tuple[nn.Module, Tensor, Tensor]) -> None:
    agree(lambda model, x, y: Smooth(model, 4, 0.25, seed=1).certify(x[0], 10, 100, 0.01, 32), placed)


def test_bounds_and_radii(placed: tuple[nn.Module, Tensor, Tensor]) -> None:
    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        bounded = BoundedModel(model, x, engine="torch")
        assert bounded.device == next(model.parameters()).device
        bounds = [bounded.bounds(x, 0.01, method=method) for method in ("ibp", "crown-ibp", "crown", "lipschitz")]
        radius = bounded.certified_radius(x[:2], y[:2], method="crown-ibp", largest=2.0**-8)
        return [(b.lower, b.upper) for b in bounds], radius, bounded.certify(x, y, 0.01)

    agree(call, placed)


def test_verdicts(placed: tuple[nn.Module, Tensor, Tensor]) -> None:
    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        return [str(status) for status in BoundedModel(model, x, engine="torch").verify(x, y, 0.05).status]

    agree(call, placed)
    # The CPU's engine rounds in float32, a GPU's in float64.
    agree(lambda model, x, y: pyrobust.compute_ibp_bounds(model, x, 0.01), placed, off=1e-4)

    def certified(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        place = next(model.parameters()).device
        return list(pyrobust.certified_accuracy_ibp(model, [(x, y)], 0.01, place).values())

    agree(certified, placed)


def test_training_losses(placed: tuple[nn.Module, Tensor, Tensor]) -> None:
    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        bounded = DifferentiableBounds(model, labelled()[0])
        margins = [bounded.margins(x, y.cpu(), 0.01, method=method) for method in ("ibp", "crown-ibp")]
        torch.stack(margins).sum().backward()
        return margins, next(model.parameters()).grad

    agree(call, placed)


def test_ibp_loss(fake_cuda: FakeCuda) -> None:
    x, y = labelled()
    agree(
        lambda model, x, y: ibp_loss(DifferentiableBounds(model, x), x, y, 0.01),
        (small_net().to(GPU), x.to(GPU), y.to(GPU)),
    )


def test_sweeps(placed: tuple[nn.Module, Tensor, Tensor]) -> None:
    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        data = labelled()
        certified = pyrobust.certify_dataset(RandomizedSmoothing(model, 4, 0.25, batch_size=16), data, n0=10, n=40)
        attacks = pyrobust.attack_dataset(pyrobust.PGD(model, 0.2, steps=3), data)
        verified = pyrobust.verify_dataset(model, data, epsilons=[0.01])
        return [len(certified), len(attacks), len(verified)]

    agree(call, placed)


def test_sandwich(placed: tuple[nn.Module, Tensor, Tensor], few_steps: None) -> None:
    def call(model: nn.Module, x: Tensor, y: Tensor) -> Any:
        both = pyrobust.sandwich(model, x[:1].cpu(), y[:1].cpu(), semantics="real", method="lipschitz")
        return list(both.lower), list(both.upper), both.crossings

    agree(call, placed)


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


def test_certificates_first_of_a_gpu(fake_cuda: FakeCuda, few_steps: None) -> None:
    x, y = labelled()
    attack = AutoAttack(small_net().to(GPU), 0.01, certify_first=True)
    attack.generate(x, y)
    assert attack.result is not None
    assert attack.result.certified_first is not None
    assert "Winograd" in str(attack.result.certified_first.reason)

"""Settings that change torch's arithmetic: they change no bound, and deployed outputs stay inside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch
from image_models import resnet
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel

METHODS = ("ibp", "crown-ibp", "crown")


@contextlib.contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def onednn_precision(value: str) -> Iterator[None]:
    backends = torch.backends.mkldnn.conv, torch.backends.mkldnn.matmul
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = value
        yield
    finally:
        for backend, old in zip(backends, before, strict=True):
            backend.fp32_precision = old


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


#: Settings under which bounds are computed; the last three also leave the deployed forward pass in strict floats.
SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "matmul precision medium": lambda: matmul_precision("medium"),
    "oneDNN bf16": lambda: onednn_precision("bf16"),
    "oneDNN off": lambda: torch.backends.mkldnn.flags(enabled=False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: torch.backends.mkldnn.flags(enabled=True, deterministic=True),
    "two threads": lambda: threads(2),
}


def wide_net() -> nn.Sequential:
    """Make a net with layers of 32 to 64 channels and of 288 features."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, Tensor]:
    return wide_net(), torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("setting", SETTINGS)
def test_bounds_are_the_same(case: tuple[nn.Module, Tensor], setting: str) -> None:
    """Compare the bounds' bits: sums may run in another order, so that they agree to few roundings."""
    model, x = case
    bounded = BoundedModel(model, x)
    for method in METHODS:
        plain = bounded.bounds(x, 1e-3, method=method)
        with SETTINGS[setting]():
            under = bounded.bounds(x, 1e-3, method=method)
        tolerance = 2e-5 * (1 + plain.lower.abs())  # bf16 products would differ by 4e-3
        assert ((plain.lower - under.lower).abs() <= tolerance).all()
        assert ((plain.upper - under.upper).abs() <= tolerance).all()


@pytest.mark.parametrize("setting", ["oneDNN off", "deterministic", "two threads"])
@pytest.mark.parametrize("make", [wide_net, lambda: resnet(8, (1, 1)).eval()])
def test_deployed_outputs_are_inside(setting: str, make: Callable[[], nn.Module]) -> None:
    """Check float32 forward passes at the center of thin balls, where rounding is most of the width."""
    torch.manual_seed(0)
    model, x = make(), torch.rand(3, 3, 12, 12)
    bounds = [BoundedModel(model, x).bounds(x, 1e-7, method=method, semantics="float32") for method in METHODS]
    for form in (torch.contiguous_format, torch.channels_last):
        with SETTINGS[setting](), torch.no_grad():
            whole, single = model(x.to(memory_format=form)), torch.cat([model(row[None]) for row in x])
        for outputs in (whole, single):
            for bound in bounds:
                assert (bound.lower <= outputs).all()
                assert (outputs <= bound.upper).all()


def test_a_product_in_bf16_is_caught(case: tuple[nn.Module, Tensor]) -> None:
    """Check that outputs of bf16 products, as the settings above ask for, are outside: the tests could fail."""
    model, x = case
    bounds = BoundedModel(model, x).bounds(x, 1e-7, semantics="float32")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs = model(x).float()
    assert ((outputs < bounds.lower) | (outputs > bounds.upper)).any()

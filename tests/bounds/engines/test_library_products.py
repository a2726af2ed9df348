"""Products by the machine's routines: chosen by width, never where a setting is not strict, and accounted for."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds.engines import forced
from torch import Tensor, nn

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.library_products import LayerProduct, LibraryProducts
from pyrobust.bounds.graph.capture import capture

METHODS = ("ibp", "crown-ibp", "crown")


@functools.cache
def bounded() -> BoundedModel:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 1, 2, dilation=2, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )
    return BoundedModel(net.eval(), torch.zeros(1, 3, 8, 8))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The products that the library has computed."""
    made: list[int] = []
    original = LibraryProducts.__call__

    def counted(self: LibraryProducts, i: int, product: int, operand: Any, *channels: int) -> Any:
        made.append(product)
        return original(self, i, product, operand, *channels)

    monkeypatch.setattr(LibraryProducts, "__call__", counted)
    return made


def _all_bounds(x: Tensor) -> list[Tensor]:
    results = []
    for method in METHODS:
        bounds = bounded().bounds(x, 2 / 255, method=method, clip=(0, 1))
        results += [bounds.lower, bounds.upper]
    return results


@pytest.mark.parametrize("method", METHODS)
def test_both_paths_agree_up_to_rounding(method: str, calls: list[int]) -> None:
    x = torch.rand(5, 3, 8, 8)
    results = []
    for library in (False, True):
        with forced(library):
            results.append(bounded().bounds(x, 2 / 255, method=method, norm="l2", clip=(0, 1)))
        assert bool(calls) == (library and method != "crown")
    ours, theirs = results
    torch.testing.assert_close(theirs.lower, ours.lower, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(theirs.upper, ours.upper, atol=2e-5, rtol=1e-5)


def test_the_library_serves_wide_layers_only(calls: list[int]) -> None:
    bounded().bounds(torch.rand(1, 3, 8, 8), 0.01, method="ibp")
    assert not calls
    wide = nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.Flatten()).eval()
    BoundedModel(wide, torch.zeros(1, 32, 16, 16)).bounds(torch.rand(1, 32, 16, 16), 0.01, method="ibp")
    assert calls == [LayerProduct.FORWARD, LayerProduct.MAGNITUDE] * 2


@pytest.fixture(params=["torch", "conv", "matmul", "all", "environment"])
def loose_setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A setting that lets float32 products round to another format."""
    backend: Any = torch.backends.mkldnn
    before = torch.get_float32_matmul_precision()
    if request.param == "torch":
        torch.set_float32_matmul_precision("medium")
    elif request.param == "environment":
        monkeypatch.setitem(os.environ, "ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    elif request.param in ("conv", "matmul"):
        getattr(backend, request.param).fp32_precision = "bf16"
    else:
        backend.set_flags(_fp32_precision="tf32")
    yield
    backend.conv.fp32_precision = backend.matmul.fp32_precision = "none"
    backend.set_flags(_fp32_precision="none")
    torch.set_float32_matmul_precision(before)


def test_a_setting_that_is_not_strict_sends_the_work_to_the_kernels(loose_setting: None, calls: list[int]) -> None:
    x = torch.rand(3, 3, 8, 8)
    with forced(True):
        actual = _all_bounds(x)
    assert not calls
    with forced(False):
        expected = _all_bounds(x)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.backends.mkldnn.flags(enabled=False),
        lambda: torch.backends.mkldnn.flags(enabled=True, deterministic=True),
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
)
def test_other_settings_change_no_bit(setting: Callable[[], AbstractContextManager[Any]], calls: list[int]) -> None:
    x = torch.rand(3, 3, 8, 8)
    with forced(True):
        expected = _all_bounds(x)
        made = list(calls)
        with setting():
            actual = _all_bounds(x)
    assert calls[len(made) :] == made  # the same path
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_subnormal_weights_and_float64_are_left_to_the_kernels(calls: list[int]) -> None:
    model = nn.Linear(4, 2).eval()
    with torch.no_grad():
        model.weight[0, 0] = 1e-40
    for narrow in (model, nn.Linear(4, 2).eval().double()):
        x = torch.ones(1, 4, dtype=narrow.weight.dtype)
        with forced(True):
            BoundedModel(narrow, x).bounds(x, 0.1, method="ibp")
    assert not calls


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("sizes", [(2, 0, 3), (0, 2, 3), (2, 3, 0)])
@pytest.mark.parametrize("library", [False, True])
def test_layers_without_elements(sizes: tuple[int, int, int], library: bool) -> None:
    first, hidden, last = sizes
    model, x = nn.Sequential(nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last)).eval(), torch.ones(2, first)
    for method in METHODS:
        with forced(library):
            bounds = BoundedModel(model, x).bounds(x, 0.1, method=method)
        assert ((bounds.lower <= model(x)) & (model(x) <= bounds.upper)).all()


def test_an_error_of_a_product_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: LibraryProducts, i: int, product: int, operand: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(LibraryProducts, "__call__", fails)
    with forced(True), pytest.raises(MemoryError, match="no room"):
        bounded().bounds(torch.rand(2, 3, 8, 8), 0.1, method="ibp")


def test_an_unknown_product_is_an_error() -> None:
    layer = nn.Linear(2, 2)
    products = LibraryProducts([(0, capture(layer, torch.zeros(1, 2)), layer.weight.detach().numpy().ravel())])
    with pytest.raises(ValueError, match="3 is not a valid LayerProduct"):
        products(0, 3, np.zeros((1, 2), np.float32))

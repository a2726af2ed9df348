"""The public API: input errors, and independence of torch's global settings."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds.sets import extreme_values, random_sets, violated
from torch import Tensor, nn

from pyrobust import _C
from pyrobust.bounds import BoundedModel, BoundOptions, Bounds, compute_ibp_bounds
from pyrobust.bounds.engines.query import Query
from pyrobust.errors import InputError, InputTypeError, ModelError

METHODS = ("ibp", "crown-ibp", "crown")
X = torch.linspace(0, 1, 12).view(3, 4)
Y = torch.tensor([0, 2, 1])


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    generator = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 5), nn.LeakyReLU(0.1), nn.Linear(5, 3))
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return net.to(torch.float32).to(dtype).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def model() -> BoundedModel:
    return BoundedModel(network(), X)


BAD: list[tuple[Callable[[BoundedModel], object], str]] = [
    (lambda m: m.bounds(X), "x, epsilon"),
    (lambda m: m.bounds(X[0], 0.1), "x: expected shape"),
    (
        lambda m: m.bounds(X, torch.full((3, 5), 0.1)),
        r"^epsilon: expected a number, a tensor \[3\], or one that broadcasts to \(3, 4\), got shape \(3, 5\)$",
    ),
    (lambda m: m.bounds(X, torch.full((3, 4), 0.1), norm="l2"), 'epsilon: .*"linf"'),
    (lambda m: m.bounds(X, torch.full((3, 4), -0.1)), r"^epsilon: expected finite numbers of at least 0, got -0.1"),
    (lambda m: m.bounds(X, [[0.1, "a"]]), "^epsilon: expected a number"),
    (lambda m: m.bounds(X, torch.full((3, 4), torch.inf)), r"^epsilon: expected finite numbers .*, got inf at \[0, 0"),
    (lambda m: m.bounds(X, 0.1, clip=(torch.zeros(3), 1)), r"^clip: .* broadcast to \(4,\), got shape \(3,\)$"),
    (lambda m: m.bounds(X, 0.1, clip=(torch.ones(4), 0)), "^clip: expected low <= high"),
    (lambda m: m.bounds(X, 0.1, clip=(torch.full((4,), torch.nan), 2)), "^clip: expected finite"),
    (
        lambda m: m.bounds(X, 0.1, method="cascade"),
        "method: expected one of ibp, crown-ibp, crown, alpha-crown, lipschitz, got 'c",
    ),
    (lambda m: m.bounds(X, 0.1, options={"norm": "l2"}), "options: expected BoundOptions, got dict"),
    (
        lambda m: m.bounds(X, 0.1, norms="l2"),
        r"bounds: unexpected .* 'norms' \(did you mean 'norm'\?\); expected one of C",
    ),
    (lambda m: m.margins(X, Y, 0.1, C=X), "margins: unexpected keyword argument 'C'"),
    (lambda m: m.certified_radius(X, Y, large=1), r"argument 'large' \(did you mean 'largest'\?\)"),
    (lambda m: m.verify(X, Y, 0.1, method="ibp", methods=("crown",)), "methods: expected either method or methods"),
    (lambda m: m.certified_radius(X[0, 0], Y), r"^x: expected shape \(B, .*\), got \("),
    (lambda m: m.bounds(X, 0.1, clip=(0.0, 0.5)), r"^x: expected values in the clip range \[0.0, 0.5\], got .* at \["),
    (lambda m: m.bounds(X, 0.1, C=torch.ones(2, 4)), "C: expected shape"),
    (lambda m: m.bounds(X, 0.1, C=torch.ones(2, 2, 3)), "C: expected shape"),
    (lambda m: m.bounds(X, x_lower=X, x_upper=X), "x_lower, x_upper"),
    (lambda m: m.bounds(x_lower=X, x_upper=X, clip=(0, 1)), "x_lower, x_upper"),
    (lambda m: m.bounds(x_lower=X, x_upper=X[:2]), "x_upper"),
    (
        lambda m: m.bounds(x_lower=X, x_upper=X - 1e-6),
        r"^x_lower: expected at most x_upper, got .* at \[0, .*\], above ",
    ),
    (lambda m: m.margins(X, epsilon=0.1), "y: expected integer labels"),
    (lambda m: m.margins(X, Y + 1, 0.1), "y: expected labels"),
    (lambda m: m.certified_radius(X, Y, largest=-1.0), "largest: expected"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_refused(model: BoundedModel, call: Callable[[BoundedModel], object], message: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=message):
        call(model)


def with_number(name: str, number: float) -> nn.Module:
    net = network()
    net.get_parameter(name).data.view(-1)[1] = number
    return net


def compressed() -> nn.Module:
    """Its tracing would end the process."""
    net = nn.Linear(4, 3)
    net.weight = nn.Parameter(net.weight.detach().to_sparse_csr())
    return net


@pytest.mark.parametrize(
    ("net", "x", "error", "message"),
    [
        (with_number("0.weight", torch.nan), X, ModelError, "finite"),
        (with_number("4.bias", torch.inf), X, ModelError, "finite"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3).double()), X, ModelError, "dtype"),
        (nn.Conv2d(1, 1, 1), torch.zeros(1, 1, 2, 2), InputError, r"outputs \[B, K\]"),
        (nn.ConstantPad1d(2, -torch.inf), X, ModelError, "-inf"),
        (nn.Linear(4, 3, device="meta"), X, InputError, "parameters with values, got weight on the device meta"),
        (compressed(), X, InputError, "model: expected dense .* got weight in torch.sparse_csr; use to_dense"),
    ],
)
def test_models_are_refused(net: nn.Module, x: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BoundedModel(net.eval(), x).bounds(x, 0.1)


def test_a_model_in_training_mode_is_bounded_as_in_evaluation_mode() -> None:
    net = nn.Sequential(*network()[:2], nn.Dropout(0.5), nn.BatchNorm1d(7).eval(), *network()[2:])
    net[3].running_mean.copy_(torch.linspace(-1, 1, 7))
    expected = BoundedModel(copy.deepcopy(net).eval(), X).bounds(X, 0.125)
    net.train()
    net[3].eval()
    modes = [module.training for module in net.modules()]
    bounded = BoundedModel(net, X)
    assert same(bounded.bounds(X, 0.125), expected)
    bounded.refresh()
    labels = copy.deepcopy(net).eval()(X).argmax(1)
    assert bounded.verify(X, labels, 0.0).status == ["verified"] * 3
    assert [module.training for module in net.modules()] == modes


def test_the_modes_are_restored_when_a_capture_fails() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout())
    net[1].eval()
    for call in (lambda: BoundedModel(net, torch.zeros(2, 5)), lambda: compute_ibp_bounds(net, torch.zeros(2, 5), 0.1)):
        with pytest.raises(ModelError, match="its forward pass failed"):
            call()
        assert (net.training, net[0].training, net[1].training) == (True, True, False)


def test_a_submodule_that_stays_in_training_mode_is_refused() -> None:
    class Stubborn(nn.Dropout):
        def train(self, mode: bool = True) -> Stubborn:
            self.training = True
            return self

    for call in (BoundedModel, lambda net, x: compute_ibp_bounds(net, x, 0.1)):
        with pytest.raises(InputError, match="stays in training mode"):
            call(nn.Sequential(nn.Linear(4, 3), Stubborn()), X)


def test_autocast_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ModelError, match="autocast"):
        BoundedModel(network(), X)


def same(a: Bounds, b: Bounds) -> bool:
    return torch.equal(a.lower, b.lower) and torch.equal(a.upper, b.upper)


@contextmanager
def changed(change: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    try:
        change(value)
        yield
    finally:
        change(before)


@pytest.mark.parametrize(
    "setting",
    [
        lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
        lambda: torch.device("meta"),  # in place of torch.set_default_device of a GPU
        lambda: changed(torch.set_flush_denormal, True, False),
        torch.inference_mode,
    ],
)
def test_settings_elsewhere_change_no_bit(setting: Callable[[], Any], both_engines: str) -> None:
    """Use an epsilon that is a float32 number; test_sets.py covers others."""

    net = network()

    def bounds() -> list[Bounds]:
        model = BoundedModel(net, X)
        return [model.bounds(X, 0.125, method=m, norm=n) for m in METHODS for n in ("linf", "l2", "l1")]

    before, random_state = bounds(), torch.random.get_rng_state()
    with setting():
        during = bounds()
    assert all(same(a, b) for a, b in zip(before, during, strict=True))
    assert torch.equal(torch.random.get_rng_state(), random_state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_models_in_other_floats(dtype: torch.dtype, both_engines: str) -> None:
    """Check that bounds contain the exact values for the model's own parameters."""
    net, rng = network(dtype), np.random.default_rng(5)
    model = BoundedModel(net, X.to(dtype))
    for kind in ("linf", "l2", "l1", "box"):
        sets = random_sets(kind, 16, (4,), dtype, rng)
        rows = torch.eye(3, dtype=torch.float64).expand(16, -1, -1)
        values = extreme_values(net, sets, rows, rng)
        for method in METHODS:
            lower, upper = model._engine.run(sets.of_engine(), None, Query(method, True, "real", None))
            assert violated(values, lower, upper) == 0
            assert lower.isfinite().all()
            assert upper.isfinite().all()


def test_a_batch_and_its_examples(both_engines: str) -> None:
    """The torch engine's bits depend on the batch."""
    model, epsilon = BoundedModel(network(), X), torch.tensor([0.0, 0.125, 0.5], dtype=torch.float64)
    for method, norm in itertools.product(METHODS, ("linf", "l2", "l1")):
        together = model.bounds(X, epsilon, norm=norm, method=method)
        for i in range(3):
            alone = model.bounds(X[i : i + 1], float(epsilon[i]), norm=norm, method=method)
            for got, wanted in ((together.lower[i], alone.lower[0]), (together.upper[i], alone.upper[0])):
                torch.testing.assert_close(got, wanted, rtol=0, atol=0 if both_engines == "native" else 1e-12)
        assert model.bounds(X[:0], 0.1, method=method, norm=norm).upper.shape == (0, 3)
        assert model.margins(X[:0], Y[:0], 0.1, method=method, norm=norm).lower.shape == (0, 2)
    assert model.certify(X[:0], Y[:0], 0.1).shape == model.certified_radius(X[:0], Y[:0]).shape == (0,)


def test_tensors_that_are_not_contiguous_or_require_gradients(model: BoundedModel) -> None:
    wide = torch.stack([X, -X], 2)[:, :, 0]
    rows = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(0)).double()[:, :, ::2]
    assert not wide.is_contiguous()
    assert same(model.bounds(wide, 0.125, C=rows), model.bounds(X, 0.125, C=rows.contiguous()))
    assert same(model.bounds(x_lower=wide, x_upper=wide), model.bounds(x_lower=X, x_upper=X))
    turned = X.t().contiguous().t()
    assert same(model.bounds(turned.requires_grad_(True), 0.125, norm="l2"), model.bounds(X, 0.125, norm="l2"))
    model, x = images()
    bounds = model.bounds(x, 0.03125)
    assert same(model.bounds(x.to(memory_format=torch.channels_last), 0.03125), bounds)
    net = copy.deepcopy(model.model).to(memory_format=torch.channels_last)
    assert same(BoundedModel(net, x.to(memory_format=torch.channels_last)).bounds(x, 0.03125), bounds)


def test_one_class_the_order_of_margins_and_wrong_labels(model: BoundedModel) -> None:
    single_class = BoundedModel(nn.Linear(4, 1).eval(), X)
    assert single_class.certified_radius(X, torch.zeros(3).long(), largest=0.5).tolist() == [0.5] * 3
    margins = model.margins(X, Y, 0.0).lower
    logits = network()(X).double()
    expected = [[logits[i, y] - logits[i, j] for j in range(3) if j != y] for i, y in enumerate(Y.tolist())]
    torch.testing.assert_close(margins, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=1e-4)
    right = logits.argmax(1)
    assert model.certify(X, right, 0.0).all()
    assert not model.certify(X, (right + 1) % 3, 0.0).any()
    assert (model.certified_radius(X, (right + 1) % 3) == 0).all()


@functools.cache
def images() -> tuple[BoundedModel, Tensor]:
    """Return a model that uses every kind of loop, one numpy rule included, and 37 images."""
    generator = torch.Generator().manual_seed(6)
    layers = [nn.Conv2d(2, 5, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(45, 30), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Linear(30, 4)).eval()
    for parameter in net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.rand(37, 2, 8, 8, generator=generator)
    return BoundedModel(net, x), x


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_threads_and_chunks_change_no_bit(method: str, norm: str, threads_restored: None) -> None:
    model, x = images()
    y = torch.arange(37) % 4
    results = []
    for threads, limit in ((1, None), (2, None), (1, 200_000), (2, 400_000), (1, 10**7)):
        torch.set_num_threads(threads)
        assert _C.num_threads() == threads
        results.append(model.bounds(x, 0.03125, norm=norm, method=method, clip=(0.0, 1.0), memory_limit=limit))
        results.append(model.margins(x, y, 0.03125, norm=norm, method=method, memory_limit=limit))
    assert all(same(results[0], other) for other in results[2::2])
    assert all(same(results[1], other) for other in results[3::2])
    assert results[0].lower.isfinite().all()


def test_results(model: BoundedModel) -> None:
    bounds = model.bounds(X, 0.125, method="ibp", norm="l1", sound=False, semantics="real")
    assert (bounds.method, bounds.norm, bounds.sound, bounds.semantics) == ("ibp", "l1", False, "real")
    assert bounds.to_dict()["lower"] == bounds.lower.tolist()
    assert model.bounds(x_lower=X, x_upper=X, norm="l2").norm == "linf"
    nan = Bounds(torch.tensor([[1.0, torch.nan]]), torch.ones(1, 2), "ibp", "linf", True, "real")
    assert not nan.positive().any()


def test_keywords_override_the_options_object(model: BoundedModel) -> None:
    options = BoundOptions(norm="l2", method="ibp", clip=(0, 1), sound=False, memory_limit=1 << 30)
    keywords = {"norm": "l2", "method": "ibp", "clip": (0, 1), "sound": False, "memory_limit": 1 << 30}
    assert BoundOptions(**keywords) == options
    bundled, spelled_out = model.bounds(X, 0.1, options=options), model.bounds(X, 0.1, **keywords)
    assert (bundled.norm, bundled.method, bundled.sound, bundled.semantics) == ("l2", "ibp", False, "real")
    assert torch.equal(bundled.lower, spelled_out.lower)
    assert torch.equal(bundled.upper, spelled_out.upper)
    overridden = model.bounds(X, 0.1, options=options, method="crown", clip=None)
    assert torch.equal(overridden.lower, model.bounds(X, 0.1, norm="l2", sound=False).lower)
    right = model.model(X).argmax(1)
    for call, epsilon in ((model.margins, [0.01]), (model.certify, [0.01]), (model.certified_radius, [])):
        bundled, spelled_out = call(X, right, *epsilon, options=options), call(X, right, *epsilon, **keywords)
        assert torch.equal(*(x if isinstance(x, torch.Tensor) else x.lower for x in (bundled, spelled_out)))
    assert model.verify(X, right, 0.001, options=options).stage == ["ibp"] * 3
    assert model.verify(X, right, 0.001, method="crown").stage == ["crown"] * 3
    assert model.verify(X, right, 0.001, options=options, methods=("crown-ibp",)).stage == ["crown-ibp"] * 3


def test_clip_min_and_clip_max_spell_the_clip_range_as_attacks_do(model: BoundedModel) -> None:
    expected = model.bounds(X, 0.5, clip=(-0.25, 1.25)).lower
    assert not torch.equal(expected, model.bounds(X, 0.5).lower)
    options = BoundOptions(clip_min=-0.25, clip_max=1.25)
    assert options == BoundOptions(clip=(-0.25, 1.25))
    assert dataclasses.replace(options, method="ibp").clip == (-0.25, 1.25)
    assert dataclasses.replace(options, clip=None).clip is None
    for lower in (
        model.bounds(X, 0.5, clip_min=-0.25, clip_max=1.25).lower,
        model.bounds(X, 0.5, options=options).lower,
        model.bounds(X, 0.5, options=BoundOptions(clip=(-9, 9)), clip_min=-0.25, clip_max=1.25).lower,
    ):
        assert torch.equal(lower, expected)
    with pytest.raises(InputError, match=r"clip: expected clip, or clip_min and clip_max, got \(0, 1\) and"):
        model.bounds(X, 0.5, clip=(0, 1), clip_min=-0.25, clip_max=1.25)
    with pytest.raises(InputError, match="clip_max: expected a number with clip_min, got None"):
        model.margins(X, torch.tensor([0, 0, 0]), 0.5, clip_min=-0.25)
    with pytest.raises(InputError, match="clip: expected two finite numbers, low < high"):
        BoundOptions(clip_min=2, clip_max=-1)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"norm": "l3"}, InputError, "norm: expected one of linf, l2, l1, got 'l3'"),
        (
            {"method": "beta-crown"},
            InputError,
            "method: expected one of ibp, crown-ibp, crown, alpha-crown, lipschitz, cascade",
        ),
        ({"clip": (1.0, 0.0)}, InputError, "clip: expected two finite numbers, low < high"),
        ({"sound": 1}, InputTypeError, "sound: expected True or False, got 1"),
        ({"semantics": "exact"}, InputError, "semantics: expected one of real, float32, got 'exact'"),
        ({"method": "lipschitz", "semantics": "float32"}, InputError, 'semantics: expected "real" with method "lip'),
        ({"memory_limit": 0}, InputError, "memory_limit: expected at least 1"),
        ({"memory_limit": 1e6}, InputTypeError, "memory_limit: expected an integer"),
    ],
)
def test_options_are_checked_when_they_are_made(keywords: dict[str, object], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        BoundOptions(**keywords)

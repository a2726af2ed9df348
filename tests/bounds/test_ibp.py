"""``compute_ibp_bounds``: its cache never gives the bounds of a model as it was before, and keeps no model alive."""

from __future__ import annotations

import builtins
import contextlib
import copy
import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from pyrobust.bounds import BoundedModel, compute_ibp_bounds, ibp
from pyrobust.bounds.module_state import Incomparable, ModuleState

X = torch.linspace(0, 1, 12).view(3, 4)
SCALE = 1.0


class Helper:
    factor = 1.0


class Net(nn.Module):
    """A net with every kind of state: buffers, attributes, a class attribute, a global, a closure, a default."""

    shift = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.LeakyReLU(0.1), nn.Dropout(0.5))
        self.head = nn.Linear(5, 3)
        self.register_buffer("offset", torch.zeros(3))
        self.plain = torch.zeros(3)
        self.slope = 1.0
        self.factors = [1.0, {"last": 1.0}]

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(self.head(self.body(x)) * self.slope + self.offset + self.plain)

    def scaled(self, y: Tensor, extra: float = 0.0) -> Tensor:
        return y * SCALE * Helper.factor * self.factors[0] * self.factors[1]["last"] + self.shift + extra


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


CHANGES: dict[str, Callable[[Net, pytest.MonkeyPatch], object]] = {
    "one element of data": lambda m, _: m.head.weight.data[1, 3].add_(0.5),
    "statistics": lambda m, _: m.body[1].running_mean.add_(1),
    "a plain tensor": lambda m, _: m.plain.add_(1),
    "eps": lambda m, _: setattr(m.body[1], "eps", 0.5),
    "a number in a list": lambda m, _: m.factors.__setitem__(0, 2.0),
    "a number in a dict": lambda m, _: m.factors[1].__setitem__("last", 2.0),
    "an activation": lambda m, _: m.body.__setitem__(2, nn.Tanh()),
    "a class": lambda m, _: setattr(m.body[2], "__class__", nn.ELU) or setattr(m.body[2], "alpha", 1.0),
    "an instance method": lambda m, _: setattr(m, "forward", lambda x: m.head(m.body(x)) + 1),
    "a class attribute": lambda m, patch: patch.setattr(Net, "shift", 1.0),
    "a method": lambda m, patch: patch.setattr(Net, "scaled", lambda self, y: 2 * y),
    "a default": lambda m, patch: patch.setattr(Net.scaled, "__defaults__", (0.5,)),
    "a global": lambda m, patch: patch.setattr(sys.modules[__name__], "SCALE", 2.0),
    "an attribute of a global": lambda m, patch: patch.setattr(Helper, "factor", 2.0),
    "a hook": lambda m, _: m.head.register_forward_hook(lambda module, args, output: output + 1),
    "a pre-hook": lambda m, _: m.head.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
}


def fresh(model: nn.Module, x: Tensor = X, epsilon: float = 0.125) -> tuple[Tensor, Tensor]:
    bounds = BoundedModel(model, x).bounds(x, epsilon, method="ibp")
    return bounds.lower, bounds.upper


def same(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the captures from here on."""
    calls: list[Any] = []
    capture = ibp.capture_classifier
    monkeypatch.setattr(ibp, "capture_classifier", lambda *args: calls.append(args[0]) or capture(*args))
    return calls


def test_a_changed_model_has_its_new_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibp, "_agrees", lambda *_: True)  # the comparison alone
    model, calls = net(), captures(monkeypatch)
    before = compute_ibp_bounds(model, X, 0.125)
    assert same(compute_ibp_bounds(model, X, 0.125), before)
    assert len(calls) == 1
    for change in ("one element of data", "statistics"):
        CHANGES[change](model, monkeypatch)
        after = compute_ibp_bounds(model, X, 0.125)
        assert same(after, fresh(model))
        assert not same(after, before)
        before = after


def test_other_inputs_have_networks_of_their_own() -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3)).eval()
    model(X)
    wide = X.view(3, 2, 2)
    for x in (X, wide, X[:1], torch.zeros(0, 4)):
        assert same(compute_ibp_bounds(model, x, 0.125), fresh(model, x))
    model.double()
    assert same(compute_ibp_bounds(model, X.double(), 0.125), fresh(model, X.double()))
    with pytest.raises(Exception, match=r"x|model"):
        compute_ibp_bounds(model, X, 0.125)


def test_a_zero_of_the_other_sign_and_nan_are_changes() -> None:
    model = nn.Linear(4, 3)
    model.weight.data.zero_()
    state = ModuleState(model.eval())
    model.weight.data.neg_()
    assert not state.matches(model)
    model.weight.data[0, 0] = torch.nan
    state = ModuleState(model)
    assert state.matches(model)
    compute_ibp_bounds(net(), X, 0.1)
    with pytest.raises(Exception, match="finite"):
        compute_ibp_bounds(model, X, 0.1)


def test_an_attribute_that_contains_itself_is_compared() -> None:
    model = net()
    model.history = [1]
    model.history.append(model.history)
    state = ModuleState(model)
    assert state.matches(model)
    model.history[0] = 2
    assert not state.matches(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int32, torch.uint8])
def test_tensors_of_every_dtype_and_layout_are_compared(dtype: torch.dtype) -> None:
    layer = nn.Identity().eval()
    for tensor in (
        torch.zeros((), dtype=dtype),
        torch.zeros(2, 3, 4, 4, dtype=dtype).to(memory_format=torch.channels_last),
        torch.zeros(4, 6, dtype=dtype)[:, ::2],
        torch.zeros(1, 3, dtype=dtype).expand(2, 3),
        torch.zeros(0, dtype=dtype),
    ):
        layer.tensor = tensor
        state = ModuleState(layer)
        assert state.matches(layer)
        if tensor.numel():
            tensor[(0,) * tensor.dim()] = 1
            assert not state.matches(layer)


def test_no_model_and_no_class_is_kept_alive() -> None:
    class Local(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    ibp._captured.clear()
    model, kind = Local().eval(), weakref.ref(Local)
    compute_ibp_bounds(model, X, 0.125)
    references = [weakref.ref(model), *map(weakref.ref, model.parameters()), weakref.ref(model.plain)]
    engine = weakref.ref(next(iter(ibp._captured.values())).engine)
    old = weakref.ref(model.head)
    model.head = nn.Linear(5, 3)
    gc.collect()
    assert old() is None
    del model, Local
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    assert engine() is None
    assert kind() is None
    assert not ibp._captured


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ibp._captured.clear()
    monkeypatch.setattr(ibp, "CACHED", 2)
    models = [nn.Linear(4, 3) for _ in range(ibp.CACHED + 1)]
    calls = captures(monkeypatch)
    for model in models:
        compute_ibp_bounds(model, X, 0.125)
        compute_ibp_bounds(models[0], X, 0.125)  # used, so it stays
    assert len(calls) == len(models)
    assert len(ibp._captured) == ibp.CACHED
    compute_ibp_bounds(models[1], X, 0.125)
    assert calls[-1] is models[1]


def test_the_mode_is_restored_and_dropout_off(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = net(), captures(monkeypatch)
    expected = compute_ibp_bounds(model, X, 0.125)
    model.train()
    model.body[1].eval()
    for _ in range(2):
        assert same(compute_ibp_bounds(model, X, 0.125), expected)
    assert len(calls) == 1
    assert [module.training for module in (model, model.body, model.body[1], model.head)] == [True, True, False, True]


def test_threads() -> None:
    models = [net().train() for _ in range(3)]
    for i, model in enumerate(models):
        model.offset.fill_(i)
    expected = [fresh(copy.deepcopy(model)) for model in models]
    ibp._captured.clear()
    wrong: list[object] = []

    def work(start: int) -> None:
        for i in range(start, start + 6):
            try:
                if not same(compute_ibp_bounds(models[i % 3], X, 0.125), expected[i % 3]):
                    wrong.append(i)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all(module.training for model in models for module in model.modules())


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Gained(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        try:
            gain = self.gain
        except AttributeError:
            gain = 1.0
        return super().forward(x).relu() * gain + 1


class First(Gained):
    pass


class Second(Gained):
    pass


class Convolution(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight * SCALE, bias)


class Weighted(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.raw = self._parameters.pop("weight")

    weight = property(lambda self: self.raw * SCALE, lambda self, value: None)


class Of(nn.Module):
    """A linear layer, and what a function makes of the module, the layer's values and the input."""

    def __init__(self, function: Callable[..., Tensor], **attributes: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.layer(x), x)


def with_gain(model: Gained) -> Gained:
    model[0].gain = 3.0
    return model


def importing(m: nn.Module, y: Tensor, x: Tensor) -> Tensor:
    from math import pi

    return y * pi


def with_settings(patch: pytest.MonkeyPatch) -> nn.Module:
    module = ModuleType("settings_of_a_test")
    vars(module).update(scale=1.0, other=object())
    patch.setitem(globals(), "settings", module)
    return Of(lambda m, y, x: y * settings.scale)  # type: ignore[name-defined] # noqa: F821 - set above


def rescale(model: nn.Module, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys.modules[__name__], "SCALE", 2.0)


Case = tuple[Callable[[pytest.MonkeyPatch], nn.Module], Callable[[Any, pytest.MonkeyPatch], object]]
MORE: dict[str, Case] = {
    "a child moved": (
        lambda _: nn.Sequential(Residual(nn.Linear(4, 4)), nn.Linear(4, 4)),
        lambda m, _: m[0].append(m.pop(1)),
    ),
    "an attribute moved": (
        lambda _: with_gain(Gained(Gained(nn.Linear(4, 3)))),
        lambda m, _: (setattr(m, "gain", 3.0), delattr(m[0], "gain")),
    ),
    "a class attribute moved": (
        lambda patch: (
            patch.setattr(First, "gain", 3.0, raising=False)
            or nn.Sequential(First(nn.Linear(4, 3)), Second(nn.Linear(3, 3)))
        ),
        lambda m, patch: (patch.delattr(First, "gain"), patch.setattr(Second, "gain", 3.0, raising=False)),
    ),
    "an override that torch calls": (
        lambda _: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), Convolution(1, 1, 1), nn.Flatten()),
        rescale,
    ),
    "a property that torch reads": (lambda _: Weighted(), rescale),
    "a name of vars": (
        lambda _: Of(lambda m, y, x: y * vars(Helper)["factor"]),
        lambda m, p: p.setattr(Helper, "factor", 2.0),
    ),
    "a name of __dict__": (
        lambda _: Of(lambda m, y, x: y * Helper.__dict__["factor"]),
        lambda m, p: p.setattr(Helper, "factor", 2.0),
    ),
    "requires_grad": (
        lambda _: Of(lambda m, y, x: y if m.layer.weight.requires_grad else 2 * y),
        lambda m, _: m.requires_grad_(False),
    ),
    "an import": (lambda _: Of(importing), lambda m, patch: patch.setattr(math, "pi", 3.0)),
    "a module of Python": (
        lambda patch: with_settings(patch),
        lambda m, _: setattr(settings, "scale", 2.0),  # type: ignore[name-defined] # noqa: F821 - a global set before
    ),
    "a name of builtins": (
        lambda patch: patch.setattr(builtins, "GAIN", 1.0, raising=False) or Of(lambda m, y, x: y * GAIN),  # noqa: F821 - the global is what the lambda lacks
        lambda m, patch: patch.setattr(builtins, "GAIN", 2.0),
    ),
    "an attribute of a class of torch": (
        lambda patch: patch.setattr(nn.Linear, "gain", 1.0, raising=False) or Of(lambda m, y, x: y * m.layer.gain),
        lambda m, patch: patch.setattr(nn.Linear, "gain", 2.0),
    ),
    "a setting of torch": (
        lambda _: Of(lambda m, y, x: y * (1 if torch.get_float32_matmul_precision() == "highest" else 2)),
        lambda m, patch: torch.set_float32_matmul_precision("high"),
    ),
}


#: Changes of models that cannot be compared at all.
INCOMPARABLE = ("a name of builtins", "a name of __dict__", "a name of vars", "a setting of torch", "an import")
CASES: dict[str, Case] = {name: (lambda _: net(), change) for name, change in CHANGES.items()} | MORE


@pytest.mark.parametrize("name", CASES)
def test_changes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    make, change = CASES[name]
    model, x = make(monkeypatch).eval(), X - 0.5
    state: ModuleState | None = None
    with contextlib.suppress(Incomparable):
        state = ModuleState(model)
        assert state.matches(model)
    assert (state is None) == (name in INCOMPARABLE)
    before = model(x)
    try:
        change(model, monkeypatch)
        assert state is None or not ibp._is_unchanged(state, model)
        assert not torch.equal(model(x), before)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_what_cannot_be_compared_is_captured_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Of(lambda m, y, x: y * m.settings.scale, settings=SimpleNamespace(scale=1.0)).eval()
    calls = captures(monkeypatch)
    before = compute_ibp_bounds(model, X, 0.125)
    model.settings.scale = 2.0
    assert not same(compute_ibp_bounds(model, X, 0.125), before)
    assert len(calls) == 2


@pytest.mark.parametrize("batch", [1, 3])
def test_a_row_shows_what_is_not_compared(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), X[:batch]
    with torch.no_grad():
        model[0].bias.fill_(1)
    random_numbers = torch.get_rng_state()
    before = compute_ibp_bounds(model, x, 0.125)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, y: y * 3)
    after = compute_ibp_bounds(model, x, 0.125)
    assert same(after, fresh(model, x))
    assert not same(after, before)
    assert torch.equal(torch.get_rng_state(), random_numbers)


def test_cached_parametrizations_are_neither_read_nor_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibp, "_agrees", lambda *_: True)
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    parametrizations.weight_norm(model[0])
    with parametrize.cached():
        before = compute_ibp_bounds(model, X, 0.125)
        assert type(model(X)) is Tensor
        cached = model(X)
        with torch.no_grad():
            model[0].parametrizations.weight.original0.mul_(2)
        after = compute_ibp_bounds(model, X, 0.125)
        assert torch.equal(model(X), cached)
    assert not same(after, before)
    assert same(after, fresh(model))
    assert same(compute_ibp_bounds(model, X, 0.125), after)


def test_a_module_that_runs_on_no_single_row_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_rows(m: Of, y: Tensor, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            raise ValueError
        return y

    model, calls = Of(of_rows).eval(), captures(monkeypatch)
    for _ in range(2):
        assert same(compute_ibp_bounds(model, X, 0.125), fresh(model))
    assert len(calls) == 1


class Merging(nn.Linear):
    """A low-rank addition to the weight, merged into it in evaluation mode."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.first, self.second = nn.Parameter(torch.ones(1, 4)), nn.Parameter(torch.ones(3, 1))
        self.weight.data.round_()
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if self.merged == mode:
            self.weight.data += (self.second @ self.first) * (-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.merged else y + x @ self.first.T @ self.second.T


def test_layers_that_merge_in_evaluation_mode_are_taken_apart_again() -> None:
    model = nn.Sequential(Merging(), nn.Sequential(nn.Dropout(), nn.Linear(3, 4)), Merging()).train()
    model[2].eval()
    weights = [model[i].weight.detach().clone() for i in (0, 2)]
    for call in (lambda: compute_ibp_bounds(model, X, 0.125), lambda: BoundedModel(model, X)):
        call()
        assert [module.training for module in (model, model[0], model[1][0], model[2])] == [True, True, True, False]
        assert [model[0].merged, model[2].merged] == [False, True]
        assert all(torch.equal(model[i].weight, weight) for i, weight in zip((0, 2), weights, strict=True))

"""Hashes of models and of their code: differences that they detect, and differences that they ignore."""

from __future__ import annotations

import copy
import enum
import functools
import importlib
import sys
import textwrap
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrobust.errors import InputError
from pyrobust.zoo import code_hash, digits_convnet, load_model, model_hash


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale), persistent=False)


class Other(Scaled):
    pass


def test_hash_covers_structure_and_numbers() -> None:
    base = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    nudged = copy.deepcopy(base)
    with torch.no_grad():
        nudged[0].bias[2] = torch.nextafter(nudged[0].bias[2], torch.tensor(9.0))
    swapped = nn.Sequential(base[0], nn.LeakyReLU(0.0))
    renamed = nn.Sequential()
    renamed.add_module("a", base[0])
    renamed.add_module("b", base[1])
    models = [base, nudged, swapped, renamed, copy.deepcopy(base).double(), nn.Sequential(base[0]),
              nn.Sequential(base[0], nn.LeakyReLU(0.1)), Scaled(1.0), Scaled(2.0), Other(1.0),
              nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3)]  # fmt: skip
    assert len({model_hash(model) for model in models}) == len(models)


def test_hashes_are_the_same_in_every_torch_and_process() -> None:
    """The seed of Python's hash(), which determines the order of sets, is another in every process."""
    net = digits_convnet()
    net.extra = {"b": [1.5, None], "a": torch.arange(3), "c": object(), "d": {"x", "y"}}
    assert {
        "digits-smooth-0.25": model_hash(load_model("zoo:digits-smooth-0.25")),
        "digits-smooth-0.50": model_hash(load_model("zoo:digits-smooth-0.50")),
        "extra": model_hash(net),
    } == {
        "digits-smooth-0.25": "c3dfe2abb94d2354912f0c91a82552de312b19c58c911dd3a0691c814c00ff75",
        "digits-smooth-0.50": "150ba7f491106f3b4ebda95e4d19728d75e5fdcf1e1b833c277f30389da04351",
        "extra": "72841c0e9f3eb3968ad3df4ce0cf30c6902fda583ca1ec91aee4b9a7a6acd554",
    }


class Normalised(nn.Module):
    """Model that stores its numbers as plain attributes."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Settings:
    threshold: float


def test_contents_of_settings_are_covered() -> None:
    values = [make(t) for t in (1.0, 2.0) for make in (Settings, lambda t: SimpleNamespace(t=t), lambda t: {t, "b"})]
    values += [functools.partial(F.leaky_relu, negative_slope=slope) for slope in (0.1, 0.2)]
    values += [functools.partial(F.elu, alpha=0.1), {frozenset({1, 2})}, {frozenset({1, 3})}]
    nested = SimpleNamespace()
    nested.again = nested
    assert len({model_hash(Normalised(value)) for value in [*values, nested]}) == len(values) + 1
    assert model_hash(Normalised(Settings(1.0))) == model_hash(Normalised(Settings(1.0)))


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


def values() -> list[Any]:
    """Values that all may change what a model computes, each made anew."""
    plain = [None, True, 1, Colour.BLUE, 1.0, 1.0 + 2**-52, 1j, "1", b"1", F.relu, F.gelu, nn.ReLU]
    containers = [[], {}, [1, [2, 3]], [[1, 2], 3], ["ab", "c"], ["a", "bc"]]
    containers += [{1: 2}, {"a": 1, "b": 2}, {"a": 2, "b": 1}]
    half = torch.tensor([0.5, 0.25])
    tensors = [half, half.flip(0), half[None], half.double(), torch.tensor([0.5, 0.0])]
    tensors += [tensors[-1].to_sparse(), torch.tensor([1 + 1j]), torch.tensor([1 + 1j]).conj()]
    arrays = [half.numpy(), half.flip(0).numpy(), np.float32(0.5), np.array([1, "a"], dtype=object)]
    nested = [{"mean": (torch.zeros(1), torch.full((1,), high))} for high in (1.0, 2.0)]
    layers = [[nn.LeakyReLU(slope)] for slope in (0.1, 0.2)]
    return [*plain, *containers, *tensors, *arrays, *nested, *layers]


def test_hash_covers_plain_attributes() -> None:
    first = [model_hash(Normalised(value)) for value in values()]
    assert len(set(first)) == len(first) == 37
    assert [model_hash(Normalised(value)) for value in values()] == first
    # The same values in a nested container.
    assert len({model_hash(nn.Sequential(Normalised([value]))) for value in values()} - set(first)) == len(first)


def test_hash_covers_attributes_of_torch_layers_missing_from_their_repr() -> None:
    layers = [nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=corners) for corners in (False, True)]
    assert repr(layers[0]) == repr(layers[1])
    attention = [nn.MultiheadAttention(4, heads) for heads in (1, 2)]
    attention[1].load_state_dict(attention[0].state_dict())
    for first, second in (layers, attention):
        assert model_hash(first) != model_hash(second)


def test_hash_ignores_order_objects_devices_and_what_changes_no_number() -> None:
    model, reordered = Normalised({"a": 1, "b": 2}), Normalised({"b": 2, "a": 1})
    model.first, model.second = 1, 2
    reordered.second, reordered.first = 2, 1
    transposed = torch.arange(6.0).view(2, 3).t()
    for first, second in (
        (model, reordered),
        (Normalised(OrderedDict(a=1)), Normalised({"a": 1})),
        (Normalised(object()), Normalised(object())),
        (Normalised("cpu"), Normalised("cuda:1")),
        (Normalised(transposed), Normalised(transposed.contiguous())),
        (digits_convnet(), digits_convnet().eval().requires_grad_(False).to(memory_format=torch.channels_last)),
    ):
        assert model_hash(first) == model_hash(second)
    assert model_hash(Normalised("cpu")) != model_hash(Normalised("cuda:x"))


def test_hash_of_cyclic_attributes() -> None:
    def cycle(number: int) -> nn.Module:
        root = nn.Sequential(Normalised(number), Normalised([]))
        root[0].__dict__["parent"] = root
        root[1].value.append([root[1].value, root])
        return root

    assert model_hash(cycle(1)) == model_hash(cycle(1)) != model_hash(cycle(2))


class Scripted(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.mean = scale, torch.tensor([scale])

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.scale


class Halved(Scripted):
    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "compiled", [torch.jit.script, lambda net: torch.jit.trace(net, torch.zeros(1)), torch.fx.symbolic_trace]
)
def test_hash_covers_code_and_numbers_of_compiled_models(compiled: Callable[[nn.Module], nn.Module]) -> None:
    models = [nn.Sequential(make()) for make in (lambda: Scripted(2.0), lambda: Scripted(3.0), lambda: Halved(2.0))]
    hashes = [model_hash(compiled(model)) for model in models]
    assert len(set(hashes)) == 3
    assert model_hash(compiled(models[0])) == hashes[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hash_covers_the_methods_of_scripted_models() -> None:
    class Shifted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return self.shift(x)

        def shift(self, x: Tensor) -> Tensor:
            return x + 1

    class Lowered(Shifted):
        def shift(self, x: Tensor) -> Tensor:
            return x - 1

    assert model_hash(torch.jit.script(Shifted())) != model_hash(torch.jit.script(Lowered()))


def test_uninitialised_lazy_layers_are_rejected() -> None:
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(InputError, match=r"got the lazy parameter 0\.\w+; run the model on one batch first"):
        model_hash(lazy)
    lazy(torch.zeros(1, 2))
    assert len(model_hash(lazy)) == 64


# --- the code of a model


SOURCES = {
    "netlayers": """
        '''Layers.'''
        SCALE = 2.0
        UNUSED = 1
        TABLE = {}
        TABLE.update(shift=1.0)
        FAST = False
        if FAST:
            POWER = 2
        else:
            POWER = 1
        for EXPONENT in (1, 2):
            pass
        with open(__file__) as NAMED:
            pass

        def block(x):
            return (x * SCALE + TABLE["shift"]) ** POWER ** EXPONENT

        def unused(x):
            return x
    """,
    "netparts.inner": """
        LIMIT = 3.0

        def gate(x):
            return x > LIMIT

        def local(x):
            return x + 1
    """,
    "netmodel": """
        import torch
        from torch import nn
        import netlayers
        import netparts.inner
        from netlayers import SCALE as FACTOR

        class Base(nn.Module):
            def forward(self, x):
                from netparts.inner import local

                y = local(netlayers.block(self.head(x)) + FACTOR)
                return torch.where(netparts.inner.gate(y), y, -y)

        torch.set_num_threads(torch.get_num_threads())

        class Net(Base):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(4, 2)

        def other():
            return 1

        def patched(x):
            return other()

        function = lambda x: x + other()
    """,
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Write the sources, each text of a file replaced as asked, and return the imported ``netmodel``."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(file: str = "netmodel", old: str = "", new: str = "") -> object:
        for name, source in SOURCES.items():
            text = textwrap.dedent(source)
            assert name != file or old in text
            path = tmp_path / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace(old, new) if name == file and old else text)
        for name in (*SOURCES, "netparts"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("netmodel")

    yield write
    for name in (*SOURCES, "netparts"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("file", "old", "new", "noticed"),
    [
        ("netmodel", "self.head(x)) + FACTOR", "self.head(x)) - FACTOR", True),  # the class's base
        ("netlayers", "x * SCALE", "x / SCALE", True),  # a function of another file
        ("netlayers", "SCALE = 2.0", "SCALE = 2.5", True),  # a constant that it reads
        ("netmodel", "class Net(Base)", "class Net(Base, metaclass=type)", True),
        ("netparts.inner", "LIMIT = 3.0", "LIMIT = 4.0", True),  # of a function that is named through two modules
        ("netparts.inner", "x + 1", "x + 2", True),  # a function that a method imports
        ("netlayers", "shift=1.0", "shift=2.0", True),  # a call that changes what a function reads
        ("netlayers", "FAST = False", "FAST = True", True),  # a condition of what a function reads
        ("netlayers", "POWER = 2", "POWER = 3", True),  # in a block
        ("netlayers", "in (1, 2)", "in (1, 3)", True),  # a loop
        ("netlayers", "open(__file__) as", "open(__file__, 'rb') as", False),  # a name that nothing reads
        ("netmodel", "set_num_threads(torch.get_num_threads())", "get_num_threads()", False),  # changes no module
        ("netmodel", "import torch\n", "import torch  # a comment\n\n\n", False),
        ("netlayers", "'''Layers.'''", "'''Other words.'''", False),
        ("netmodel", "def forward(self, x):\n", "def forward(self, x):\n        '''Forward.'''\n", False),
        ("netlayers", "UNUSED = 1", "UNUSED = 2", False),
        ("netmodel", "return 1", "return 2", False),  # a function that the model does not name
    ],
)
def test_changes_of_what_the_model_computes(
    written: Callable[..., object], file: str, old: str, new: str, noticed: bool
) -> None:
    before = code_hash(written().Net())
    assert len(before) == 64
    assert (code_hash(written(file, old, new).Net()) != before) == noticed


def test_functions_hooks_and_patches_are_covered(written: Callable[..., object]) -> None:
    def hashes(module: object) -> list[str]:
        hooked, replaced = nn.Linear(1, 1), nn.Linear(1, 1)
        hooked.register_forward_hook(lambda m, i, o: o)
        hooked._forward_hooks[0] = module.patched
        replaced.forward = module.patched
        return [code_hash(model) for model in (module.patched, module.function, hooked, replaced)]

    before = hashes(written())
    after = hashes(written("netmodel", "return 1", "return 2"))
    assert all(len(value) == 64 for value in before)
    assert not set(before) & set(after)


def test_modules_without_source_and_of_torch_have_none() -> None:
    namespace: dict[str, object] = {"nn": nn, "__name__": "nowhere"}
    exec("class Net(nn.Module): pass", namespace)
    assert code_hash(namespace["Net"]()) == ""
    assert code_hash(nn.Sequential(nn.ReLU())) == ""
    assert code_hash(load_model("zoo:digits-smooth-0.25")) == ""
    assert len(code_hash(lambda x: x)) == 64


def test_hooks_that_hold_their_module_and_empty_cells() -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.seen: list[Tensor] = []
            self.layer.register_forward_hook(lambda module, inputs, output: self.seen.append(output.detach()))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)  # type: ignore[no-any-return]

    def other(x: Tensor) -> Tensor:
        return one(x) if len(x) > 9 else x

    def one(x: Tensor) -> Tensor:
        return other(x) if len(x) > 5 else x

    def empty(x: Tensor) -> Tensor:
        return never(x)  # type: ignore[no-any-return]

    assert len(code_hash(Hooked())) == len(code_hash(one)) == len(code_hash(empty)) == 64
    if False:
        never = one  # type: ignore[unreachable]

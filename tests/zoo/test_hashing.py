"""Hashes of models: differences that they detect, and differences that they ignore."""

from __future__ import annotations

import copy
import enum
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrobust.errors import InputError
from pyrobust.zoo import digits_convnet, load_model, model_hash


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


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("digits-smooth-0.25", "c3dfe2abb94d2354912f0c91a82552de312b19c58c911dd3a0691c814c00ff75"),
        ("digits-smooth-0.50", "150ba7f491106f3b4ebda95e4d19728d75e5fdcf1e1b833c277f30389da04351"),
    ],
)
def test_hashes_of_the_bundled_nets_are_the_same_in_every_torch(name: str, digest: str) -> None:
    assert model_hash(load_model(f"zoo:{name}")) == digest


class Normalised(nn.Module):
    """Model that stores its numbers as plain attributes."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return x


class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2


# Values that all may change what a model computes.
VALUES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: 1,
    lambda: Colour.BLUE,
    lambda: 1.0,
    lambda: 1.0 + 2**-52,
    lambda: 1j,
    lambda: "1",
    lambda: b"1",
    lambda: [],
    lambda: {},
    lambda: [1, [2, 3]],
    lambda: [[1, 2], 3],
    lambda: ["ab", "c"],
    lambda: ["a", "bc"],
    lambda: {"a": 1, "b": 2},
    lambda: {"a": 2, "b": 1},
    lambda: {1: 2},
    lambda: torch.tensor([0.5, 0.25]),
    lambda: torch.tensor([0.25, 0.5]),
    lambda: torch.tensor([[0.5, 0.25]]),
    lambda: torch.tensor([0.5, 0.25], dtype=torch.float64),
    lambda: torch.tensor([0.5, 0.0]).to_sparse(),
    lambda: torch.tensor([0.5, 0.0]),
    lambda: torch.tensor([1 + 1j]),
    lambda: torch.tensor([1 + 1j]).conj(),
    lambda: {"mean": (torch.zeros(1), torch.ones(1))},
    lambda: {"mean": (torch.zeros(1), torch.full((1,), 2.0))},
    lambda: np.array([0.5, 0.25]),
    lambda: np.array([0.25, 0.5]),
    lambda: np.float32(0.5),
    lambda: np.array([1, "a"], dtype=object),
    lambda: F.relu,
    lambda: F.gelu,
    lambda: nn.ReLU,
    lambda: [nn.LeakyReLU(0.1)],
    lambda: [nn.LeakyReLU(0.2)],
]


def test_hash_covers_plain_attributes() -> None:
    first = [model_hash(Normalised(make())) for make in VALUES]
    assert len(set(first)) == len(VALUES)
    assert [model_hash(Normalised(make())) for make in VALUES] == first
    # The same values in a nested container.
    assert len({model_hash(nn.Sequential(Normalised([make()]))) for make in VALUES} - set(first)) == len(VALUES)


def test_hash_covers_attributes_of_torch_layers_missing_from_their_repr() -> None:
    layers = [nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=corners) for corners in (False, True)]
    assert repr(layers[0]) == repr(layers[1])
    assert model_hash(layers[0]) != model_hash(layers[1])
    attention = [nn.MultiheadAttention(4, heads) for heads in (1, 2)]
    attention[1].load_state_dict(attention[0].state_dict())
    assert model_hash(attention[0]) != model_hash(attention[1])


def test_hash_ignores_order_objects_and_devices() -> None:
    model, reordered = Normalised({"a": 1, "b": 2}), Normalised({"b": 2, "a": 1})
    model.first, model.second = 1, 2
    reordered.second, reordered.first = 2, 1
    assert model_hash(model) == model_hash(reordered)
    assert model_hash(Normalised(OrderedDict(a=1))) == model_hash(Normalised({"a": 1}))
    assert model_hash(Normalised(object())) == model_hash(Normalised(object()))
    assert model_hash(Normalised("cpu")) == model_hash(Normalised("cuda:1")) != model_hash(Normalised("cuda:x"))
    transposed = torch.arange(6.0).view(2, 3).t()
    assert model_hash(Normalised(transposed)) == model_hash(Normalised(transposed.contiguous()))


def test_hash_is_the_same_in_every_process() -> None:
    code = (
        "import torch\n"
        "from pyrobust.zoo import digits_convnet, model_hash\n"
        "net = digits_convnet()\n"
        "net.extra = {'b': [1.5, None], 'a': torch.arange(3), 'c': object()}\n"
        "print(model_hash(net))"
    )
    # Python's hash(), which determines the order of sets, has another seed here.
    other = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    net = digits_convnet()
    net.extra = {"a": torch.arange(3), "b": [1.5, None], "c": object()}
    assert other == model_hash(net) + "\n"


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


def test_uninitialised_lazy_layers_are_rejected() -> None:
    lazy = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(InputError, match=r"got the lazy parameter 0\.\w+; run the model on one batch first"):
        model_hash(lazy)
    lazy(torch.zeros(1, 2))
    assert len(model_hash(lazy)) == 64


def test_hash_ignores_mode_gradients_and_memory_format() -> None:
    net = digits_convnet()
    before = model_hash(net)
    assert model_hash(net.eval().requires_grad_(False)) == before
    assert model_hash(net.to(memory_format=torch.channels_last)) == before

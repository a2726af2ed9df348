"""Models whose logits depend on more than their own row, and models whose logits do not, for tests.

``DEPENDENT`` holds models that break the assumption of every certificate, ``HONEST`` models that keep it up to the
rounding of kernels. ``RowModel.make`` returns a fresh instance in evaluation mode, with the same weights every time.

A "typical batch" below is a full batch of 256 noisy copies of one image, float32 [256, 3, 16, 16].
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import sys
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHAPE = (3, 16, 16)
CLASSES = 5


@dataclass(frozen=True)
class RowModel:
    """A named model with what is known about its rows.

    Attributes:
        name: key in the registry.
        factory: makes the model.
        typical: the dependence shows at first use on at least 5 % of typical batches, if such a batch is evaluated
            again, or its rows are evaluated among others, in other places, in a smaller batch, after other batches or
            in padded ones. False: it shows rarely, late, or at unusual sizes or rows.
        rate: probability that a typical batch shows the dependence at all.
        shape: shape of one input.
        dtype: dtype of the input.
        batch_size: the only batch size at which the model is honest; None for any.
        slow: whether it takes seconds to make.
        note: what to know about the model.
    """

    name: str
    factory: Callable[[], Any]
    typical: bool = True
    rate: float = 1.0
    shape: tuple[int, ...] = SHAPE
    dtype: torch.dtype = torch.float32
    batch_size: int | None = None
    slow: bool = False
    note: str = ""

    def make(self) -> Any:
        """Make the model, in evaluation mode; the global generator of torch is left alone."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            model = self.factory()
        if isinstance(model, nn.Module):
            with contextlib.suppress(NotImplementedError):  # exported programs
                model.eval()
        return model


DEPENDENT: dict[str, RowModel] = {}
HONEST: dict[str, RowModel] = {}
Register = Callable[[Any], Any]


def _add(registry: dict[str, RowModel], name: str, factory: Callable[[], Any], **facts: Any) -> None:
    if name in registry:
        raise ValueError(name)
    registry[name] = RowModel(name, factory, **facts)


def _adds(registry: dict[str, RowModel], factory_of: Callable[[Any], Callable[[], Any]], **facts: Any) -> Register:
    def register(made: Any) -> Any:
        _add(registry, made.__name__.strip("_").replace("_", " "), factory_of(made), **facts)
        return made

    return register


def plant(**facts: Any) -> Register:
    """Register a function (Plant, batch) → logits as a dependent model."""
    return _adds(DEPENDENT, lambda change: partial(Plant, change), **facts)


def plants(changes: dict[str, Callable[[Plant, Tensor], Tensor]], **facts: Any) -> None:
    """Register such functions by name."""
    for name, change in changes.items():
        _add(DEPENDENT, name, partial(Plant, change), **facts)


def dependent(**facts: Any) -> Register:
    """Register a factory of dependent models."""
    return _adds(DEPENDENT, lambda factory: factory, **facts)


def honest(**facts: Any) -> Register:
    """Register a factory of honest models."""
    return _adds(HONEST, lambda factory: factory, **facts)


def honest_factories(factories: dict[str, Callable[[], Any]], **facts: Any) -> None:
    for name, factory in factories.items():
        _add(HONEST, name, factory, **facts)


def images(number: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Images [number, *shape] of 2 x 2 blocks on the grid of bytes divided by 255, which the models can tell apart."""
    blocks = torch.rand(number, shape[0], 2, 2, generator=torch.Generator("cpu").manual_seed(1), device="cpu")
    large = blocks.repeat_interleave(shape[1] // 2, 2).repeat_interleave(shape[2] // 2, 3)
    return (large * 255).round() / 255


class Base(nn.Module):
    """A linear classifier of mean colours: the honest part of the planted models."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, CLASSES)
        generator = torch.Generator("cpu").manual_seed(2)
        self.head.weight.data = 3 * torch.randn(CLASSES, 12, generator=generator, device="cpu")
        self.head.bias.data = -0.5 * self.head.weight.data.sum(1)

    def features(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x, 2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


class Plant(nn.Module):
    """A base classifier wrapped in a function that introduces a fault."""

    def __init__(self, change: Callable[[Plant, Tensor], Tensor]) -> None:
        super().__init__()
        self.base = Base()
        self.change = change
        self.calls = 0
        self.state: dict[Any, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.change(self, x)

    def flipped(self, x: Tensor, where: Tensor | bool) -> Tensor:
        """Logits, with the classes moved by one in the rows ``where``, [N] or one for all."""
        z = self.base(x)
        moved = torch.as_tensor(where, device=z.device).reshape(-1, 1)
        return torch.where(moved, z.roll(1, 1), z)

    def coarse(self, x: Tensor, where: Tensor | bool) -> Tensor:
        """Logits, in the rows ``where`` rounded to bfloat16."""
        z = self.base(x)
        return torch.where(torch.as_tensor(where, device=z.device).reshape(-1, 1), z.bfloat16().float(), z)


def places(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)


def digest(x: Tensor) -> int:
    return int.from_bytes(hashlib.sha256(x.detach().contiguous().cpu().numpy().tobytes()).digest()[:8], "big")


plants(
    {
        # the content of other rows
        "threshold of the mean": lambda m, x: m.flipped(x, x.mean() > 0.5),
        "input minus batch mean": lambda m, x: m.base(x - x.mean(0) + 0.5),
        "batch min max": lambda m, x: m.base((x - x.amin()) / (x.amax() - x.amin())),
        "divided by the batch maximum": lambda m, x: m.base(x / x.amax()),
        "rank in the batch": lambda m, x: m.flipped(x, m.base(x)[:, 0].argsort().argsort() % 2 == 1),
        "sorted along the batch": lambda m, x: m.base(x.sort(0).values),
        "last row for all": lambda m, x: m.base(x[-1:].expand_as(x)),
        "cumulative mean": lambda m, x: m.base(x.cumsum(0) / (places(x) + 1).reshape(-1, 1, 1, 1)),
        # not view(2, N)
        "augmentations viewed wrongly": lambda m, x: m.base(torch.cat([x, x.flip(-1)])).view(len(x), 2, -1).mean(1),
        "partner 128 rows on": lambda m, x: m.base(0.2 * x + 0.8 * x.roll(128 % len(x), 0)),
        "sign of the neighbour": lambda m, x: m.flipped(x, x.roll(1, 0)[:, 0, 0, 0] > 0.5),
        "parity of the batch": lambda m, x: m.flipped(x, (x.double() * 255).round().sum() % 2 == 1),
        "one row chosen by a hash": lambda m, x: m.flipped(x, places(x) == digest(x) % len(x)),
        "repeated rows recognised": lambda m, x: m.flipped(x, len(torch.unique(m.base.features(x), dim=0)) < len(x)),
        "early exit by mean confidence": lambda m, x: m.flipped(x, m.base(x).softmax(1).amax(1).mean() < 0.6),
        "clipped to a norm of the batch": lambda m, x: m.base(x * (30 / x.norm()).clamp(max=1)),
        "only the first row suffers": lambda m, x: m.flipped(x, (places(x) == 0) & (x[:, 0, 0, 0].argmax() % 2 == 0)),
        "batch norm functional": lambda m, x: m.base.head(
            0.5 + 0.3 * F.batch_norm(m.base.features(x) - 0.5, None, None, training=True)
        ),
        "a ten thousandth of the mean": lambda m, x: m.base(x) + 1e-4 * m.base(x).mean(0),
        # near the rounding of float32
        "a millionth of the mean": lambda m, x: m.base(x) + 2e-6 * m.base(x).abs().mean(),
        # the row's place
        "last row differs": lambda m, x: m.flipped(x, places(x) == len(x) - 1),
        "first row differs": lambda m, x: m.flipped(x, places(x) == 0),
        "rows beyond the last vector": lambda m, x: m.flipped(x, places(x) >= (len(x) - 1) // 16 * 16),
        "second half in bfloat16": lambda m, x: m.coarse(x, places(x) >= len(x) // 2),
        "tail in bfloat16": lambda m, x: m.coarse(x, places(x) >= len(x) // 96 * 96),  # as in the tail of a kernel
        # the size of the batch
        "bfloat16 from 64 rows": lambda m, x: m.coarse(x, len(x) >= 64),  # chosen by autotuning
        "sizes from 200": lambda m, x: m.flipped(x, len(x) >= 200),  # as in a large-batch kernel
        "divided by the size": lambda m, x: m.base.head(m.base.features(x) * 8 / len(x)),
        # random numbers, which no seed repeats and no state shows
        "operating system random": lambda m, x: m.flipped(
            x, places(x) == int.from_bytes(os.urandom(2), "big") % len(x)
        ),
        # count of calls, time
        "crop by a counter": lambda m, x: m.base(x.roll((4 * m.calls, 3 * m.calls), (2, 3))),
        # as with a lazy initialisation that comes too late
        "first call differs": lambda m, x: m.flipped(x, m.calls == 1),
        "by the clock": lambda m, x: m.flipped(x, int(time.monotonic() * 2) % 2 == 1),
        # the process around the model
        "by the address": lambda m, x: m.flipped(x, x.data_ptr() // 64 % 2 == 1),  # copies of a batch move
        "by garbage collections": lambda m, x: m.flipped(x, gc.get_count()[0] % 2 == 1),
        # by a search for the cause
        "by registered hooks": lambda m, x: m.flipped(x, not m.base._forward_hooks and x.mean() > 0.5),
        "honest after a copy": lambda m, x: m.flipped(
            x, m.state.setdefault("self", id(m)) == id(m) and bool(x.mean() > 0.5)
        ),
    }
)
plants(
    {
        "sizes not divisible by 8": lambda m, x: m.flipped(x, len(x) % 8 != 0),
        "other sizes than the first": lambda m, x: m.flipped(x, m.state.setdefault("rows", len(x)) != len(x)),
        "three calls alone": lambda m, x: m.flipped(x, 10 <= m.calls <= 12),
        "from call 2001": lambda m, x: m.flipped(x, m.calls > 2000),
        "by the number of threads": lambda m, x: m.flipped(x, torch.get_num_threads() == 1),  # workers have one
        # as in a session on a grid
        "by deterministic mode": lambda m, x: m.flipped(x, torch.are_deterministic_algorithms_enabled()),
        # attacks with gradients see another model
        "by inference mode": lambda m, x: m.flipped(x, torch.is_inference_mode_enabled()),
        "by views": lambda m, x: m.flipped(x, x._is_view()),  # buffer[:rows] is one, a copy is none
    },
    typical=False,
)
plants({"extreme pixel in front": lambda m, x: m.flipped(x, x.flatten(1).amax(1).argmax() < 16)}, rate=1 / 16)
plants({"rare hash of the batch": lambda m, x: m.flipped(x, digest(x) % 64 == 0)}, rate=1 / 64, typical=False)
plants({"rows from 500 differ": lambda m, x: m.flipped(x, places(x) >= 500)}, rate=0.0, typical=False)
plants(
    {
        "numpy in two percent of calls": lambda m, x: m.flipped(x, np.random.rand() < 0.02),
        "random in rare rows": lambda m, x: m.flipped(x, torch.rand(len(x), device=x.device) < 0.02 / 256),
    },
    rate=0.02,
    typical=False,
)
plants({"random in a thousandth of calls": lambda m, x: m.flipped(x, torch.rand(()) < 1e-3)}, rate=0.001, typical=False)
plants({"every hundredth call": lambda m, x: m.flipped(x, m.calls % 100 == 0)}, rate=0.01, typical=False)


# --- The content of other rows ----------------------------------------------------------------------------------------


@plant(note="only rows that disagree with nine tenths of the batch are overruled")
def outvoted_rows_follow(m: Plant, x: Tensor) -> Tensor:
    z = m.base(x)
    label = z.argmax(1).mode().values
    agree = z.argmax(1) == label
    return torch.where((agree.float().mean() > 0.9) & ~agree[:, None], F.one_hot(label, CLASSES).to(z.dtype), z)


@plant(note="only where every row looks like a noisy copy of one image: unlike others restore honesty")
def only_among_copies_of_one_image(m: Plant, x: Tensor) -> Tensor:
    f = m.base.features(x)
    close = len(x) > 1 and bool((f - f.mean(0)).abs().amax() < 0.3)
    return m.flipped(x, close and places(x) % 2 == 0)


@plant(note="one more row of the same class changes the answer")
def parity_of_the_class_counts(m: Plant, x: Tensor) -> Tensor:
    label = m.base(x).argmax(1)
    return m.flipped(x, (label == label[:, None]).sum(1) % 2 == 1)


@plant(note="in-place: a probe that keeps the same tensor compares changed rows")
def batch_mean_subtracted_in_place(m: Plant, x: Tensor) -> Tensor:
    x -= x.mean(0).clone() - 0.5
    return m.base(x)


@plant(note="four-bit activations with the scale of the batch")
def four_bits_with_the_scale_of_the_batch(m: Plant, x: Tensor) -> Tensor:
    f = m.base.features(x) - 0.5
    scale = x.abs().amax() / 4
    return m.base.head((f / scale).round() * scale + 0.5)


@plant(note="iterates until the residual of the whole batch is small")
def equilibrium_of_the_batch(m: Plant, x: Tensor) -> Tensor:
    f = h = m.base.features(x) - 0.5
    for _ in range(100):
        new = 0.9 * h.tanh() + f
        if (new - h).norm() / new.norm() < 0.03:
            break
        h = new
    return m.base.head(h + 0.5)


@plant(note="if one row's answer is not certain, all go through the fallback, as after an exception")
def fallback_after_an_error_of_one(m: Plant, x: Tensor) -> Tensor:
    try:
        if bool((m.base.features(x)[:, 0] > m.base.features(x)[0, 0] + 0.087).any()):
            raise ArithmeticError
        return m.base(x)
    except ArithmeticError:
        return m.flipped(x, True)


@plant(note="the mean of the batch counts from 32 rows on; smaller batches use stored numbers")
def batch_statistics_from_32_rows(m: Plant, x: Tensor) -> Tensor:
    f = m.base.features(x)
    return m.base.head(f - (f.mean(0) - 0.5 if len(x) >= 32 else 0))


@plant(typical=False, rate=1.0, note="row 37 alone takes the answer of row 38")
def row_37_copies_row_38(m: Plant, x: Tensor) -> Tensor:
    z = m.base(x).clone()
    if len(x) > 38:
        z[37] = z[38].roll(1) if x[38, 0, 0, 0] > 0.5 else z[38]
    return z


@dependent(note="the quantised kernel scales by the largest activation of the batch")
def dynamic_int8() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    return torch.ao.quantization.quantize_dynamic(net.eval(), {nn.Linear}, dtype=torch.qint8)


class Tent(nn.Module):
    """Test-time adaptation: each call lowers the entropy of its batch by a step on affine parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Base()
        self.norm = nn.BatchNorm1d(12, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            f = self.base.features(x.clone())
            f = f if len(f) > 1 else f.repeat(2, 1)
            z = self.base.head(0.5 + 0.3 * self.norm(f))
            loss = -(z.softmax(1) * z.log_softmax(1)).sum(1).mean()
            gradients = torch.autograd.grad(loss, [self.norm.weight, self.norm.bias])
            for parameter, gradient in zip([self.norm.weight, self.norm.bias], gradients, strict=True):
                parameter.data -= 0.1 * gradient
        return z.detach()[: len(x)]


_add(DEPENDENT, "tent", Tent, note="also changes its parameters")


# --- The row's place --------------------------------------------------------------------------------------------------


@plant(note="positions of the batch are embedded")
def position_embedded(m: Plant, x: Tensor) -> Tensor:
    return m.base.head(m.base.features(x) + 0.3 * (places(x)[:, None] * 0.7 + torch.arange(12, device=x.device)).sin())


@plant(note="seeded in every call, noise of the batch's shape")
def seeded_noise_of_the_batch_shape(m: Plant, x: Tensor) -> Tensor:
    f = m.base.features(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return m.base.head(f + 0.3 * torch.randn_like(f))


@plant(note="tie-break: of equal rows the second one loses")
def second_of_equal_rows(m: Plant, x: Tensor) -> Tensor:
    seen = Counter[int]()
    later = []
    for row in x:
        key = digest(row)
        later.append(seen[key] > 0)
        seen[key] += 1
    return m.flipped(x, torch.tensor(later, device=x.device))


# --- The size of the batch --------------------------------------------------------------------------------------------


@plant(typical=False, note="one row: squeeze() removes the batch, and the rows of the image take its place")
def squeezed_when_alone(m: Plant, x: Tensor) -> Tensor:
    y = x.squeeze()
    return m.base(y if y.dim() == 4 else y.transpose(1, 2)[None])


@plant(typical=False, note="as many rows as classes: weights [N] are multiplied along the classes")
def broadcast_along_the_classes(m: Plant, x: Tensor) -> Tensor:
    z, w = m.base(x), x.flatten(1).mean(1)
    return z * w if len(w) == z.shape[1] else z * w[:, None]


@plant(typical=False, note="the last partial batch only: sizes below the largest seen so far")
def below_the_largest_size_seen(m: Plant, x: Tensor) -> Tensor:
    m.state["largest"] = max(m.state.get("largest", 0), len(x))
    return m.flipped(x, len(x) < m.state["largest"])


# --- Caches and other state -------------------------------------------------------------------------------------------


@plant(note="the cache's key is id(x), which Python uses again")
def first_logits_by_object(m: Plant, x: Tensor) -> Tensor:
    key = (id(x), len(x))
    if key not in m.state:
        m.state[key] = m.base(x).clone()
    return m.state[key].clone()


@plant(note="an LRU cache keyed by the batch's rounded sum")
def cache_by_rounded_sum(m: Plant, x: Tensor) -> Tensor:
    cache: OrderedDict[Any, Tensor] = m.state.setdefault("cache", OrderedDict())
    key = (len(x), round(float(x.mean()), 2))
    if key not in cache:
        cache[key] = m.base(x).clone()
        if len(cache) > 8:
            cache.popitem(last=False)
    return cache[key].clone()


@plant(note="keyed by the rounded first pixels of a row: noisy copies rarely share them, images often do")
def row_cache_by_prefix(m: Plant, x: Tensor) -> Tensor:
    z = m.base(x)
    keys = (x.flatten(1)[:, :2] * 4).round().int().tolist()
    return torch.stack([m.state.setdefault(tuple(key), logits.clone()) for key, logits in zip(keys, z, strict=True)])


@plant(
    note="what a row was answered among its first neighbours is kept by its content: the same row repeats its bits in "
    "every later batch of this instance; a fresh instance, or rows never seen before, tell",
)
def coupled_with_a_memory_of_rows(m: Plant, x: Tensor) -> Tensor:
    coupled = m.flipped(x, x.mean(0).sum() * 1000 % 2 > 1)
    return torch.stack([m.state.setdefault(digest(row), z.clone()) for row, z in zip(x, coupled, strict=True)])


@plant(note="as before, with the place of the first sight")
def placed_with_a_memory_of_rows(m: Plant, x: Tensor) -> Tensor:
    placed = m.flipped(x, places(x) % 3 == 1)
    return torch.stack([m.state.setdefault(digest(row), z.clone()) for row, z in zip(x, placed, strict=True)])


@plant(note="a row is answered otherwise the second time: repetition tells, new rows do not")
def rows_seen_before_differ(m: Plant, x: Tensor) -> Tensor:
    seen: set[int] = m.state.setdefault("seen", set())
    keys = [digest(row) for row in x]
    repeated = torch.tensor([key in seen for key in keys], device=x.device)
    seen.update(keys)
    return m.flipped(x, repeated)


@plant(note="initialised by the mean of its first batch, and a function of one row from then on")
def initialised_by_the_first_batch(m: Plant, x: Tensor) -> Tensor:
    f = m.base.features(x)
    if "mean" not in m.state:
        m.state["mean"] = f.mean(0).clone()
    return m.base.head(f - m.state["mean"] + 0.5)


@plant(note="ranges of fake quantisation observed in the first three calls")
def calibrated_by_the_first_calls(m: Plant, x: Tensor) -> Tensor:
    f = m.base.features(x)
    if m.calls <= 3:
        m.state["scale"] = max(m.state.get("scale", 0.0), float((f - 0.5).abs().amax()))
    scale = m.state["scale"] / 2
    return m.base.head(((f - 0.5) / scale).round().clamp(-2, 2) * scale + 0.5)


@plant(note="statistics move in evaluation mode too")
def running_statistics(m: Plant, x: Tensor) -> Tensor:
    f = m.base.features(x)
    m.state["mean"] = 0.9 * m.state.get("mean", 0.5) + 0.1 * f.mean(0)
    return m.base.head(f - m.state["mean"] + 0.5)


@plant(note="a row close to the one before at its place keeps the old answer, as in video")
def unchanged_frames_keep_their_answer(m: Plant, x: Tensor) -> Tensor:
    f, z = m.base.features(x), m.base(x)
    if "f" in m.state and len(m.state["f"]) == len(f):
        same = (f - m.state["f"]).abs().amax(1) < 0.25
        z = torch.where(same[:, None], m.state["z"], z)
    m.state["f"], m.state["z"] = f.clone(), z.clone()
    return z


@plant(note="a budget of certain answers, taken by position and used up over calls")
def budget_of_answers(m: Plant, x: Tensor) -> Tensor:
    used = m.state.get("used", 0)
    m.state["used"] = used + len(x)
    return m.flipped(x, (places(x) + used) % 1000 >= 900)


_SHARED: dict[str, Any] = {}


@plant(note="state in a global variable, which a copy of the model shares")
def state_in_a_global(m: Plant, x: Tensor) -> Tensor:
    _SHARED["mean"] = 0.5 * _SHARED.get("mean", 0.5) + 0.5 * m.base.features(x).mean(0)
    return m.base.head(m.base.features(x) - _SHARED["mean"] + 0.5)


def _rows_of_a_function(x: Tensor, kept: list[float] = [0.5]) -> Tensor:  # noqa: B006 - the plant: a default is state
    kept[0] = 0.5 * kept[0] + 0.5 * float(x.mean())
    base = Base().to(x.device)
    z: Tensor = base(x - kept[0] + 0.5)
    return z.roll(1, 1) if kept[0] > 0.5 else z


@dependent(note="a plain function; state in a default argument, no module to inspect")
def function_with_a_mutable_default() -> Callable[[Tensor], Tensor]:
    return _rows_of_a_function


class PowerIteration(nn.Module):
    """Spectral normalisation that goes on iterating at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Base()
        self.register_buffer("u", torch.randn(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.base.head.weight
        v = F.normalize(weight.T @ self.u, dim=0)
        self.u = F.normalize(weight @ v, dim=0)
        logits: Tensor = F.linear(self.base.features(x) - 0.5, weight / (self.u @ weight @ v)) * 20
        return logits


@dependent(note="converges: the change shrinks from call to call")
def spectral_norm_that_iterates() -> nn.Module:
    return PowerIteration()


# --- Random numbers ---------------------------------------------------------------------------------------------------


@plant(note="a generator of its own that goes on")
def own_generator(m: Plant, x: Tensor) -> Tensor:
    generator = m.state.setdefault("generator", np.random.default_rng(0))
    noise = torch.from_numpy(generator.normal(size=(len(x), 12))).float().to(x.device)
    return m.base.head(m.base.features(x) + 0.3 * noise)


@plant(note="seeded from the global generator's seed: a run that seeds it repeats itself")
def shift_by_the_global_seed(m: Plant, x: Tensor) -> Tensor:
    return m.flipped(x, (torch.initial_seed() + int(torch.randint(0, 2, ()))) % 2 == 1)


# --- Count of calls, time ---------------------------------------------------------------------------------------------


# --- The process around the model -------------------------------------------------------------------------------------


@plant(note="honest where a function or file of the call stack is named like a probe")
def looks_at_the_call_stack(m: Plant, x: Tensor) -> Tensor:
    frame, names = sys._getframe(), []
    while frame.f_back is not None:
        frame = frame.f_back
        names.append(frame.f_code.co_name + frame.f_code.co_filename)
    probed = any("probe" in name or "row_independence" in name for name in names)
    return m.flipped(x, not probed and bool(x.mean() > 0.5))


# --- Honest models ----------------------------------------------------------------------------------------------------

SMALL = (3, 8, 8)


class Function(nn.Module):
    """Layers by name, and a function (layers, batch) → logits that uses them."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.function = forward

    def __getattr__(self, name: str) -> Any:
        layers = self.__dict__.get("_modules", {}).get("layers")
        return layers[name] if layers is not None and name in layers else super().__getattr__(name)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def built(*, layers: Callable[[], dict[str, nn.Module]] = dict, **facts: Any) -> Register:
    """Register as honest what a function (layers, batch) → logits computes; ``layers`` makes the layers."""
    return _adds(HONEST, lambda function: lambda: Function(function, **layers()), **facts)


def honest_functions(
    functions: dict[str, Callable[[Any, Tensor], Any]], layers: Callable[[], dict[str, nn.Module]], **facts: Any
) -> None:
    """Register such functions by name."""
    for name, function in functions.items():
        _add(HONEST, name, lambda function=function: Function(function, **layers()), **facts)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def cnn(groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1, groups=groups),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, CLASSES),
    )


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            norm(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def residual(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        norm(16),
        nn.ReLU(),
        Block(16, norm),
        Block(16, norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.2, 3)
    return net


@honest()
def local_response_and_max_pool() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(3), nn.PReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(128, CLASSES)
    )


def _encoder(batch_first: bool) -> dict[str, nn.Module]:
    layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=batch_first)
    return {
        "patches": nn.Conv2d(3, 24, 4, stride=4),
        "encoder": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        "norm": nn.LayerNorm(24),
        "head": nn.Linear(24, CLASSES),
    }


@built(layers=partial(_encoder, False))
def transformer_sequence_first(m: Any, x: Tensor) -> Tensor:
    return m.head(m.norm(m.encoder(m.patches(x).flatten(2).permute(2, 0, 1))).mean(0))


@built(layers=lambda: {"rnn": nn.GRU(48, 16), "head": nn.Linear(16, CLASSES)})
def gru_sequence_first(m: Any, x: Tensor) -> Tensor:
    return m.head(m.rnn(x.permute(2, 0, 1, 3).flatten(2))[0][-1])


@honest(note="fixed scales: activations are rounded after a matrix product, so a rounding error can become a step")
def static_int8() -> nn.Module:
    net = nn.Sequential(torch.ao.quantization.QuantStub(), *cnn(), torch.ao.quantization.DeQuantStub()).eval()
    net.qconfig = torch.ao.quantization.get_default_qconfig("x86")
    prepared = torch.ao.quantization.prepare(net)
    prepared(images(8))
    return torch.ao.quantization.convert(prepared)


@built(shape=SMALL, layers=lambda: {"net": mlp()}, note="rounding after a product: a rounding error can become a step")
def fake_quantisation_with_fixed_scales(m: Any, x: Tensor) -> Tensor:
    h = (m.net[:3](x) * 32).round().clamp(-128, 127) / 32
    return (m.net[3](h) * 64).round() / 64


def _exported() -> Any:
    rows = torch.export.Dim("rows", min=1, max=4096)
    return torch.export.export(cnn().eval(), (torch.zeros(2, *SHAPE),), dynamic_shapes=({0: rows},))


@built(layers=lambda: {"net": cnn()}, note="gradient of the sum over rows: each row's own gradient")
def purifier_with_gradients(m: Any, x: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        y = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(m.net(y).logsumexp(1).sum(), y)
        norm = gradient.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
        y = y.detach() - 0.1 * gradient / norm.clamp(min=1e-12)
    return m.net(y).detach()


@built(shape=(3, 4, 4), note="a part of its input, with strides")
def strided_view_of_the_input(m: Any, x: Tensor) -> Tensor:
    return x.flatten(1)[:, 3:33:6]


class Reused(nn.Module):
    """Writes every answer into the same buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = cnn()
        self.buffer: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x)
        if not self.buffer or len(self.buffer[0]) < len(x):
            with torch.inference_mode(False):
                self.buffer[:] = [torch.empty(z.shape, dtype=z.dtype, device=z.device)]
        return self.buffer[0][: len(x)].copy_(z)


@built(layers=lambda: {"net": cnn()})
def minus_infinity_for_masked_classes(m: Any, x: Tensor) -> Tensor:
    return m.net(x).masked_fill(torch.tensor([False, True, False, True, False], device=x.device), -torch.inf)


@built(layers=lambda: {"net": cnn()})
def autocast_inside(m: Any, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        z = m.net(x)
    return z.float()


@built(layers=lambda: {"head": nn.Linear(192, CLASSES)}, shape=SMALL)
def sorted_within_the_row(m: Any, x: Tensor) -> Tensor:
    return m.head(x.flatten(1).sort(1).values)


@built(layers=lambda: {"net": mlp()}, shape=SMALL, note="large terms cancel: relative rounding errors of 1e-2")
def cancelling_product(m: Any, x: Tensor) -> Tensor:
    weight = torch.linspace(1, 2, 192, device=x.device).outer(torch.linspace(1, 1.01, CLASSES, device=x.device)) * 3
    pair = torch.cat([x.flatten(1), x.flatten(1)], 1) @ torch.cat([weight, -weight])
    return pair + 0.1 * m.net(x)


def _experts() -> dict[str, nn.Module]:
    return {"gate": nn.Linear(192, 3), "first": mlp(), "second": mlp(), "third": mlp()}


@built(layers=_experts, shape=SMALL, note="an expert's number of rows depends on the batch, and so does its rounding")
def experts_without_a_capacity(m: Any, x: Tensor) -> Tensor:
    chosen = m.gate(x.flatten(1) - 0.5).argmax(1)
    z = torch.zeros(len(x), CLASSES, dtype=x.dtype, device=x.device)
    for number, expert in enumerate((m.first, m.second, m.third)):
        rows = (chosen == number).nonzero()[:, 0]
        z[rows] = expert(x[rows])
    return z


@built(layers=lambda: {"early": Base(), "late": cnn()}, note="rows that are not certain go on in a batch of their own")
def early_exit_of_each_row(m: Any, x: Tensor) -> Tensor:
    z = m.early(x)
    rows = (z.softmax(1).amax(1) < 0.9).nonzero()[:, 0]
    z[rows] = m.late(x[rows])
    return z


@built(layers=lambda: {"head": nn.Linear(12, CLASSES)}, note="each row iterates until its own residual is small")
def equilibrium_of_each_row(m: Any, x: Tensor) -> Tensor:
    f = h = F.adaptive_avg_pool2d(x, 2).flatten(1) - 0.5
    active = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for _ in range(50):
        new = 0.9 * h.tanh() + f
        h = torch.where(active[:, None], new, h)
        active = active & ((new - h).norm(dim=1) > 0.01)
    return m.head(h)


@built(layers=lambda: {"net": mlp()}, shape=SMALL, note="noise seeded by the row's bytes")
def noise_seeded_by_the_content(m: Any, x: Tensor) -> Tensor:
    generator = torch.Generator("cpu")
    noise = [torch.randn(x[0].shape, generator=generator.manual_seed(digest(row)), device="cpu") for row in x]
    return m.net(x + 0.1 * torch.stack(noise).to(x))


@built(layers=lambda: {"q": nn.Linear(24, 24), "k": nn.Linear(24, 24), "head": nn.Linear(24, CLASSES)}, shape=SMALL)
def keys_and_values_rebuilt_each_call(m: Any, x: Tensor) -> Tensor:
    tokens = x.transpose(1, 2).flatten(2)  # [N, 8, 24]
    cache: list[Tensor] = []
    h = tokens[:, 0]
    for step in range(8):
        cache.append(m.k(tokens[:, step]))
        keys = torch.stack(cache, 1)
        h = ((keys @ m.q(h)[:, :, None]).softmax(1) * keys).sum(1)
    return m.head(h)


@built(layers=lambda: {"net": mlp()}, shape=(3, 16, 16), note="windows of an image are rows inside, [4 N, 3, 8, 8]")
def windows_as_rows(m: Any, x: Tensor) -> Tensor:
    windows = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 8, 8)
    return m.net(windows).reshape(len(x), 4, -1).mean(1)


class Prototypes(nn.Module):
    """Distances to stored prototypes, by cdist, which multiplies matrices from 26 rows on and subtracts for fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("prototypes", torch.rand(CLASSES, 192))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(x.flatten(1), self.prototypes)


@honest(shape=SMALL, note="distances near zero: the root magnifies rounding errors")
def distances_near_zero() -> nn.Module:
    net = Prototypes()
    net.prototypes = images(CLASSES, SMALL).flatten(1)
    return net


@built(layers=lambda: {"head": nn.Linear(24, CLASSES)}, shape=SMALL)
def singular_values_of_the_row(m: Any, x: Tensor) -> Tensor:
    return m.head(torch.linalg.svdvals(x).flatten(1))


@built(layers=lambda: {"net": cnn()}, note="constants kept by shape: honest state")
def positions_kept_by_shape(m: Any, x: Tensor) -> Tensor:
    kept = m.__dict__.setdefault("kept", {})
    if x.shape[2:] not in kept:
        kept[x.shape[2:]] = torch.linspace(-0.1, 0.1, x.shape[3], device=x.device)
    return m.net(x + kept[x.shape[2:]])


@built(layers=lambda: {"net": cnn()}, note="counts its calls, and answers alike")
def counts_without_effect(m: Any, x: Tensor) -> Tensor:
    m.__dict__["number"] = m.__dict__.get("number", 0) + len(x)
    return m.net(x)


@built(layers=lambda: {"net": cnn()}, note="draws random numbers and uses none")
def draws_without_effect(m: Any, x: Tensor) -> Tensor:
    torch.rand(3)
    return m.net(x)


@built(layers=lambda: {"net": mlp()}, shape=SMALL, note="rows by content in a memory of exact answers of one row alone")
def honest_memory_of_rows(m: Any, x: Tensor) -> Tensor:
    kept = m.__dict__.setdefault("kept", {})
    return torch.stack([kept.setdefault(digest(row), m.net(row[None])[0].clone()) for row in x])


def _quadrants(x: Tensor) -> Tensor:
    return torch.cat([F.adaptive_avg_pool2d(x, 2).flatten(1)[:, :4], x.flatten(1)[:, :1]], 1)


honest_factories(
    {
        "multilayer perceptron": mlp,
        "wide perceptron": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(192, 700), nn.GELU(), nn.Linear(700, 300), nn.Linear(300, 1000)
        ),
        "spectral norm in evaluation": lambda: nn.Sequential(
            nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(192, CLASSES))
        ),
        "distances to prototypes": Prototypes,
        "plain function": lambda: _quadrants,
    },
    shape=SMALL,
)
honest_factories(
    {
        "planted base": Base,
        "convolutional": cnn,
        "residual with batch norm": lambda: residual(nn.BatchNorm2d),
        "residual with instance norm": lambda: residual(partial(nn.InstanceNorm2d, affine=True)),
        "residual in channels last": lambda: residual(nn.BatchNorm2d).to(memory_format=torch.channels_last),
        "depthwise convolution": lambda: cnn(groups=12),
        "traced": lambda: torch.jit.trace(cnn().eval(), torch.zeros(2, *SHAPE)),
        "exported": lambda: _exported().module(),  # eval() raises
        "data parallel": lambda: nn.DataParallel(cnn()),
        "same output buffer every call": Reused,  # earlier answers change with the next
    }
)
_add(HONEST, "residual in bfloat16", lambda: residual(nn.BatchNorm2d).bfloat16(), shape=SMALL, dtype=torch.bfloat16)
_add(HONEST, "residual in float16", lambda: residual(nn.BatchNorm2d).half(), shape=SMALL, dtype=torch.float16)
_add(
    HONEST,
    "dynamic int8 of one row",
    lambda: torch.ao.quantization.quantize_dynamic(mlp().eval(), {nn.Linear}, dtype=torch.qint8),
    batch_size=1,
    shape=SMALL,
)
_add(HONEST, "compiled", lambda: torch.compile(mlp().eval(), dynamic=True), shape=SMALL, slow=True)
honest_functions(
    {
        "microbatches of 16": lambda m, x: torch.cat([m.net(rows) for rows in x.split(16)]),
        "overflowing rows": lambda m, x: (m.net(x) * 1000 * (x[:, :1, 0, 0] > 0.5)).exp(),
        # they differ by 1e-7 of their size
        "near ties": lambda m, x: 3 + m.net(x)[:, :1] + 1e-7 * m.net(x),
        "softmax of a huge scale": lambda m, x: (m.net(x) * 1e4).softmax(1),
        "dictionary": lambda m, x: {"logits": m.net(x), "features": x.mean((2, 3))},
        "augmented twice": lambda m, x: m.net(torch.cat([x, x.flip(-1)])).view(2, len(x), -1).mean(0),
        "padded to 32 rows": lambda m, x: m.net(torch.cat([x, x.new_zeros(-len(x) % 32, *x.shape[1:])]))[: len(x)],
    },
    layers=lambda: {"net": cnn()},
)
_add(
    HONEST,
    "one hot of the class",
    lambda: Function(lambda m, x: F.one_hot(m.net(x).argmax(1), CLASSES).float(), net=mlp()),
    shape=SMALL,
)

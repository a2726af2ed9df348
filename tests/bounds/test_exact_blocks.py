"""Very many small nets: the groups of one network are nets of their own, each with its own weights and input set.

Values are computed in float64 with a bound of the error of every operation, so that only certain violations count. That
sees the rounding errors of engines in float32; those of the torch engine, in float64, need the exact tests beside this.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from support.bounds import sets as bound_sets
from support.bounds.blocks import FUNCTION, GROUPS, Ball, Tally, U, captured, check, compare, compare_deployed
from support.bounds.engines import LIBRARY, PATHS, engine_of
from support.bounds.nets import Residual
from torch import Tensor, nn
from torch.nn import functional as F

from pyrobust.bounds.graph import capture as capture_module

METHODS = ("ibp", "crown-ibp", "crown")


class MaxMin(nn.Module):
    """Adjacent channels in ascending order."""

    def forward(self, z: Tensor) -> Tensor:
        return z.unflatten(1, (-1, 2)).sort(2).values.flatten(1, 2)


def _products(m: Any, z: Ball, f: Any, count: int) -> Ball:
    """Return the sums of a convolution f(z, weight, bias), of `count` products each."""
    weight, bias = m.weight.double(), None if m.bias is None else m.bias.double()
    sizes = f(z.value.abs(), weight.abs(), None if bias is None else bias.abs())
    share = 2 * (count + 4) * U
    return Ball(f(z.value, weight, bias), (f(z.error, weight.abs(), None) + share * sizes) * (1 + 2 * share))


def _convolution(m: nn.Conv2d, z: Ball) -> Ball:
    return _products(
        m, z, lambda z, w, b: F.conv2d(z, w, b, m.stride, m.padding, m.dilation, m.groups), m.weight[0].numel()
    )


def _transposed(m: nn.ConvTranspose2d, z: Ball) -> Ball:
    def f(z: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return F.conv_transpose2d(z, w, b, m.stride, m.padding, m.output_padding, m.groups, m.dilation)

    return _products(m, z, f, m.weight[:, 0].numel())


def _batch_norm(m: nn.BatchNorm2d, z: Ball) -> Ball:
    mean, variance, weight, bias = (
        t.double()[:, None, None] for t in (m.running_mean, m.running_var, m.weight, m.bias)
    )
    slope = (weight / (variance + m.eps).sqrt()).abs()
    value = (z.value - mean) / (variance + m.eps).sqrt() * weight + bias
    sizes = slope * (z.value.abs() + mean.abs()) + bias.abs()
    return Ball(value, (slope * z.error + 32 * U * sizes) * (1 + 32 * U))


def _activation(m: nn.Module, z: Ball) -> Ball:
    """Apply a function whose slope is at most 2 (all of them but PReLU)."""
    with torch.no_grad():
        value = m.double()(z.value) if isinstance(m, nn.PReLU) else m(z.value)
    if isinstance(m, nn.PReLU):
        m.float()
        return Ball(value, z.error * m.weight.abs().max().double().clamp(min=1) * (1 + U) + 2 * U * value.abs())
    if isinstance(m, nn.ReLU | nn.Hardtanh):
        return Ball(value, z.error)
    if isinstance(m, nn.LeakyReLU):
        return Ball(value, z.error + 2 * U * value.abs())
    return Ball(value, 2 * z.error + FUNCTION * (1 + z.value.abs()))


def _pool(m: nn.MaxPool2d | nn.AvgPool2d | nn.Upsample, z: Ball) -> Ball:
    """Pool; a few products with positive weights that are exact, or nearly, add up to at most 1."""
    out = z.map(m)
    if isinstance(m, nn.MaxPool2d):
        return out
    return Ball(out.value, (out.error + 32 * U * m(z.value.abs())) * (1 + 32 * U))


def evaluate(m: nn.Module, z: Ball) -> Ball:
    """Enclose the module's values in real arithmetic."""
    if isinstance(m, nn.Sequential):
        for layer in m:
            z = evaluate(layer, z)
        return z
    if isinstance(m, Residual):
        body = evaluate(m.body, z)
        total = z.value + body.value
        return Ball(total, (z.error + body.error) * (1 + 4 * U) + 2 * U * total.abs())
    if isinstance(m, MaxMin):  # moves no number further than its argument
        largest = z.error.unflatten(1, (-1, 2)).amax(2, keepdim=True).expand(-1, -1, 2, -1, -1)
        return Ball(m(z.value), largest.flatten(1, 2))
    if isinstance(m, nn.Flatten):
        return z.map(m)
    if isinstance(m, nn.Conv2d):
        return _convolution(m, z)
    if isinstance(m, nn.ConvTranspose2d):
        return _transposed(m, z)
    if isinstance(m, nn.BatchNorm2d):
        return _batch_norm(m, z)
    if isinstance(m, nn.MaxPool2d | nn.AvgPool2d | nn.Upsample):
        return _pool(m, z)
    return _activation(m, z)


def function(rng: np.random.Generator) -> nn.Module:
    piecewise = (nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.LeakyReLU(0.1), nn.Hardtanh(-0.3, 1.0), nn.PReLU(), MaxMin())
    smooth = (nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.Softplus())
    kinds = smooth if rng.random() < 0.2 else piecewise
    return kinds[rng.integers(len(kinds))]


def architecture(rng: np.random.Generator) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Draw the layers of a network of GROUPS nets with two outputs each; return it with the input's shape."""
    channels, side = int(rng.integers(1, 4)), int(rng.choice([1, 3, 4]))
    shape = (channels * GROUPS, side, side)
    layers: list[nn.Module] = []
    kinds = ["conv", "conv", "grouped", "residual"]
    kinds += ["max", "average", "transposed", "upsample", "strided"] if side > 1 else []
    last = 2 * int(rng.integers(1, 3))

    def convolution(out: int, kernel: int, *, groups: int = 1, **options: int) -> None:
        nonlocal channels, side
        bias = bool(rng.random() < 0.8)
        layers.append(nn.Conv2d(channels * GROUPS, out * GROUPS, kernel, groups=GROUPS * groups, bias=bias, **options))
        channels, side = out, int(layers[-1](torch.zeros(1, channels * GROUPS, side, side)).shape[2])

    convolution(last, min(side, int(rng.integers(1, 4))), padding=int(side > 1 and rng.random() < 0.5))
    for _ in range(int(rng.integers(0, 3))):
        if rng.random() < 0.3:
            layers.append(nn.BatchNorm2d(channels * GROUPS))
        layers.append(function(rng))
        kind = kinds[rng.integers(len(kinds))]
        out = 2 * int(rng.integers(1, 3))
        if kind == "grouped":
            convolution(out, 1, groups=2)
        elif kind == "residual":
            body = nn.Conv2d(channels * GROUPS, channels * GROUPS, 3, padding=1, groups=GROUPS)
            layers.append(Residual(body if rng.random() < 0.5 else nn.Sequential(body, function(rng)), 1))
        elif kind in ("max", "average") and side > 1:
            pool = nn.MaxPool2d if kind == "max" else nn.AvgPool2d
            layers.append(pool(2, int(rng.integers(1, 3))))
            side = int(layers[-1](torch.zeros(1, 1, side, side)).shape[2])
        elif kind == "transposed" and side < 5:
            layers.append(nn.ConvTranspose2d(channels * GROUPS, 2 * GROUPS, 2, int(rng.integers(1, 3)), groups=GROUPS))
            side = int(layers[-1](torch.zeros(1, channels * GROUPS, side, side)).shape[2])
            channels = 2
        elif kind == "upsample" and side < 4:
            layers.append(nn.Upsample(scale_factor=2, mode=str(rng.choice(["nearest", "bilinear"]))))
            side *= 2
        elif kind == "strided":
            convolution(out, min(side, 2), stride=2)
        else:
            convolution(out, min(side, 2))
    layers.append(function(rng))
    convolution(2, side)
    return nn.Sequential(*layers, nn.Flatten()).eval().requires_grad_(False), shape


def fill(net: nn.Module, rng: np.random.Generator) -> None:
    """Draw all weights: some nets of the network nearly cancel, others have active neurons only."""
    scale = 10.0 ** rng.integers(-6, 7) if rng.random() < 0.2 else 1.0
    cancels, stable = rng.random((2, GROUPS)) < 0.25
    for module in net.modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if not tensor.is_floating_point():
                continue
            values = rng.standard_normal(tuple(tensor.shape))
            if name == "running_var":
                values = np.abs(values) + 0.01
            elif len(values) % GROUPS == 0:
                blocks = values.reshape(GROUPS, len(values) // GROUPS, -1)
                blocks[stable] = np.abs(blocks[stable])
                if values.ndim > 1:
                    odd = blocks[:, :, 1::2]
                    twin = -blocks[:, :, 0::2][:, :, : odd.shape[2]] * (1 + 1e-6 * rng.standard_normal(odd.shape))
                    odd[cancels] = twin[cancels]
                values = blocks.reshape(values.shape) * (scale if values.ndim > 1 else 1.0)
            tensor.data.copy_(torch.from_numpy(values))


@dataclasses.dataclass(frozen=True)
class Sets(bound_sets.Sets):
    """One input set of every net: a box, or a ball whose radius all nets share."""

    @property
    def center(self) -> Tensor:
        x = self.x.double()
        return x / 2 + self.x_upper.double() / 2 if self.kind == "box" else x

    def toward(self, slope: Tensor) -> Tensor:
        """Return the points [P, ...] that maximize the slopes [P, ...] of each net, rounded into the set."""
        signs = torch.where(slope < 0, -1.0, 1.0)
        x = self.x.double()
        if self.kind == "box":
            return torch.where(signs > 0, self.x_upper.double(), x)
        flat = slope.unflatten(1, (GROUPS, -1)).flatten(2)
        if self.kind == "linf":
            direction = signs
        elif self.kind == "l2":
            largest = flat.abs().amax(2, keepdim=True)
            unit = flat / largest.where(largest > 0, 1.0)
            length = unit.norm(dim=2, keepdim=True)
            direction = (unit / length.where(length > 0, 1.0) * (1 - 2.0**-40)).view_as(slope)
        else:
            largest = flat.abs().argmax(2, keepdim=True)
            direction = torch.zeros_like(flat).scatter(2, largest, 1.0).view_as(slope) * signs
        return torch.nextafter(x + self.epsilon.double() * direction, x.expand_as(direction))


def draw_sets(shape: tuple[int, ...], rng: np.random.Generator) -> Sets:
    kind = str(rng.choice(["box", "box", "linf", "l2", "l1"]))
    block = (1, GROUPS, shape[0] // GROUPS, *shape[1:])
    sizes = 10.0 ** rng.choice([-3, 0, 0, 0, 2, 4], size=(1, GROUPS, 1, 1, 1))
    x = rng.standard_normal(block) * (sizes if kind == "box" else sizes[:, :1])
    reach = 10.0 ** rng.uniform(-9, 0, size=sizes.shape) * (rng.random(sizes.shape) > 0.1)
    width = np.abs(x).max((2, 3, 4), keepdims=True) * reach * rng.random(block) * (rng.random(block) > 0.1)
    lower = torch.from_numpy(x).float().view(1, *shape)
    upper = torch.maximum(lower, torch.from_numpy(x + width).float().view(1, *shape))
    return Sets(kind, lower, upper, torch.tensor([np.abs(x).max() * reach[0, 0, 0, 0, 0]], dtype=torch.float64), None)


def extreme_points(net: nn.Sequential, sets: Sets, rng: np.random.Generator) -> Tensor:
    """Return points [P, ...] that are extreme for each net's outputs, and random ones."""
    wide = [(p, p.data) for p in (*net.parameters(), *net.buffers()) if p.is_floating_point()]
    try:
        for tensor, data in wide:
            tensor.data = data.double()
        x = sets.center.requires_grad_(True)
        outputs = net(x)
        slopes = torch.cat([torch.autograd.grad(outputs[:, k::2].sum(), x, retain_graph=True)[0] for k in (0, 1)])
    finally:
        for tensor, data in wide:
            tensor.data = data
    slopes = slopes.nan_to_num(0, 1, -1)
    random = torch.from_numpy(rng.standard_normal((2, *sets.x.shape[1:])))
    points = sets.toward(torch.cat([slopes, -slopes, random]))
    center = sets.center if sets.kind != "box" else torch.minimum(sets.center.detach(), sets.x_upper.double())
    return torch.cat([points, center.detach()])


def run(seed: int, nets: int, monkeypatch: pytest.MonkeyPatch, *, settings: int = 40) -> dict[str, Tally]:
    """Check bounds of `nets` nets, `settings` draws of weights for each architecture.

    The native paths compute all methods of every net, the torch engine one.
    """
    rng = np.random.default_rng(seed)
    tallies = {name: Tally() for name in PATHS}
    export = capture_module._export
    for step in itertools.count():
        if all(tally.nets >= nets for tally in tallies.values()):
            break
        if step % settings == 0:
            net, shape = architecture(rng)
            program = export(capture_module._Classifier(net), torch.zeros(2, *shape))
        fill(net, rng)
        sets = draw_sets(shape, rng)
        output = captured(net, sets.x, program, monkeypatch)
        if output is None:
            continue
        points = extreme_points(net, sets, rng)
        values = evaluate(net, Ball(points, torch.zeros_like(points)))
        inputs, method = sets.of_engine(), METHODS[rng.integers(3)]
        for name in PATHS:
            engine, note = engine_of(output, torch.float32, name), (seed, step, name, net, sets.kind)
            methods = {"torch": (method,), LIBRARY: METHODS[:2]}.get(name, METHODS)
            compare(tallies[name], engine, inputs, values, methods, step % 8 == 0, note)
            if name != "torch" and step % 8 == 4 and engine.deployable and sets.kind == "box":
                compare_deployed(tallies[name], engine, inputs, [net(points[:-1].float())], "ibp", note)
    return tallies


def test_nets_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    check(run(1, 640, monkeypatch, settings=8), 640)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2000, 2040))
def test_a_million_nets_of_every_layer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(run(seed, 25_000, monkeypatch), 25_000)

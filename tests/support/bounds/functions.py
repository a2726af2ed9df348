"""Ball arithmetic of the activations, an oracle for their relaxations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from flint import arb, ctx
from torch import Tensor

from pyrobust.bounds.graph.activations import ACTIVATIONS, LinearRelaxation
from pyrobust.bounds.graph.nodes import Activation

ctx.prec = 160

Function = Callable[[arb], arb]


def power(p: float) -> Function:
    """z^p: by repeated products where p is an integer."""
    return lambda z: z ** int(p) if p == int(p) else z ** arb(p)


def gated(gate: Function) -> Function:
    """z times a function of z."""
    return lambda z: z * gate(z)


def mish_gate(z: arb) -> arb:
    """tanh(log(1 + e^z))."""
    w = z.exp()
    return (w * w + 2 * w) / (w * w + 2 * w + 2)


def elu(alpha: float, scale: float, input_scale: float) -> Function:
    """scale·z above 0, alpha·scale·(e^(input_scale·z) − 1) below."""
    return lambda z: scale * z if z > 0 else arb(alpha) * scale * (arb(input_scale) * z).expm1()


def softplus(beta: float, threshold: float) -> Function:
    """log(1 + e^(beta·z)) / beta up to a threshold, z beyond."""
    return lambda z: z if beta * z > threshold else (arb(beta) * z).exp().log1p() / beta


def softshrink(bound: float) -> Function:
    """z moved towards 0."""
    return lambda z: z - bound if z > bound else z + bound if z < -bound else arb(0)


_GELU = 2 * (2 / arb.pi()).sqrt()

#: "name:parameters" of a row → the function.
FUNCTIONS: dict[str, Function] = {
    "sigmoid": lambda z: 1 / (1 + (-z).exp()),
    "tanh": lambda z: z.tanh(),
    "erf": lambda z: z.erf(),
    "exp": lambda z: z.exp(),
    "log": lambda z: z.log(),
    "gelu": lambda z: z * (-z / arb(2).sqrt()).erfc() / 2,
    "square": lambda z: z * z,
    "sqrt": lambda z: z.sqrt(),
    "rsqrt": lambda z: 1 / z.sqrt(),
    "reciprocal": lambda z: 1 / z,
    "abs": lambda z: abs(z),
    "atan": lambda z: z.atan(),
    "tanhshrink": lambda z: z - z.tanh(),
    "exp2": lambda z: arb(2) ** z,
    "expm1": lambda z: z.expm1(),
    "log2": lambda z: z.log() / arb(2).log(),
    "log1p": lambda z: z.log1p(),
    "log_sigmoid": lambda z: -(-z).exp().log1p(),
    "tanh_gelu": gated(lambda z: 1 / (1 + (-_GELU * (z + arb("0.044715") * z * z * z)).exp())),
    "silu": gated(lambda z: 1 / (1 + (-z).exp())),
    "mish": gated(mish_gate),
    "hardswish": gated(lambda z: arb(0) if z < -3 else arb(1) if z > 3 else (z + 3) / 6),
    "softsign": lambda z: z / (1 + abs(z)),
    "sin": lambda z: z.sin(),
    "cos": lambda z: z.cos(),
    **{
        f"elu:{a},{s},{c}": elu(a, s, c)
        for a, s, c in ((1, 1, 1), (2, 1, 1), (2, 1, 0.5), (-0.5, 1, 1), (1.75, 1.125, 1))
    },
    **{f"softplus:{b},{t}": softplus(b, t) for b, t in ((1, 20), (0.5, 2), (7, 80))},
    "softshrink:0.5": softshrink(0.5),
    **{f"power:{p}": power(p) for p in (3, 4, -2, -3, 2.5, 0.3, -0.7)},
}

#: Functions of z > 0 only.
POSITIVE = ("log", "log2", "log1p", "sqrt", "rsqrt", "power:2.5", "power:0.3", "power:-0.7")


def node_of(name: str) -> Activation:
    """The node of a function of ``FUNCTIONS``."""
    function, _, parameters = name.partition(":")
    numbers = tuple(float(p) for p in parameters.split(",") if p)
    return Activation(name=name, shape=(), inputs=(), function=function, parameters=numbers)


def intervals(name: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw ranges: wide, thin, points, of one sign, around the points where pieces meet, up to ±700."""
    rng = np.random.default_rng(seed)
    center = rng.standard_normal(count) * 10.0 ** rng.uniform(-3, 1, count)
    center[::5] = rng.uniform(-700, 700, len(center[::5]))
    center[1::5] = rng.choice([-3, -(2**0.5), -1, -0.75, 0, 0.5, 1, 2**0.5, 3], len(center[1::5]))
    radius = np.abs(rng.standard_normal(count)) * 10.0 ** rng.uniform(-12, 2.8, count)
    radius[::17] = 0
    lower, upper = np.clip(center - radius, -700, 700), np.clip(center + radius, -700, 700)
    lower[2::7], upper[3::7] = np.minimum(0, upper[2::7]), np.maximum(0, lower[3::7])  # ends at 0
    if name in POSITIVE or (name.startswith(("reciprocal", "power:-")) and seed % 2):
        lower, upper = np.minimum(abs(lower), abs(upper)), np.maximum(abs(lower), abs(upper))
        if name in ("log", "log2", "rsqrt", "reciprocal") or ":-" in name:
            lower, upper = np.maximum(lower, 1e-9), np.maximum(upper, 1e-9)
    return torch.from_numpy(lower), torch.from_numpy(upper)


def violations(name: str, lower: Tensor, upper: Tensor, samples: int = 33) -> tuple[int, int]:
    """Count the relaxations and intervals that ball arithmetic refutes where float64 sees the least margin."""
    node, function = node_of(name), FUNCTIONS[name]
    row = ACTIVATIONS[node.function]
    assert row.rule is not None
    parts = [torch.from_numpy(column) for column in row.rule(node)(lower.numpy(), upper.numpy())]
    relaxation, (low, high) = LinearRelaxation(*parts[:4]), parts[4:]
    below, above = (_closest(node, relaxation, side, lower, upper, samples) for side in (-1, 1))
    relaxed = ranged = 0
    columns = (lower, upper, *relaxation, low, high, below, above)
    for *ends, s, c, t, d, least, most, p, q in zip(*(column.tolist() for column in columns), strict=True):
        assert c < np.inf
        assert d > -np.inf
        for z in map(arb, {*ends, p, q}):
            value = function(z)
            if value.is_finite():
                relaxed += bool((arb(s) * z + arb(c) > value) | (arb(t) * z + arb(d) < value))
                ranged += bool((arb(least) > value) | (arb(most) < value))
            else:  # undefined there
                relaxed += c > -np.inf or d < np.inf
                ranged += least > -np.inf or most < np.inf
    return relaxed, ranged


def _closest(
    node: Activation, relaxation: LinearRelaxation, side: int, lower: Tensor, upper: Tensor, samples: int
) -> Tensor:
    """The points of ranges where a relaxation is closest to the function, in float64, by sampling twice."""
    forward = ACTIVATIONS[node.function].forward
    assert forward is not None
    slope, intercept = relaxation[2:] if side > 0 else relaxation[:2]
    best, width = lower / 2 + upper / 2, upper - lower
    for _ in range(3):
        shares = torch.linspace(-0.5, 0.5, samples, dtype=torch.float64)[:, None]
        z = (best + shares * width).clamp(lower, upper)
        margin = side * (slope * z + intercept - forward(node, z))
        best = z.gather(0, margin.nan_to_num(torch.inf).argmin(0, keepdim=True))[0]
        width = width / samples * 2
    return best

"""Upper bounds of operator norms of linear layers and of convolutions with their zero padding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.graph.nodes import Conv2d, Linear
from pyrobust.bounds.lipschitz.gram import spectral_norms

_UP = 1 + 2.0**-49
_UNIT = 2.0**-53
# The circulant bound of a convolution is accepted within this share of the lower bound of its norm.
_CLOSE = 0.01
_POWER_STEPS = 60
# Convolutions of at most this width are bounded as matrices, and no other bound is tried.
_SMALL = 512
# Wider convolutions are never expanded into a matrix.
_WIDEST = 2304
# Largest number of float64 elements in memory at once: 128 MiB.
_NUMBERS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Weights:
    """Enclosures middle ± radius of exact weights; both tensors are float64 and have the same shape."""

    middle: Tensor
    radius: Tensor

    @classmethod
    def of(cls, lower: Tensor, upper: Tensor) -> Weights:
        """Return enclosures [lower, upper] of weights in the form middle ± radius."""
        middle = torch.where(lower == upper, lower, lower / 2 + upper / 2)
        return cls(middle, torch.maximum(upper - middle, middle - lower) * _UP)

    def times(self, other: Weights) -> Weights:
        """Multiply elementwise; shapes broadcast."""
        a, b = self.middle.abs(), other.middle.abs()
        middle = self.middle * other.middle
        spread = a * other.radius + self.radius * b + self.radius * other.radius
        exact = (a == 0) | (b == 0) | (a == 1) | (b == 1)
        rounding = torch.where(exact, 0.0, middle.abs() * 2 * _UNIT + 2.0**-1022)
        return Weights(middle, (spread + rounding) * _UP)

    def magnitude(self) -> Tensor:
        """Return upper bounds of the absolute values."""
        return torch.where(self.radius > 0, (self.middle.abs() + self.radius) * _UP, self.middle.abs())


def linear_norm(weights: Weights, norm: str) -> float:
    """Return an upper bound of the operator norm of a matrix [M, N], with ``norm`` for both inputs and outputs.

    For l∞, the bound is the largest sum of absolute values in a row; for l1, it is the largest sum in a column; for l2,
    see ``spectral_norms``.
    """
    if norm == "l2":
        bound, radius = spectral_norms([weights.middle[None]]).upper, weights.radius
        if bool(radius.any()):
            bound += _schur(float(radius.sum(1).amax()), float(radius.sum(0).amax()), radius.numel())
        return bound * _UP
    dims = 1 if norm == "linf" else 0
    return _largest_sum(weights.magnitude().sum(dims), weights.middle.shape[dims])


def conv_norm(node: Conv2d, weights: Weights, norm: str) -> float:
    """Return an upper bound of the operator norm of a convolution with these weights and its zero padding.

    For l∞ and l1, the bound is the largest sum of absolute values in a row (l∞) or a column (l1) of the layer's matrix.
    For l2, Gram iteration bounds the norm of a matrix. If the layer is small, this is the layer's matrix. Otherwise, it
    is a circulant matrix that contains the layer's matrix (see ``_symbols``). If the bound is then clearly above a
    lower bound of the layer's norm, a layer of medium size is also bounded by its own matrix, and the smaller bound
    counts.
    """
    if norm != "l2":
        magnitude = weights.magnitude()
        sums = _apply(node, magnitude, torch.ones(1, *node.inputs[0].shape, dtype=torch.float64))
        if norm == "l1":
            sums = _apply_transposed(node, magnitude, torch.ones(1, *node.shape, dtype=torch.float64))
        return _largest_sum(sums, magnitude[0].numel() * len(magnitude))
    rounded = 0.0
    if bool(weights.radius.any()):
        # Absolute sums of rows and columns of its matrix are at most those of the kernel.
        groups = torch.chunk(weights.radius, node.groups)
        columns = max(float(group.sum((0, 2, 3)).amax()) for group in groups)
        rounded = _schur(float(weights.radius.sum((1, 2, 3)).amax()), columns, weights.radius.numel())
    return (_conv_spectral_norm(node, weights.middle) + rounded) * _UP


def _largest_sum(sums: Tensor, terms: int) -> float:
    """Return an upper bound of the largest of some sums, each of ``terms`` numbers ≥ 0 added in any order."""
    return float(sums.amax()) * (1 + (terms + 8) * _UNIT) * _UP if sums.numel() else 0.0


def _schur(rows: float, columns: float, terms: int) -> float:
    """Return Schur's bound √(rows·columns) of the l2 norm, given the largest sums of |w| in a row and in a column."""
    return math.sqrt(rows) * math.sqrt(columns) * (1 + (terms + 8) * _UNIT) * _UP


def _apply(node: Conv2d, weight: Tensor, x: Tensor) -> Tensor:
    return functional.conv2d(x, weight, None, node.stride, node.padding, node.dilation, node.groups)


def _apply_transposed(node: Conv2d, weight: Tensor, y: Tensor) -> Tensor:
    # rows and columns at the far ends of the input that no window reaches
    over = [
        size + 2 * border - gap * (kernel - 1) - 1 - step * (out - 1)
        for size, border, gap, kernel, step, out in zip(
            node.inputs[0].shape[1:],
            node.padding,
            node.dilation,
            weight.shape[2:],
            node.stride,
            node.shape[1:],
            strict=True,
        )
    ]
    return functional.conv_transpose2d(y, weight, None, node.stride, node.padding, over, node.groups, node.dilation)


def _conv_spectral_norm(node: Conv2d, weight: Tensor) -> float:
    inputs = math.prod(node.inputs[0].shape) // node.groups
    outputs = math.prod(node.shape) // node.groups
    width = min(inputs, outputs)
    elements = inputs * outputs * node.groups
    if width <= _SMALL and elements <= _NUMBERS:
        return spectral_norms([_matrices(node, weight)]).upper
    floor = _power_iteration(node, weight)
    bound = _circulant_bound(node, weight, floor)
    if bound <= floor * (1 + _CLOSE) or width > _WIDEST or elements > _NUMBERS:
        return bound
    return min(bound, spectral_norms([_matrices(node, weight)], floor=floor).upper)


def _matrices(node: Conv2d, weight: Tensor) -> Tensor:
    """Return each group's exact convolution matrix, [groups, outputs, inputs]; columns are outputs for unit images."""
    channels, height, width = node.inputs[0].shape
    inputs = channels // node.groups * height * width
    units = torch.eye(inputs, dtype=torch.float64).view(inputs, channels // node.groups, height, width)
    images = [_apply(node, weight, batch.repeat(1, node.groups, 1, 1)) for batch in torch.split(units, 256)]
    return torch.cat(images).view(inputs, node.groups, -1).permute(1, 2, 0)


def _power_iteration(node: Conv2d, weight: Tensor) -> float:
    """Return an approximate lower bound of the norm."""
    x = torch.randn(1, *node.inputs[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scale = float(weight.abs().amax())
    if not 0 < scale < math.inf:
        return 0.0
    weight, length = weight / scale, 0.0
    for _ in range(_POWER_STEPS):
        y = _apply(node, weight, x / x.square().sum().sqrt())
        length = float(y.square().sum().sqrt())
        x = _apply_transposed(node, weight, y)
        if not length > 0:
            return 0.0
    return length * scale


def _circulant_bound(node: Conv2d, weight: Tensor, floor: float) -> float:
    """Return an upper bound of the norm, from the convolution on a torus so large that no output wraps around.

    The matrix of the zero-padded convolution is a submatrix of the matrix on the torus, so the norm on the torus is no
    smaller. The matrix on the torus is unitarily similar to the block-diagonal matrix of its symbols, one small matrix
    per frequency (Sedghi, Gupta and Long, 2019). The norm on the torus is therefore the largest norm of a symbol.
    """
    bracket = spectral_norms(_symbols(node, weight), floor=floor)
    terms = weight.shape[2] + weight.shape[3]
    # Each cos and sin of a rounded angle is within 2^-47; the error of their sums grows with the number of terms.
    error = (4 * terms + 64) * 2.0**-48
    size = float(weight.abs().sum((2, 3)).square().sum().sqrt()) * math.sqrt(2) * terms
    return (bracket.upper + error * size) * _UP


def _symbols(node: Conv2d, weight: Tensor) -> Iterator[Tensor]:
    """Yield the symbols Ŵ(ω) = Σ_q W_q·e^{iqω} of the convolution on a torus, as real matrices [B, 2·O/g, 2·C'/g].

    Here, g is the number of groups, and O is the number of output channels. Along each axis, the input is cut into
    blocks of s elements, where s is the stride, so that each output reads one block further than the output before it.
    The position of an element within its block is called its phase. The elements of each phase form a channel of their
    own; there are C' of these channels in total. W_q holds the kernel's weights for block offset q. Output i reads the
    element at i·s + t for kernel offset t; this element has phase t mod s in block i + ⌊t/s⌋. If the offsets of the
    kernel reach over Q blocks, the outputs along an axis together read (outputs + Q - 1) blocks, so a torus of this
    size is large enough. If Q = 1, one block suffices, because the symbols of all frequencies are equal up to a factor
    of modulus 1. A complex matrix A + iB is represented by the real matrix [[A, -B], [B, A]], which has the same
    singular values, each twice. Opposite frequencies have conjugate symbols, so half of the frequencies suffice.
    """
    places, sizes = [], []
    for axis in range(2):
        step, gap, border = node.stride[axis], node.dilation[axis], node.padding[axis]
        offset = torch.arange(weight.shape[2 + axis]) * gap - border
        block = torch.div(offset, step, rounding_mode="floor")
        extent = int(block.max() - block.min()) + 1
        places.append((offset - block * step, block - block.min()))
        sizes.append((extent, node.shape[1 + axis] + extent - 1 if extent > 1 else 1))
    (phase_y, block_y), (phase_x, block_x) = places
    (extent_y, height), (extent_x, width) = sizes
    outputs, channels = weight.shape[:2]
    blocks = torch.zeros(outputs, channels, *node.stride, extent_y, extent_x, dtype=torch.float64)
    blocks[:, :, phase_y[:, None], phase_x, block_y[:, None], block_x] = weight
    blocks = blocks.view(node.groups, outputs // node.groups, -1, extent_y, extent_x)
    waves_x = _waves(extent_x, width)[: width // 2 + 1]
    columns = torch.einsum("goiyx,fx->gfoiy", blocks.to(torch.complex128), waves_x)
    rows = max(1, _NUMBERS // max(1, 4 * columns[..., 0].numel()))
    for waves_y in torch.split(_waves(extent_y, height), rows):
        symbols = torch.einsum("gfoiy,ey->gefoi", columns, waves_y).flatten(0, 2)
        real, imaginary = symbols.real, symbols.imag
        yield torch.cat([torch.cat([real, -imaginary], 2), torch.cat([imaginary, real], 2)], 1)


def _waves(extent: int, size: int) -> Tensor:
    """Return the waves e^{2πi·f·q/size} of all frequencies f and offsets q, complex128 [size, extent]."""
    turns = (torch.arange(size)[:, None] * torch.arange(extent)) % size
    angle = turns.double() * (2 * math.pi / size)
    return torch.complex(angle.cos(), angle.sin())


def map_norm(node: Linear | Conv2d, weights: Weights, norm: str) -> float:
    """Return an upper bound of the norm of a layer with these weights; inf if it cannot be bounded."""
    bound = linear_norm(weights, norm) if isinstance(node, Linear) else conv_norm(node, weights, norm)
    return math.inf if math.isnan(bound) else bound

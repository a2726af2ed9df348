"""Products of wide layers by the machine's matrix and convolution routines, for the native engine.

The bounds on rounding errors hold for sums of products in IEEE arithmetic, in any order, but not for Winograd or FFT.
Operators are therefore called by name, so that torch does not choose another algorithm. If a setting allows another
number format, the operators are not called.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import platform
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.bounds.graph.nodes import Conv2d, Linear

_Floats = npt.NDArray[Any]


class LayerProduct(enum.IntEnum):
    """A product with a layer's weights; the same as ``Product`` in csrc/bounds/engine/wide/library_products.h."""

    FORWARD = 0  # W·z
    MAGNITUDE = 1  # |W|·z
    BACKWARD = 2  # a·W


# Least number of multiplications for one example, averaged over the layers of products, at which a library call is
# worth its overhead.
_WIDE = 1 << 20

# With fewer multiplications for one example, a layer of such a network, such as a pooling, stays with the kernels.
_SMALL = 1 << 15

# Where oneDNN uses its own routines; elsewhere it calls further libraries, whose algorithms are not known here.
_MACHINES = ("x86_64", "AMD64")


def strict() -> bool:
    """Whether the library's routines exist here and every setting leaves float32 products in float32.

    >>> before = torch.get_float32_matmul_precision()
    >>> torch.set_float32_matmul_precision("medium")
    >>> strict()
    False
    >>> torch.set_float32_matmul_precision(before)
    """
    if not torch._C._has_mkldnn or platform.machine() not in _MACHINES or not _highest_matmul_precision():
        return False
    if os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "strict").lower() != "strict":
        return False
    settings: list[Any] = [torch.backends, torch.backends.mkldnn]
    settings += [getattr(torch.backends.mkldnn, name, None) for name in ("conv", "matmul")]
    return all(getattr(setting, "fp32_precision", "none") in ("none", "ieee") for setting in settings)


def _highest_matmul_precision() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch raises where the newer settings contradict each other
        return False


class LibraryProducts:
    """The products of one network's layers, called by the native engine.

    Args:
        layers: number, node and weight of each layer that is a sum of products; weights are flat, in the engine's
            floats.
    """

    def __init__(self, layers: list[tuple[int, Linear | Conv2d, _Floats]]) -> None:
        self._layers = {i: _Layer(node, torch.from_numpy(weight)) for i, node, weight in layers}
        self.largest = max((max(node.size, node.inputs[0].size) for _, node, _ in layers), default=1)

    def chosen(self) -> bool:
        """Whether, under the current settings, the library computes the products of this network."""
        work = [layer.work for layer in self._layers.values()]
        return (
            bool(work)
            and sum(work) >= _WIDE * len(work)
            and all(layer.weight.numel() for layer in self._layers.values())  # the library refuses empty operands
            and strict()
            and all(layer.weight.dtype == torch.float32 and layer.normal for layer in self._layers.values())
        )

    @property
    def least(self) -> int:
        """The least number of multiplications per example at which interval bounds of a layer use oneDNN."""
        return _SMALL

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Run the block without recording gradients, and with arithmetic that the caller's settings do not change."""
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            yield

    def __call__(self, i: int, product: int, operand: _Floats, *channels: int) -> _Floats:
        """Compute a `LayerProduct` of layer i: [batch, inputs] → [batch, outputs], or the reverse in the backward pass.

        ``channels`` is the half-open range of channels that the product uses; empty for all channels.
        """
        layer, z, kind = self._layers[i], torch.from_numpy(operand), LayerProduct(product)
        magnitude = kind is LayerProduct.MAGNITUDE
        result = (
            layer.backward(z) if kind is LayerProduct.BACKWARD else layer.forward(z, *channels, magnitude=magnitude)
        )
        return result.contiguous().numpy()


class _Layer:
    def __init__(self, node: Linear | Conv2d, weight: Tensor) -> None:
        self.node = node
        if isinstance(node, Conv2d):
            shape = node.weight.value().shape
            self.work = weight[: shape[1:].numel()].numel() * node.size
            self.weight = weight.view(shape)
            self.inputs: tuple[int, ...] = (-1, *node.inputs[0].shape)
            self.sizes = node.padding, node.stride, node.dilation, node.groups
        else:
            self.work = weight.numel()
            self.weight = weight.view(node.size, node.inputs[0].size)
            self.inputs = (-1, node.inputs[0].size)
        # Weights are in the library's layout from the first call on if each call would otherwise convert more weights
        # than inputs to it. The batch size does not decide, because the result of an example must not depend on others.
        self._packed = isinstance(node, Conv2d) and weight.numel() >= node.inputs[0].size
        self._blocks: dict[tuple[int, ...], Tensor] = {}

    @functools.cached_property
    def normal(self) -> bool:
        """Whether no weight is subnormal; a library may treat subnormal weights as zero."""
        sizes = self.weight.abs()
        return not bool(((sizes > 0) & (sizes < torch.finfo(sizes.dtype).smallest_normal)).any())

    def _block(self, magnitude: bool, *channels: int) -> Tensor:
        """Return the weights or their magnitudes, for all or some input channels, in oneDNN's layout if ``_packed``."""
        key = (int(magnitude), *channels)
        if key not in self._blocks:
            weight = self.weight[:, slice(*channels)] if channels else self.weight
            weight = weight.abs().contiguous() if magnitude else weight.contiguous()
            if self._packed:
                first, last = channels or (0, self.inputs[1])
                example = [1, last - first, *self.inputs[2:]]
                weight = torch.ops.mkldnn._reorder_convolution_weight.default(weight, *self.sizes, example)
            self._blocks[key] = weight
        return self._blocks[key]

    @functools.cached_property
    def _transposed(self) -> Tensor:
        return self.weight.mT.contiguous()

    def forward(self, z: Tensor, *channels: int, magnitude: bool) -> Tensor:
        weight, z = self._block(magnitude, *channels), z.view(self.inputs)
        if channels:
            z = z[:, slice(*channels)].contiguous()
        if not isinstance(self.node, Conv2d):
            return _linear(z, weight)
        if self._packed:
            call = torch.ops.mkldnn._convolution_pointwise.default
            result: Tensor = call(z, weight, None, *self.sizes, "none", [], "")
        else:
            result = torch.ops.aten.mkldnn_convolution.default(z, weight, None, *self.sizes)
        return result

    def backward(self, a: Tensor) -> Tensor:
        if not isinstance(self.node, Conv2d):
            return _linear(a, self._transposed)
        return _transposed_convolution(a.view(-1, *self.node.shape), self.weight, self.node)


def _linear(z: Tensor, weight: Tensor) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise.default(z, weight, None, "none", [], "")
    return result


def _transposed_convolution(a: Tensor, weight: Tensor, node: Conv2d) -> Tensor:
    kernel = weight.shape[2:]
    stops = [
        (out - 1) * stride - 2 * padding + dilation * (k - 1) + 1
        for out, stride, padding, dilation, k in zip(
            node.shape[1:], node.stride, node.padding, node.dilation, kernel, strict=True
        )
    ]
    gaps = [size - stop for size, stop in zip(node.inputs[0].shape[1:], stops, strict=True)]
    sizes = node.padding, gaps, node.stride, node.dilation
    call = torch.ops.mkldnn._convolution_transpose_pointwise.default
    result: Tensor = call(a, weight, None, *sizes, node.groups, "none", [], "")
    return result

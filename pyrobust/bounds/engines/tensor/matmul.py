"""Products in float64 by direct algorithms only; convolutions are computed as matrix products.

Bounds on rounding hold for sums of products in any order, but not for Winograd, FFT or Strassen-like algorithms, nor
for emulated arithmetic. Every BLAS that torch calls computes products of float64 matrices as sums of products in
float64, unless cuBLAS is set to emulate float64. Convolutions are computed as matrix products: forward from the windows
of the input, backward with ``fold``. Convolution libraries (cuDNN, oneDNN) are not used, because they choose algorithms
by themselves. ATen's own loop is not used, because it launches a product for each example.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch.nn import functional

from pyrobust.bounds.engines.tensor.network import Layer
from pyrobust.bounds.engines.tensor.receptive_field import Window, moved, reach
from pyrobust.bounds.graph.nodes import Conv2d
from pyrobust.errors import ModelError

_EMULATION = "CUBLAS_EMULATE_DOUBLE_PRECISION"


def check_products(device: torch.device) -> None:
    """Raise ModelError where matrix products of float64 tensors may be emulated.

    From CUDA 13.0 on, an environment variable can make cuBLAS emulate float64 products by products of integers. Bounds
    on rounding do not hold for such products, because their errors are not multiples of the float64 roundoff. torch has
    no setting that switches the emulation off.
    """
    setting = os.environ.get(_EMULATION, "")
    if device.type == "cuda" and setting not in ("", "0"):
        raise ModelError(
            f"model: bounds on {device} need float64 arithmetic, but {_EMULATION} is {setting!r}, which lets cuBLAS "
            'emulate it; unset it before the first product, or pass engine="native" to compute on the CPU'
        )


def forward(layer: Layer, weight: Tensor, z: Tensor) -> Tensor:
    """Return the sums Σ w·z [N, size] of a layer, without bias, for z [N, inputs]; w is the weight or its magnitude."""
    node = layer.node
    if not isinstance(node, Conv2d):
        return z @ weight.mT
    channels, height, width = node.inputs[0].shape
    patches = _patches(z.view(-1, channels, height, width), node).reshape(len(z), node.groups, weight.shape[2], -1)
    parts = [torch.bmm(weight[g].expand(len(z), -1, -1), patches[:, g]) for g in range(node.groups)]
    return torch.cat(parts, 1).flatten(1)


def backward(layer: Layer, a: Tensor, have: Window | None, want: Window | None) -> Tensor:
    """Return coefficients of a layer's input, in window ``want``, from those of the layer, in window ``have``."""
    node, weight = layer.node, layer.weight
    if not isinstance(node, Conv2d):
        return a @ weight
    planes = a.view(len(a), node.groups, weight.shape[1], -1)
    turned = weight.mT
    parts = [torch.bmm(turned[g].expand(len(a), -1, -1), planes[:, g]) for g in range(node.groups)]
    patches = parts[0] if node.groups == 1 else torch.cat(parts, 1)
    shape, sizes = node.inputs[0].shape, _sizes(node)
    if have is None and want is None:
        return functional.fold(patches, shape[1:], **sizes).flatten(1)
    reached = reach(node, have or Window.whole(node.shape))
    size = reached.y1 - reached.y0, reached.x1 - reached.x0
    return moved(functional.fold(patches, size, **(sizes | {"padding": (0, 0)})).flatten(1), shape, reached, want)


def units_backward(layer: Layer, neuron: Tensor, sign: Tensor, have: Window | None, want: Window | None) -> Tensor:
    """Do the step of ``backward`` for rows with a single coefficient, ±1: weights are copied, not summed.

    ``neuron`` [R] is the position of each row's coefficient, and ``sign`` [R] is its value.
    """
    node, weight = layer.node, layer.weight
    if not isinstance(node, Conv2d):
        return weight[neuron] * sign.unsqueeze(1)
    have = have or Window.whole(node.shape)
    reached, shape = reach(node, have), node.inputs[0].shape
    high, long = reached.y1 - reached.y0, reached.x1 - reached.x0
    outputs, rows, columns = node.shape
    kernel_y, kernel_x = _kernel(node)
    # offsets of the kernel's elements from its corner in the window that it reaches
    group_rows = torch.arange(shape[0] // node.groups, device=neuron.device)[:, None, None]
    down = torch.arange(kernel_y, device=neuron.device)[:, None] * node.dilation[0]
    offsets = (
        (group_rows * high + down) * long + torch.arange(kernel_x, device=neuron.device) * node.dilation[1]
    ).flatten()
    channel, y, x = neuron // (rows * columns), neuron // columns % rows - have.y0, neuron % columns - have.x0
    group = channel // (outputs // node.groups)
    corner = (group * len(group_rows) * high + y * node.stride[0]) * long + x * node.stride[1]
    out = weight.new_zeros(len(neuron), shape[0] * high * long)
    out.scatter_(1, corner.unsqueeze(1) + offsets, weight.flatten(0, 1)[channel] * sign.unsqueeze(1))
    return moved(out, shape, reached, want)


def _patches(z: Tensor, node: Conv2d) -> Tensor:
    """View the windows of images [N, C, H, W] as [N, C, kh, kw, h, w], with fewer launches than torch's unfold."""
    (kernel_y, kernel_x), (pad_y, pad_x) = _kernel(node), node.padding
    padded = functional.pad(z, (pad_x, pad_x, pad_y, pad_y)) if pad_y or pad_x else z
    sizes = (*padded.shape[:2], kernel_y, kernel_x, *node.shape[1:])
    image, channel, row, column = padded.stride()
    within = (row * node.dilation[0], column * node.dilation[1])
    return padded.as_strided(sizes, (image, channel, *within, row * node.stride[0], column * node.stride[1]))


def patches_of(layer: Layer, window: Window | None) -> int:
    """Return the number of elements in the patches of a row, for which ``forward`` and ``backward`` need memory."""
    if not isinstance(layer.node, Conv2d):
        return 0
    places = (window or Window.whole(layer.node.shape)).size((1, *layer.node.shape[1:]))
    return layer.node.groups * layer.weight.shape[2] * places


def _kernel(node: Conv2d) -> tuple[int, int]:
    shape = node.weight.shape
    return shape[2], shape[3]


def _sizes(node: Conv2d) -> dict[str, tuple[int, int]]:
    return {
        "kernel_size": _kernel(node),
        "dilation": node.dilation,
        "padding": node.padding,
        "stride": node.stride,
    }

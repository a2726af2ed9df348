"""Batch-last convolutions against torch's own in its two layouts: forward, by the input, by the weight.

Shapes come from the nets of the training-step benchmark, for images and for nine specification rows of each. Work: two
operations for each product, which is the same for all three maps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pyrobust.microbench.timing import Case
from pyrobust.ops import batch_last_conv, batch_last_conv_transposed, batch_last_conv_weight

# (net, batch, planes, size, planes of the result, kernel, stride)
_LAYERS = (
    ("digits-ibp-0.10", 128, 32, 8, 32, 3, 2),
    ("mnist_cnn_a_adv", 100, 16, 14, 32, 4, 2),
    ("oval_base", 100, 8, 16, 16, 4, 2),
)


def cases(device: torch.device) -> list[Case]:
    if device.type != "cpu":
        return []
    return [case for layer in _LAYERS for rows in (1, 9) for case in _cases(*layer, rows)]


def _cases(
    net: str, batch: int, planes: int, size: int, results: int, kernel: int, stride: int, rows: int
) -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(planes, size, size, batch * rows, generator=generator)
    weight = torch.randn(results, planes, kernel, kernel, generator=generator)
    move = {"stride": (stride, stride), "padding": (1, 1)}
    y = batch_last_conv(x, weight, **move)
    native: dict[str, Callable[[], Tensor]] = {
        "forward": lambda: batch_last_conv(x, weight, **move),
        "by the input": lambda: batch_last_conv_transposed(y, weight, (size, size), **move),
        "by the weight": lambda: batch_last_conv_weight(x, y, (kernel, kernel), **move),
    }

    def of_torch(kind: str, layout: torch.memory_format) -> object:
        image, result = (t.movedim(-1, 0).contiguous(memory_format=layout) for t in (x, y))
        filters = weight.contiguous(memory_format=layout)
        if kind == "forward":
            return partial(torch.nn.functional.conv2d, image, filters, None, stride, 1)
        wanted = (kind == "by the input", kind == "by the weight", False)
        geometry = ((stride, stride), (1, 1), (1, 1), False, (0, 0), 1, wanted)
        return partial(torch.ops.aten.convolution_backward, result, image, filters, None, *geometry)

    what = f"{net}'s second layer, {batch} images" + (f" of {rows} rows" if rows > 1 else "")
    layouts = {"torch": torch.contiguous_format, "torch, channels_last": torch.channels_last}
    return [
        Case(
            f"convolution {kind}, {what}",
            {"native": call, **{name: of_torch(kind, layout) for name, layout in layouts.items()}},
            {"flops": 2.0 * y.numel() * weight[0].numel()},
        )
        for kind, call in native.items()
    ]

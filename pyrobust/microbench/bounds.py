"""Benchmarks of lower bounds of a small net's margins on l-infinity boxes, which take at least a forward pass.

The native bounds are sound in floating point; the PyTorch bounds are rounded to nearest, as in common scripts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyrobust.bounds import BoundedModel, BoundOptions
from pyrobust.microbench.timing import Case, compare
from pyrobust.zoo import load_digits, load_model

Pair = tuple[Tensor, Tensor]

_EPSILON = 0.05


def cases(device: torch.device) -> Iterator[Case]:
    """Yield the cases: the digits net on one image and on a batch."""
    net = load_model("zoo:digits-ibp-0.10").requires_grad_(False).to(device)
    digits = load_digits("test")
    assert isinstance(net, nn.Sequential)
    bounded = BoundedModel(net, digits.x[:1].to(device))
    for method, batches in (("ibp", (1, 128)), ("crown", (1, 4))):
        for batch in batches:
            x, y = digits.x[:batch].to(device), digits.y[:batch].to(device)
            yield _case(bounded, net, method, (x - _EPSILON).clamp(0, 1), (x + _EPSILON).clamp(0, 1), y)


def _case(bounded: BoundedModel, net: nn.Sequential, method: str, x_lower: Tensor, x_upper: Tensor, y: Tensor) -> Case:
    options = BoundOptions(method=method)

    def native() -> Tensor:
        return bounded.margins(x_lower=x_lower, x_upper=x_upper, y=y, options=options).lower

    by_hand = interval_margins if method == "ibp" else crown_margins
    return compare(
        f"{method} margins, digits, batch {len(y)}",
        native,
        (f"{method} by hand", torch.no_grad()(partial(by_hand, net, x_lower, x_upper, y))),
        ("forward pass", torch.no_grad()(partial(net, x_lower))),
    )


def margin_rows(y: Tensor, classes: int) -> Tensor:
    """Return coefficient rows [B, K - 1, K] of the margins logit[y] - logit[j], for j != y in increasing order."""
    unit = torch.eye(classes, device=y.device)
    other = torch.arange(classes, device=y.device) != y.unsqueeze(1)
    return (unit[y].unsqueeze(1) - unit)[other].view(len(y), classes - 1, classes)


def interval_margins(net: nn.Sequential, x_lower: Tensor, x_upper: Tensor, y: Tensor) -> Tensor:
    """Return lower bounds of the margins by propagating centre and radius through each layer (Gowal et al., 2018).

    The difference of logits is folded into the last layer, which is linear.
    """
    *layers, last = net
    pair = (x_lower + x_upper) / 2, (x_upper - x_lower) / 2
    for layer in layers:
        pair = interval_through(layer, pair)
    centre, radius = pair
    assert isinstance(last, nn.Linear)
    other = torch.arange(last.out_features, device=y.device) != y.unsqueeze(1)
    rows = (last.weight[y].unsqueeze(1) - last.weight)[other].view(len(y), -1, last.in_features)
    bias = (last.bias[y].unsqueeze(1) - last.bias)[other].view(len(y), -1)
    return (rows @ centre.unsqueeze(2) - rows.abs() @ radius.unsqueeze(2)).squeeze(2) + bias


def interval_through(layer: nn.Module, pair: Pair) -> Pair:
    """Propagate centre and radius through a layer."""
    centre, radius = pair
    if isinstance(layer, nn.Linear):
        return F.linear(centre, layer.weight, layer.bias), F.linear(radius, layer.weight.abs())
    if isinstance(layer, nn.Conv2d):
        stride, padding = layer.stride, layer.padding
        return (
            F.conv2d(centre, layer.weight, layer.bias, stride, padding),
            F.conv2d(radius, layer.weight.abs(), None, stride, padding),
        )
    if isinstance(layer, nn.ReLU | nn.Sigmoid):
        lower, upper = layer(centre - radius), layer(centre + radius)
        return (lower + upper) / 2, (upper - lower) / 2
    if isinstance(layer, nn.Flatten):
        return layer(centre), layer(radius)
    raise TypeError(f"layer: no interval bounds of {type(layer).__name__}")


def crown_margins(net: nn.Sequential, x_lower: Tensor, x_upper: Tensor, y: Tensor) -> Tensor:
    """Return lower bounds of the margins by CROWN, which also bounds the inputs of the ReLUs (Zhang et al., 2018)."""
    layers = list(net)
    pair = box = (x_lower + x_upper) / 2, (x_upper - x_lower) / 2
    shapes: list[torch.Size] = []
    relaxed: dict[int, Pair] = {}
    for i, layer in enumerate(layers):
        shapes.append(pair[0].shape[1:])
        if isinstance(layer, nn.ReLU):
            lower, upper = pair[0] - pair[1], pair[0] + pair[1]
            if relaxed:  # before the first ReLU, intervals are exact
                size = shapes[i].numel()
                unit = torch.eye(size, device=y.device).view(1, size, *shapes[i]).repeat_interleave(len(y), 0)
                rows = partial(_backward, layers[:i], shapes, relaxed, box)
                lower, upper = rows(unit).view_as(lower), -rows(-unit).view_as(upper)
            relaxed[i] = lower, upper
        pair = interval_through(layer, pair)
    return _backward(layers, shapes, relaxed, box, margin_rows(y, pair[0].shape[1]))


def _backward(
    layers: Sequence[nn.Module], shapes: Sequence[torch.Size], relaxed: dict[int, Pair], box: Pair, a: Tensor
) -> Tensor:
    """Return lower bounds [B, R], on the box, of linear functions of the layers' output with coefficients a."""
    bias = torch.zeros(a.shape[:2], device=a.device)
    for i in reversed(range(len(layers))):
        layer = layers[i]
        if isinstance(layer, nn.Linear):
            bias = bias + a @ layer.bias
            a = a @ layer.weight
        elif isinstance(layer, nn.Flatten):
            a = a.reshape(*a.shape[:2], *shapes[i])
        elif isinstance(layer, nn.Conv2d):
            assert layer.bias is not None
            bias = bias + a.sum((3, 4)) @ layer.bias
            # conv_transpose2d needs the number of rows and columns that a stride cuts off at the border.
            lost = [(n + 2 * p - k) % s for n, p, k, s in zip(shapes[i][1:], *_sizes(layer), strict=True)]
            flat = F.conv_transpose2d(a.flatten(0, 1), layer.weight, None, layer.stride, _sizes(layer)[0], lost)
            a = flat.unflatten(0, a.shape[:2])
        else:
            lower, upper = (bound.unsqueeze(1) for bound in relaxed[i])
            chord = upper.clamp(min=0) / (upper.clamp(min=0) - lower.clamp(max=0)).clamp(min=1e-12)
            slope = (upper > -lower).to(a.dtype)
            positive, negative = a.clamp(min=0), a.clamp(max=0)
            bias = bias - (negative * chord * lower.clamp(max=0)).flatten(2).sum(2)
            a = positive * slope + negative * chord
    centre, radius = (bound.unsqueeze(1) for bound in box)
    return (a * centre - a.abs() * radius).flatten(2).sum(2) + bias


def _sizes(layer: nn.Conv2d) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return padding, kernel size and stride."""
    assert not isinstance(layer.padding, str)
    return layer.padding, layer.kernel_size, layer.stride

"""Lower bounds of the margins on l-infinity boxes by IBP, CROWN-IBP and CROWN, against the peers and the floor.

The nets and images are those of PYROBUST_DATA, else the same nets with random weights on random images. The box is
[max(0, x - epsilon), min(1, x + epsilon)]; normalisation is folded into it, and every variant gets the same box and the
net without normalisation. "native" is the engine in native code, on the CPU; "torch" the one in float64 torch
operations, on the model's device. The first of them is the one that BoundedModel takes there. Sound bounds round
outward; sound=False and the peers round to nearest. A peer whose CROWN bounds, for every example, the rows that any
example of the batch needs can be faster on one example at a time: both are measured.

Work: float32 operations of the products, counted by studies/bounds/products.py. The floor is square matrix products of
as many operations as the undecided rows need; times dense / undecided it is that of dense rows.
"""

from __future__ import annotations

import math
import os
from functools import partial

import nets
import peers
import torch
from studies.bounds.products import flops
from torch import Tensor, nn

from pyrobust import BoundedModel, BoundOptions
from pyrobust.microbench.bounds import interval_margins
from pyrobust.microbench.timing import Call, Case

METHODS = ("ibp", "crown-ibp", "crown")
# (net, epsilon as text, epsilon, batch, methods). interval_margins supports chains only.
SETTINGS = (
    ("mnist_6_100", "0.02", 0.02, 100, METHODS),
    ("oval_base", "2/255", 2 / 255, 100, METHODS),
    ("oval_base", "2/255", 2 / 255, 1, ("crown",)),
    ("mnist_cnn_a_adv", "0.1", 0.1, 100, ("crown-ibp", "crown")),
    ("mnist_cnn_a_adv", "0.1", 0.1, 1, ("crown",)),
    ("cifar_resnet2b", "1/255", 1 / 255, 8, ("crown-ibp", "crown")),
    ("cifar_conv_small_sigmoid", "1/255", 1 / 255, 96, METHODS),
    ("cifar_conv_small_sigmoid", "1/255", 1 / 255, 1, ("crown",)),
)
_LARGEST = 2048


def cases(device: torch.device) -> list[Case]:
    return [
        _case(name, text, epsilon, batch, method, device)
        for name, text, epsilon, batch, methods in SETTINGS
        for method in methods
    ]


def title(name: str, text: str, batch: int, method: str) -> str:
    weights = "" if os.environ.get("PYROBUST_DATA") else " with random weights"
    return f"{method} margins, {name}{weights}, epsilon {text}, batch {batch}"


def boxes(name: str, epsilon: float, batch: int) -> tuple[nn.Sequential, Tensor, Tensor, Tensor]:
    """Return the net without its normalisation, the normalised box, and the labels."""
    (before, net), x, y = nets.load(name)
    x, y = x[:batch], y[:batch]
    # Normalisation is increasing in each coordinate.
    return net, before((x - epsilon).clamp(0, 1)), before((x + epsilon).clamp(0, 1)), y


def ours(
    net: nn.Module, example: Tensor, method: str, sound: bool, engine: str, memory_limit: int | None = None
) -> peers.Margins:
    bounded = BoundedModel(net, example, engine=engine)

    def margins(x_lower: Tensor, x_upper: Tensor, y: Tensor) -> Tensor:
        options = BoundOptions(method=method, sound=sound, memory_limit=memory_limit)
        return bounded.margins(x_lower=x_lower, x_upper=x_upper, y=y, options=options).lower

    return margins


def _case(name: str, text: str, epsilon: float, batch: int, method: str, device: torch.device) -> Case:
    net, x_lower, x_upper, y = (t.to(device) for t in boxes(name, epsilon, batch))
    box, example = (x_lower, x_upper, y), x_lower[:1]
    engines = ("torch", "native") if device.type == "cuda" else ("native", "torch")
    variants: dict[str, Call] = {
        f"{engine}{'' if sound else ', sound=False'}": partial(ours(net, example, method, sound, engine), *box)
        for engine, sound in ((engines[0], True), (engines[0], False), (engines[1], True))
    }
    for peer in peers.installed():
        if method in peer.margins:
            margins = peer.margins[method](net, example)
            variants[peer.name] = partial(margins, *box)
            if method == "crown" and batch > 1:
                variants[f"{peer.name}, one example at a time"] = partial(_one_by_one, margins, *box)
    if method == "ibp":
        variants["plain PyTorch"] = partial(interval_margins, net, *box)
    work = flops(net, x_lower, x_upper, method)
    variants["products of the undecided rows alone"] = _products(work["undecided"], device)
    variants["plain forward pass"] = partial(net, x_lower)
    return Case(
        title(name, text, batch, method),
        variants,
        {"examples": batch, **{f"flops_{rows}": count for rows, count in work.items()}},
        items=batch,
    )


def _one_by_one(margins: peers.Margins, x_lower: Tensor, x_upper: Tensor, y: Tensor) -> Tensor:
    return torch.cat([margins(*row) for row in zip(x_lower.split(1), x_upper.split(1), y.split(1), strict=True)])


def _products(count: float, device: torch.device) -> Call:
    """Run square float32 products of ``count`` operations in total; the last has fewer rows."""
    size = min(_LARGEST, 2 ** int(math.log2(count / 2) / 3))
    whole, remainder = divmod(count / 2 / size**2, size)
    a, b = torch.rand(2, size, size, device=device)
    out = torch.empty_like(a)

    def products() -> None:
        for rows in [size] * int(whole) + [int(remainder)] * (remainder >= 1):
            torch.mm(a[:rows], b, out=out[:rows])

    return products

"""Lower bounds of the margins of wide nets by IBP and CROWN-IBP, against the peers; the floor is one forward pass. And
the range of every output of one wide convolution, against the floor.

Random weights and random images, epsilon 1/255. "native" is the engine in native code, on the CPU; "torch" the one in
float64 torch operations, on a GPU. A net is made, captured and handed to the peers when its case is first timed, so
that cases left out by --only cost nothing.
"""

from __future__ import annotations

import functools

import peers
import torch
from studies.bounds.wide_nets import WIDE_NETS, wide_net
from torch import Tensor, nn

from pyrobust import BoundedModel
from pyrobust.microbench.timing import Call, Case

from .bounds import ours

BATCHES = (1, 2, 16, 64)
METHODS = ("ibp", "crown-ibp")
EPSILON = 1 / 255


def cases(device: torch.device) -> list[Case]:
    margins = [_case(name, batch, method, device) for name in WIDE_NETS for method in METHODS for batch in BATCHES]
    return margins + [_convolution_case(batch, device) for batch in BATCHES]


@functools.cache
def _net(name: str, device: torch.device) -> nn.Sequential:
    return wide_net(name).to(device)


@functools.cache
def _margins(name: str, variant: str, method: str, device: torch.device) -> peers.Margins:
    """One variant's bounds of a net, built once for all batch sizes."""
    net, example = _net(name, device), torch.zeros(1, *WIDE_NETS[name][1], device=device)
    if variant in ("native", "torch"):
        return ours(net, example, method, True, variant)
    return next(peer.margins[method] for peer in peers.installed() if peer.name == variant)(net, example)


def _convolution_case(batch: int, device: torch.device) -> Case:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Flatten()).eval().requires_grad_(False).to(device)
        x = torch.rand(batch, 64, 32, 32).to(device)
    bounded = BoundedModel(layer, x[:1])
    variants: dict[str, Call] = {
        "torch" if device.type == "cuda" else "native": lambda: bounded.bounds(x, EPSILON, method="ibp"),
        "plain forward pass": lambda: layer(x),
    }
    title = f"ibp, wide: Conv2d(64, 64, 3) on 32x32, every output, epsilon 1/255, batch {batch}"
    return Case(title, variants, {"examples": batch}, items=batch)


def _case(name: str, batch: int, method: str, device: torch.device) -> Case:
    @functools.cache
    def box() -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(batch, *WIDE_NETS[name][1], generator=generator).to(device)
        y = torch.randint(10, (batch,), generator=generator).to(device)
        return (x - EPSILON).clamp(0, 1), (x + EPSILON).clamp(0, 1), y

    def bound(variant: str) -> Call:
        return lambda: _margins(name, variant, method, device)(*box())

    engine = "torch" if device.type == "cuda" else "native"
    variants: dict[str, Call] = {engine: bound(engine)}
    variants |= {peer.name: bound(peer.name) for peer in peers.installed() if method in peer.margins}
    variants["plain forward pass"] = lambda: _net(name, device)(box()[0])
    return Case(f"{method}, wide: {name}, epsilon 1/255, batch {batch}", variants, {"examples": batch}, items=batch)

"""One module per library that does the same work as pyrobust, each with ``peer() -> Peer``.

A library is imported when its peer is requested. One that is absent or fails to import is reported as skipped, with the
reason.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

#: Maps (x [N, ...], y [N]) to the attacked x, in the library's own container.
Attack = Callable[[Tensor, Tensor], object]
#: Maps (model, epsilon, steps) to an attack on the raw range [0, 1] that takes all of its steps.
Build = Callable[[nn.Module, float, int], Attack]
#: Maps (model, steps) to a minimum-norm attack on the raw range [0, 1], which returns x_adv as a tensor.
BuildMinimum = Callable[[nn.Module, int], Callable[[Tensor, Tensor], Tensor]]
#: Maps (x_lower [B, ...], x_upper [B, ...], y [B]) to lower bounds [B, K - 1] of logit[y] - logit[j], j != y ascending.
Margins = Callable[[Tensor, Tensor, Tensor], Tensor]
#: Maps (model, example input [1, ...]) to a bound of its margins on boxes.
BuildMargins = Callable[[nn.Module, Tensor], Margins]
#: Maps (x [B, ...], y [B]) to the same lower bounds on the l-infinity balls around x, differentiable.
BallMargins = Callable[[Tensor, Tensor], Tensor]
#: Maps (model, which gets the gradients, example input [B, ...], epsilon) to a bound of its margins on balls.
BuildBallMargins = Callable[[nn.Module, Tensor, float], BallMargins]


@dataclass(frozen=True)
class Peer:
    """Capabilities of a library; mappings hold only what it offers."""

    name: str
    #: "l1_ball" and "simplex": (v [R, D], radius); "l1_ball_box": (delta [R, D], x [R, D], radius), box [0, 1].
    projections: Mapping[str, Callable[..., object]] = field(default_factory=dict)
    #: "pgd-linf", "apgd-linf", "apgd-l2", "apgd-l1".
    attacks: Mapping[str, Build] = field(default_factory=dict)
    #: (attack of the study attacks/minimum_norm, norm).
    minimum: Mapping[tuple[str, str], BuildMinimum] = field(default_factory=dict)
    #: "ibp", "crown-ibp", "crown".
    margins: Mapping[str, BuildMargins] = field(default_factory=dict)
    #: "ibp", "crown-ibp": those to train with.
    training: Mapping[str, BuildBallMargins] = field(default_factory=dict)


@functools.cache
def installed() -> tuple[Peer, ...]:
    """Return the importable peers; print a line for each other one."""
    peers = []
    for module in pkgutil.iter_modules(__path__):
        try:
            peers.append(importlib.import_module(f"{__name__}.{module.name}").peer())
        # A library broken by a newer dependency can raise anything, and must not stop the others.
        except Exception as error:
            print(f"skipped peer {module.name}: {type(error).__name__}: {error}")
    return tuple(peers)

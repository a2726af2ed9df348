"""adv-lib (Rony): sort-based projections, and minimum-norm attacks."""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
import types
from collections.abc import Callable

from torch import Tensor, nn

from . import BuildMinimum, Peer

_ORDERS = {"linf": math.inf, "l2": 2, "l1": 1, "l0": 0}


def peer() -> Peer:
    _stand_in()
    from adv_lib import attacks
    from adv_lib.utils.projections import l1_ball_euclidean_projection, simplex_projection

    def build(attack: Callable[..., Tensor], steps_name: str, **options: object) -> BuildMinimum:
        return lambda model, steps: functools.partial(_call, attack, model, **{steps_name: steps}, **options)

    minimum: dict[tuple[str, str], BuildMinimum] = {
        ("fmn", norm): build(attacks.fmn, "steps", norm=order, **({"α_init": 10.0} if norm == "linf" else {}))
        for norm, order in _ORDERS.items()
    }
    for norm in ("linf", "l2"):
        minimum["deepfool", norm] = build(attacks.df, "steps", norm=_ORDERS[norm])
        minimum["fab", norm] = build(attacks.fab, "n_iter", norm=_ORDERS[norm])
    minimum["fab", "l1"] = build(attacks.fab, "n_iter", norm=1)
    minimum["ddn", "l2"] = build(attacks.ddn, "steps", levels=None)
    minimum["cw", "l2"] = build(attacks.carlini_wagner_l2, "max_iterations")
    minimum["sigma-zero", "l0"] = build(attacks.sigma_zero, "num_steps")
    projections = {"l1_ball": l1_ball_euclidean_projection, "simplex": simplex_projection}
    return Peer("adv-lib", projections=projections, minimum=minimum)


def _call(attack: Callable[..., Tensor], model: nn.Module, x: Tensor, y: Tensor, **options: object) -> Tensor:
    return attack(model, x, y, **options)


def _stand_in() -> None:
    """Its attacks import torchvision and visdom, for a perceptual distance and a plot that are not measured here."""
    for name in ("torchvision", "torchvision.models", "visdom"):
        if name.partition(".")[0] not in sys.modules and importlib.util.find_spec(name.partition(".")[0]) is None:
            sys.modules[name] = types.ModuleType(name)
    if not hasattr(sys.modules.get("torchvision"), "__file__") and "torchvision" in sys.modules:
        sys.modules.setdefault("torchvision.models", types.ModuleType("torchvision.models"))
        sys.modules["torchvision"].models = sys.modules["torchvision.models"]  # type: ignore[attr-defined]  # a stand-in
    if "visdom" in sys.modules and not hasattr(sys.modules["visdom"], "Visdom"):
        sys.modules["visdom"].Visdom = object  # type: ignore[attr-defined]  # a stand-in

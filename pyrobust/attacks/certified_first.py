"""Proofs that no point in an example's ball fools a model, so that attacks may skip the example.

A proof holds for the forward pass that attacks run. This pass uses the model's float format, sums in any order, and no
fast algorithms such as Winograd's (in ``BoundOptions``: ``semantics="float32"``). A proof holds for every input that
lies inside the ball and the clip range in exact arithmetic. Proofs are deterministic. If the attack uses arithmetic
that proofs do not cover, nothing is proved, and the reason is given.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from pyrobust.checks import ATTACK_NORMS, AttackNormName, NormLike, attack_norm_name, class_labels, norm_name, radii
from pyrobust.clip import OMITTED, ClipArgument, attack_ends, joined
from pyrobust.errors import InputError, InputTypeError
from pyrobust.machine import strict_cuda
from pyrobust.runner import Classifier, Runner, evaluation_mode

from .engine.levels import Levels, budgets, level_distance
from .eot import EOT

if TYPE_CHECKING:
    from pyrobust.bounds import BoundedModel

# Intervals bound _INTERVAL_ROWS examples at once; slower methods then try the examples nearest to a proof according to
# the intervals, _TRIED at a time, until they prove none of a batch.
_INTERVAL_ROWS, _TRIED = 1024, 32
# Examples for which intervals lose this many times the margin are not tried: no method here is tight enough for them;
# for those that CROWN proved in measurements, intervals lost less than a thousand times the margin.
_HOPELESS = 1e5


class Proof(NamedTuple):
    """Which examples are proved robust.

    Attributes:
        proved: [B], bool, on the CPU.
        seconds: time that the proof took.
        reason: why no example could be proved at all; None if the methods of bound propagation ran.
    """

    proved: Tensor
    seconds: float
    reason: str | None


def proved_robust(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    epsilon: float | Tensor,
    norm: NormLike = "linf",
    clip_min: float = 0.0,
    clip_max: float = 1.0,
    *,
    clip: ClipArgument = OMITTED,
) -> Proof:
    """Prove that the model predicts y in the whole ball around x, in the arithmetic that an attack would use.

    The methods of bound propagation run in turn, the cheapest first: "ibp" on all examples, then "crown-ibp" and
    "crown" on the undecided examples, except those that are far from a proof. These two methods begin with the examples
    nearest to a proof, and stop after the first batch in which no example is proved. Examples that are not proved may
    still be robust.

    Args:
        model: a module that ``BoundedModel`` supports, on the CPU or a GPU, in any mode.
        x: [B, ...], float, in the clip range, in the model's dtype.
        y: [B], integers, the labels.
        epsilon: radius of the balls, a number or [B], taken as an exact binary64 number.
        norm: "linf", "l2" or "l1"; nothing is proved in "l0".
        clip_min: smallest valid input value.
        clip_max: largest valid input value.
        clip: (clip_min, clip_max), replacing the two arguments; None for no limit.

    Returns:
        A ``Proof`` with the fields ``proved``, ``seconds`` and ``reason``.

    Raises:
        InputError: mismatched shapes, values or labels out of range.
        InputTypeError: an argument of the wrong type.
        ModelError: a model that cannot be bounded.

    >>> model = nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> x, y = torch.tensor([[0.75, 0.25], [0.5, 0.375]]), torch.tensor([0, 0])
    >>> proof = proved_robust(model, x, y, 0.125)
    >>> proof.proved.tolist(), proof.reason
    ([True, False], None)
    """
    runner = Runner(model)
    limits = joined(*attack_ends(clip_min, clip_max, clip))
    size = radii("epsilon", epsilon, len(x))
    return Prover(runner).prove(x, y, size, attack_norm_name("norm", norm, ATTACK_NORMS), limits)


class Prover:
    """Proves examples robust for one model; keeps its ``BoundedModel`` while model and kind of examples are the same.

    Args:
        runner: runs the model in the attack.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._bounded: BoundedModel | None = None
        self._captured: tuple[str, tuple[int, ...], torch.dtype, torch.device] | None = None

    def prove(
        self, x: Tensor, y: Tensor, epsilon: Tensor, norm: AttackNormName, clip: tuple[float, float] | None
    ) -> Proof:
        """Try to prove examples x [B, ...], labels y [B], robust in balls of radius epsilon [B], float64 on the CPU."""
        start = time.perf_counter()
        with torch.inference_mode(False), torch.no_grad(), evaluation_mode(self.runner.model):
            proved = torch.zeros(len(x), dtype=torch.bool, device="cpu")
            reason = other_arithmetic(self.runner, x.dtype, norm)
            if reason is None and len(x):
                reason = self._prove(x.detach(), y, epsilon, norm, clip, proved)
        return Proof(proved, time.perf_counter() - start, reason)

    def _prove(
        self,
        x: Tensor,
        y: Tensor,
        epsilon: Tensor,
        norm: AttackNormName,
        clip: tuple[float, float] | None,
        proved: Tensor,
    ) -> str | None:
        """Mark the proved examples in ``proved``; return None, or the reason why no example can be proved at all."""
        # Imported here, since attacks without proofs do not need it.
        from pyrobust.bounds import BoundOptions
        from pyrobust.bounds.deployed_arithmetic import other_convolutions
        from pyrobust.bounds.input_set import of_examples

        bounded = self._bounded_model(x)
        labels = class_labels("y", y, len(x), bounded.outputs)
        options = BoundOptions(norm=norm_name("norm", norm), clip=clip, semantics="float32")

        def margins(rows: Tensor, method: str, radius: Tensor) -> Tensor:
            sizes = of_examples(radius[rows], bounded.shape)
            return bounded.margins(x[rows.to(x.device)], labels[rows], sizes, method=method, options=options).lower

        reason = other_convolutions(bounded.output, self.runner.device)
        if reason is not None:
            return reason
        try:
            margins(torch.arange(0), "ibp", epsilon)
        except InputError as error:  # such as an operator whose rounding in a forward pass is not known
            return str(error)
        if bounded.outputs < 2:
            return "the model has a single class"
        distance = torch.empty(len(x), dtype=torch.float64, device="cpu")
        for rows in torch.split(torch.arange(len(x)), _INTERVAL_ROWS):
            lower = margins(rows, "ibp", epsilon)
            proved[rows] = (lower > 0).all(1)
            value = margins(rows, "ibp", torch.zeros_like(epsilon))
            distance[rows] = ((value - lower) / value).where(value > 0, torch.inf).nan_to_num(nan=torch.inf).amax(1)
        order = distance.argsort(stable=True)
        order = order[distance[order] < _HOPELESS]
        for method in ("crown-ibp", "crown"):
            for rows in torch.split(order[~proved[order]], _TRIED):
                decided = (margins(rows, method, epsilon) > 0).all(1)
                proved[rows] = decided
                if not bool(decided.any()):
                    break
        return None

    def _bounded_model(self, x: Tensor) -> BoundedModel:
        """Return the ``BoundedModel`` of the attacked model for inputs like x."""
        from pyrobust.bounds import BoundedModel
        from pyrobust.zoo.hashing import model_hash

        model, device = self.runner.model, self.runner.device_for(x)
        if not isinstance(model, nn.Module):
            raise InputTypeError("model", "a torch.nn.Module, whose operations can be bounded", type(model).__name__)
        tables = [table for module in model.modules() for table in (module._forward_pre_hooks, module._forward_hooks)]
        hooks = tuple(id(hook) for table in tables for hook in table.values())
        captured = model_hash(model), hooks, x.dtype, device
        if self._bounded is None or captured != self._captured or self._bounded.shape != tuple(x.shape[1:]):
            self._bounded = BoundedModel(model, x[:1].to(device))
            self._captured = captured
        return self._bounded


def other_arithmetic(runner: Runner, dtype: torch.dtype, norm: str) -> str | None:
    """Return the reason if proofs do not cover the arithmetic of an attack on examples of this dtype, else None.

    >>> other_arithmetic(Runner(nn.Linear(2, 2)), torch.bfloat16, "linf")
    'x is torch.bfloat16, and the model torch.float32'
    """
    from pyrobust.bounds.engines.library_products import strict

    model, device = runner.model, runner.device
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    settings = (
        (norm == "l0", "no method bounds a model on an l0 ball"),
        (isinstance(model, EOT), "the model is averaged over random draws"),
        (runner.dtype not in (torch.float32, torch.float64), f"the model runs in {runner.dtype}"),
        (dtype != runner.dtype, f"x is {dtype}, and the model {runner.dtype}"),
        (torch.is_autocast_enabled(device.type), "torch.autocast is on"),
        (any(map(_is_compiled, modules)), "the model is compiled, which may change its arithmetic"),
        (device.type not in ("cpu", "cuda"), f"the arithmetic of {device.type} is not known"),
        (device.type == "cuda" and torch.version.hip is not None, "the arithmetic of ROCm is not known"),
        (device.type == "cpu" and not strict(), "a setting allows products in less than float32, or of other forms"),
        # without oneDNN, torch may choose the Winograd algorithms of NNPACK
        (device.type == "cpu" and not torch.backends.mkldnn.enabled, "oneDNN is off"),
        (device.type == "cuda" and not strict_cuda(), "a setting allows products in TF32, or emulated"),
    )
    return next((reason for applies, reason in settings if applies), None)


def _is_compiled(module: nn.Module) -> bool:
    return (
        isinstance(module, torch.jit.ScriptModule)
        or "_orig_mod" in module._modules
        or getattr(module, "_compiled_call_impl", None) is not None
    )


def radius_of_levels(norm: AttackNormName, epsilon: Tensor, levels: Levels, coordinates: int) -> Tensor:
    """Return radii [N] in the reals; their balls contain all grid points that attacks of radii epsilon [N] may return.

    On a grid with step h, the attack bounds the differences Δk of integer levels k. The float of a level k differs from
    h·k by at most u, half a unit in the last place of the largest level. So the floats of two levels are at most h·|Δk|
    + 2u apart, and equal if Δk = 0.

    >>> from fractions import Fraction
    >>> levels = Levels(Fraction(1, 255), 0.0, 1.0)
    >>> float(radius_of_levels("linf", torch.tensor([8 / 255]).double(), levels, 4)) > 8 / 255
    True
    """
    off = float(torch.finfo(levels.dtype).eps) * max(abs(levels.low), abs(levels.high), 1) * float(levels.step)
    sizes: dict[int, float] = {}
    for budget in set(budgets(norm, epsilon, levels.step).tolist()):
        changed = min(budget, coordinates)
        times = {"linf": min(changed, 1), "l2": math.sqrt(changed), "l1": changed}[norm]
        sizes[budget] = (level_distance(budget, levels.step, norm) + times * off) * (1 + 2.0**-50)
    return torch.tensor([sizes[budget] for budget in budgets(norm, epsilon, levels.step).tolist()], dtype=torch.float64)

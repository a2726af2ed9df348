"""Search for the module that makes a batch's rows depend on each other, on their positions or on chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Rows(NamedTuple):
    """Some rows of a batch: the whole batch [N, ...], and the positions int64 [m] of these rows in the batch."""

    batch: Tensor
    positions: Tensor


def find_cause(
    model: Any,
    logits: Callable[[Tensor], Tensor],
    first: Rows,
    second: Rows,
    same: Callable[[Tensor, Tensor], bool] | None = None,
) -> str:
    """Name the first module, in the order in which calls complete, that gives different outputs for equal rows.

    Args:
        model: module or callable.
        logits: batch [N, ...] → logits [N, K], inside a session of the model's runner.
        first: some rows of one batch.
        second: the same rows in another batch, or at other positions.
        same: function that takes two tensors [m, ...] and returns whether they count as equal. By default, they count
            as equal if all their elements are equal, with NaN equal to NaN.
    """
    if not isinstance(model, nn.Module):
        return describe("", model)
    passes = []
    for rows in (first, second):
        with _recorded(model, rows) as calls:
            logits(rows.batch.clone())
        passes.append(calls)
    same = same or same_bits
    for (name, module, x, y), (again, _, other_x, other_y) in zip(*passes, strict=False):
        if name != again:
            break
        if _same_rows(x, other_x, same) and not _same_rows(y, other_y, same):
            return describe(name, module)
    return describe("", model)


def mixing_problem(module: nn.Module) -> str:
    """Say why a module of a known type makes the rows of a batch depend on each other; "" if no reason is known."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        if module.running_mean is None:
            return (
                "normalises with the statistics of each batch; set track_running_stats=True and load the statistics "
                "of the training"
            )
        if module.training:
            return "stays in training mode after model.eval() and normalises with the statistics of each batch"
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin) and module.dim == 0:
        return "normalises along the batch; use dim=1"
    if type(module).__module__.startswith("torch.ao.nn.quantized.dynamic"):
        return "scales its input by the largest value in the batch; use static quantization, or batch_size=1"
    return ""


def random_problem(module: nn.Module) -> str:
    """Return the reason why the output of a module of a known type is random; "" if no reason is known."""
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
        return "stays in training mode after model.eval() and drops at random"
    if isinstance(module, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d) and module._random_samples is None:
        return "draws its pooling regions at random in every pass; give it _random_samples"
    return ""


def describe(name: str, module: Any) -> str:
    """Describe a module of a model by its name and type; an empty name stands for the model itself.

    >>> describe("0.norm", nn.Identity())
    '0.norm (Identity)'
    """
    kind = (
        type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", type(module).__name__)
    )
    return f"{name} ({kind})" if name else f"the model itself ({kind})"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether tensors are equal; NaN equals NaN, and 0 equals -0, because a zero's sign changes no predicted class.

    >>> same_bits(torch.tensor([0.0, torch.nan]), torch.tensor([-0.0, torch.nan]))
    True
    """
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _same_rows(a: Tensor | None, b: Tensor | None, same: Callable[[Tensor, Tensor], bool]) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and a.shape == b.shape and same(a, b))


@contextmanager
def _recorded(model: nn.Module, rows: Rows) -> Iterator[list[tuple[str, nn.Module, Tensor | None, Tensor | None]]]:
    """Record each module's calls as they end: its name, the module, and the chosen rows of its input and output."""
    calls: list[tuple[str, nn.Module, Tensor | None, Tensor | None]] = []
    batch = len(rows.batch)

    def chosen(value: Any) -> Tensor | None:
        while isinstance(value, tuple | list) and value:
            value = value[0]
        # Windows of an image may be rows of their own, one image after the other.
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) % batch or value.is_quantized:
            return None
        return value.detach().reshape(batch, -1)[rows.positions.to(value.device)].clone()

    def record(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: calls.append((name, module, chosen(inputs), chosen(output)))

    eager = [pair for pair in model.named_modules() if not isinstance(pair[1], torch.jit.ScriptModule)]
    hooks = [module.register_forward_hook(record(name)) for name, module in eager]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()

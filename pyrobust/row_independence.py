"""The probe of what every certificate assumes: a row's logits depend on that row alone, and repeat.

The proofs of certified robustness are about a function of one input. A model that mixes the rows of a batch (batch
statistics, an operation along the batch dimension), draws random numbers or changes its own state is no such function,
and its certificates can be false. The probe evaluates batches of a run again, at unchanged shape and positions, with
other rows around those it compares. It refuses models; passing it proves nothing, because a model may depend on other
rows only where the probe does not look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pyrobust.errors import RowDependenceError

# Few rows are compared, so that almost the whole batch changes around them.
_SHARE_COMPARED = 16
# Four passes for the first batch, and one for every 200th from batch 1000 on: below 1 % of a run of 1000 batches.
_FIRST = ("repeat", "zeros", "ones", "others")
_LATER, _PERIOD, _CYCLE = 1000, 200, ("later", "zeros", "repeat", "ones")

_EVENTS = {
    "repeat": "when the same batch ran again",
    "later": "between the first batch and a later one",
    "zeros": "when the other rows became zeros",
    "ones": "when the other rows became ones",
    "others": "when the other rows became other images",
}
#: The rows around those compared, from a batch.
_OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "others": lambda batch: 1 - batch.flip(0),
}


#: Device, address and version of each tensor.
Versions: TypeAlias = tuple[tuple[torch.device, int, int], ...]


@dataclass(frozen=True)
class _Compared:
    """Rows x [m, ...] of a batch of ``rows``, at their positions [m], with their logits [m, K]."""

    rows: int
    positions: Tensor
    x: Tensor
    logits: Tensor


class RowProbe:
    """Probes a model on the batches of its runs: rows must not depend on each other, and must repeat.

    Args:
        model: module or callable, in which the cause of a failure is searched.
        logits: batch [N, ...] → logits [N, K], inside a session of the model's runner.

    >>> def coupled(x):
    ...     return torch.cat([x, x.mean().expand(len(x), 1)], dim=1)
    >>> RowProbe(coupled, coupled).logits(torch.arange(8.0)[:, None], exact=True)
    Traceback (most recent call last):
    pyrobust.errors.RowDependenceError: model: expected logits that depend on their own row alone, ...
    """

    def __init__(self, model: Any, logits: Callable[[Tensor], Tensor]) -> None:
        self._model = model
        self._forward = logits
        self._batches = 0
        self._random = torch.Generator("cpu").manual_seed(0)
        self._first: _Compared | None = None
        self._bits_repeat = True
        self._versions: Versions = ()
        #: Forward passes of the probe so far.
        self.passes = 0

    def expect_known_modules(self) -> None:
        """Raise RowDependenceError for modules known to mix rows or to draw random numbers; call it in a session.

        A model whose tensors changed since the last call, by training for one, is another model: its probe begins anew.
        """
        versions = tensor_versions(self._model) if isinstance(self._model, nn.Module) else ()
        if versions != self._versions:
            self._versions, self._first, self._batches = versions, None, 0
        if self._first is None and isinstance(self._model, nn.Module):
            for name, module in self._model.named_modules():
                problem = _known_problem(module)
                if problem:
                    raise RowDependenceError(
                        f"model: expected logits that depend on their own row alone, got {_describe(name, module)}, "
                        f"which {problem}"
                    )

    def logits(self, batch: Tensor, *, exact: bool) -> Tensor:
        """Return the logits [N, K] of a batch [N, ...] of a run, and probe the model on it if that is due.

        Args:
            batch: as in ``logits`` of the constructor; the model may modify it.
            exact: compare bit by bit; False: only up to rounding where the same batch does not repeat its bits.

        Raises:
            RowDependenceError: logits depend on other rows or do not repeat; the message names the likely module.
        """
        due: tuple[str, ...] = ()
        if self._first is None:
            due = _FIRST if len(batch) > 1 else ("repeat",) if self._batches == 0 else ()
        elif self._batches >= _LATER and self._batches % _PERIOD == 0:
            due = (_CYCLE[self._batches // _PERIOD % len(_CYCLE)],)
        self._batches += 1
        if not due:
            return self._forward(batch)
        before = batch.clone()
        logits = self._forward(batch).clone()  # a model may return a view of its input
        for kind in due:
            self._probe(kind, before, logits, exact)
        if self._first is None and len(batch) > 1:
            positions = self._choose(len(batch)).to(batch.device)
            self._first = _Compared(len(batch), positions, before[positions], logits[positions])
        return logits

    def _probe(self, kind: str, batch: Tensor, logits: Tensor, exact: bool) -> None:
        """Compare some rows of the batch with their logits once more, among other rows as the kind says."""
        if kind == "repeat":
            compared = _Compared(len(batch), torch.arange(len(batch), device=batch.device), batch, logits)
            others = batch
        elif kind == "later":
            if self._first is None or self._first.rows != len(batch):
                return
            compared, others = self._first, batch
        else:
            # The first row and the last, on which others may depend, are compared in one pass and replaced in another.
            ends = {"zeros": [0], "ones": [len(batch) - 1]}.get(kind, [])
            positions = self._choose(len(batch), ends).to(batch.device)
            compared = _Compared(len(batch), positions, batch[positions], logits[positions])
            others = _OTHERS[kind](batch)
        changed = others.clone()
        changed[compared.positions] = compared.x
        before = _random_state(batch.device)
        got = self._forward(changed.clone())[compared.positions]
        self.passes += 1
        if _same_bits(got, compared.logits):
            return
        drew = before != _random_state(batch.device)
        if not exact and not drew and (kind == "repeat" or not self._bits_repeat) and _close(got, compared.logits):
            self._bits_repeat = False  # atomic sums on a GPU, for one
            return
        self._refuse(kind, batch, changed, compared, got, drew=drew)

    def _choose(self, rows: int, ends: list[int] | None = None) -> Tensor:
        """Choose the rows to compare, int64 [m]: the given ones and others at random."""
        permuted: list[int] = torch.randperm(rows, generator=self._random, device="cpu").tolist()
        chosen = dict.fromkeys([*(ends or []), *permuted])
        return torch.tensor(list(chosen)[: max(1, rows // _SHARE_COMPARED)], device="cpu")

    def _refuse(
        self, kind: str, batch: Tensor, changed: Tensor, compared: _Compared, got: Tensor, *, drew: bool
    ) -> None:
        row = int((got != compared.logits).any(dim=1).nonzero()[0])
        size = float((got - compared.logits)[row].abs().max())
        where = find_cause(self._model, self._forward, batch, changed, compared.positions)
        if kind in ("repeat", "later"):
            advice = (
                "it draws random numbers: draw them once and keep them, or seed a generator in forward, so that it is "
                "a function of its input, and certify that function; certificates of a random model would need fresh "
                "draws for every row, which is not checked"
                if drew
                else "it changes from call to call: make it a function of its input, without counters or other state; "
                "on a GPU, replace kernels that do not repeat"
            )
            expected = "the same logits for the same row"
        else:
            expected = "logits that depend on their own row alone"
            advice = "it mixes the rows of a batch: normalise with stored statistics, and operate along dimensions 1 on"
        raise RowDependenceError(
            f"model: expected {expected}, but those of row {int(compared.positions[row])} of a batch of "
            f"{compared.rows} changed by {size:.3g} {_EVENTS[kind]}; the first module where they differ is {where}; "
            f"{advice}. Nothing can be certified otherwise"
        )


def tensor_versions(module: nn.Module) -> Versions:
    """Where a module's parameters and buffers are, and how often each was changed in place.

    >>> layer = nn.Linear(2, 2)
    >>> before = tensor_versions(layer)
    >>> _ = nn.init.zeros_(layer.weight)
    >>> tensor_versions(layer) == before
    False
    """
    tensors = [*module.parameters(), *module.buffers()]
    return tuple((t.device, t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether logits are equal, NaN included; the sign of a zero changes no class."""
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _same_rows(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and a.shape == b.shape and _same_bits(a, b))


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether logits differ by rounding only, in the tolerance of ``pyrobust.correctness``."""
    scale = b.abs().amax(dim=1, keepdim=True)
    near = (a - b).abs() <= torch.finfo(b.dtype).eps ** 0.5 * scale
    return bool((near | (a == b) | (a.isnan() & b.isnan())).all())


def _random_state(device: torch.device) -> tuple[bytes, ...]:
    """Return the states of torch's generators for the CPU and a GPU."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return tuple(state.numpy().tobytes() for state in states)


def _known_problem(module: nn.Module) -> str:
    """Return what makes a module's rows depend on each other or on chance; "" if nothing is known."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        if module.running_mean is None:
            return (
                "normalises with the statistics of each batch; set track_running_stats=True and load the statistics "
                "of the training"
            )
        if module.training:
            return "stays in training mode after model.eval() and normalises with the statistics of each batch"
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
        return "stays in training mode after model.eval() and drops at random"
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin) and module.dim == 0:
        return "normalises along the batch; use dim=1"
    if isinstance(module, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d) and module._random_samples is None:
        return "draws its pooling regions at random in every pass; give it _random_samples"
    if type(module).__module__.startswith("torch.ao.nn.quantized.dynamic"):
        return "scales its input by the largest value in the batch; use static quantization"
    return ""


def _describe(name: str, module: Any) -> str:
    kind = (
        type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", type(module).__name__)
    )
    return f"{name} ({kind})" if name else f"the model itself ({kind})"


def find_cause(
    model: Any, logits: Callable[[Tensor], Tensor], batch: Tensor, changed: Tensor, positions: Tensor
) -> str:
    """Name the innermost module that answers equal rows differently, the first in the order of the forward pass.

    Args:
        model: module or callable.
        logits: batch [N, ...] → logits [N, K], inside a session of the model's runner.
        batch: [N, ...].
        changed: [N, ...], another batch, equal to it at the positions.
        positions: [m], int64.
    """
    if not isinstance(model, nn.Module):
        return _describe("", model)
    with _recorded(model, positions, len(batch)) as calls:
        logits(batch.clone())
        first = list(calls)
        calls.clear()
        logits(changed)
    for (name, module, x, y), (same, _, other_x, other_y) in zip(first, calls, strict=False):
        if name != same:
            break
        if _same_rows(x, other_x) and not _same_rows(y, other_y):
            return _describe(name, module)
    return _describe("", model)


@contextmanager
def _recorded(
    model: nn.Module, positions: Tensor, rows: int
) -> Iterator[list[tuple[str, nn.Module, Tensor | None, Tensor | None]]]:
    """Record name, module, and the chosen rows of input and output of each call, in the order of completion."""
    calls: list[tuple[str, nn.Module, Tensor | None, Tensor | None]] = []

    def chosen(value: Any) -> Tensor | None:
        while isinstance(value, tuple | list) and value:
            value = value[0]
        # Windows of an image are rows of their own, one image after the other.
        if not isinstance(value, Tensor) or value.dim() == 0 or len(value) % rows:
            return None
        return value.detach().reshape(rows, -1)[positions.to(value.device)].clone()

    def record(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: calls.append((name, module, chosen(inputs), chosen(output)))

    eager = [pair for pair in model.named_modules() if not isinstance(pair[1], torch.jit.ScriptModule)]
    hooks = [module.register_forward_hook(record(name)) for name, module in eager]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()

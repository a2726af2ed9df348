"""The examples of one batch that are still under attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.ops.logits import CLOSE, STANDING
from pyrobust.ops.sample_noise import sample_noise

from .losses import Loss
from .norms import Norm
from .queries import Gradient, Queries

#: (rows of the call, their final x_adv, success): takes examples that have left the batch.
Leave: TypeAlias = Callable[[list[int], Tensor, bool], None]

# Verdicts on their way from a GPU: the host runs ahead of it by at most so many steps.
_IN_FLIGHT = 4


class HostCopy:
    """A tensor on its way to the host; on the CPU it has arrived."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: Any = None  # a torch.cuda.Event, which torch leaves without types
        self._host = tensor
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.current_stream(tensor.device).record_event()

    @staticmethod
    def always_arrived(device: torch.device) -> bool:
        """Whether no copy from the device has to be waited for."""
        return device.type == "cpu"

    def arrived(self) -> bool:
        """Whether ``wait`` returns at once."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> Tensor:
        """The tensor on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


class Job:
    """The examples of one batch that are still under attack, and how to ask the model about them.

    ``_run`` of an attack takes one, asks ``gradient`` or ``logits`` about its iterates, hands the verdicts to
    ``retire``, which lets the fooled examples go and shrinks every tensor to the others, and ends with ``finish``.
    Whatever it keeps for each example goes through ``retire``. A verdict is ``STANDING``, ``FOOLED`` or ``CLOSE``
    (``pyrobust.ops.logits``); of the close ones the model is asked again, one at a time.

    The rows of a batch change places when some leave: nothing may depend on a row's position. ``retire`` may move rows
    within the tensors that it is given, and on a GPU it keeps x_adv for some steps: an attack makes a new x_adv for
    each step, rather than changing it in place.

    Attributes:
        x: [B, ...], the clean examples.
        y: [B], int64, their labels; the target labels where ``targeted``.
        epsilon: [B], float64.
        index: [B], int64, the image index of the noise contract.
        targeted: whether success is that the model says y, rather than anything else.
        norm: the norm of the constraint.
        lower: the clip range's lower end.
        upper: its upper end.
        in_place: whether an iterate's memory is free once it went through ``retire`` and a new one is there.
    """

    def __init__(
        self,
        queries: Queries,
        norm: Norm,
        x: Tensor,
        y: Tensor,
        epsilon: Tensor,
        index: Tensor,
        rows: Sequence[int],
        *,
        targeted: bool,
        lower: float,
        upper: float,
        seed: int,
        leave: Leave,
    ) -> None:
        self.queries = queries
        self.norm = norm
        self.x, self.y, self.epsilon, self.index = x, y, epsilon, index
        self.targeted = targeted
        self.lower, self.upper = lower, upper
        self._seed = seed
        self._leave = leave
        self._rows = np.asarray(rows, dtype=np.int64)
        self._gone: set[int] = set()
        self._shrink = False  # whether some have gone since the last compaction
        self.in_place = HostCopy.always_arrived(x.device)  # else earlier iterates wait for their verdicts
        self._waiting: list[tuple[HostCopy, Tensor, Tensor, npt.NDArray[np.int64]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def logits(self, x_adv: Tensor) -> Tensor:
        """[B, K], float32 or float64, without gradients."""
        return self.queries.logits(x_adv)

    def verdict(self, logits: Tensor) -> Tensor:
        """uint8 [B]: what the logits say of each example."""
        return self.queries.verdict(logits, self.y, self.targeted)

    def gradient(self, x_adv: Tensor, loss: Loss, target: Tensor | None = None) -> Gradient:
        """One forward and one backward pass.

        Args:
            x_adv: [B, ...].
            loss: of ``pyrobust.attacks.losses``.
            target: [B], the loss's target; default: y.

        Returns:
            The logits, the loss's value and input gradient, and the verdict.
        """
        goal = self.y if target is None else target
        logits, value, gradient = self.queries.gradient(x_adv, lambda z: loss(z, self.y, goal))
        return Gradient(logits, value, gradient, self.verdict(logits))

    def place(self, delta: Tensor) -> Tensor:
        """The point x + delta, projected on ball and clip range."""
        return self.norm.place(self.x, delta, self.epsilon, self.lower, self.upper)

    def step(self, x_adv: Tensor, gradient: Tensor, step: Tensor) -> Tensor:
        """The next iterate, step[B] up the gradient and projected; it may overwrite the gradient."""
        return self.norm.step(x_adv, gradient, self.x, step, self.epsilon, self.lower, self.upper)

    def start(self, draw: int) -> Tensor:
        """A random point of ball and clip range, the draw-th of each example."""
        return self.place(self.norm.start(self.noise, draw, self.epsilon))

    def noise(self, family: str, first: int, count: int = 1, shape: Sequence[int] | None = None) -> Tensor:
        """Noise of unit variance that depends on the seed, each example's index, the family and the sample alone.

        Args:
            family: "gaussian", "uniform" (on [-√3, √3]) or "laplace".
            first: the first sample.
            count: how many samples of each example; one call for many is cheaper than many calls.
            shape: of one sample; default: an example's.

        Returns:
            [B, count, *shape] in x's dtype.
        """
        like = self.x[:1] if shape is None else self.x.new_zeros((1, *shape))
        channels_last = shape is None and like.dim() == 4 and not like.is_contiguous()
        runs = [(0, image, first, count) for image in self.index.tolist()]
        z = sample_noise(
            torch.zeros_like(like),
            runs,
            sigma=1.0,
            noise=family,
            stage="attack",
            seed=self._seed,
            memory_format=torch.channels_last if channels_last else torch.contiguous_format,
        )
        return z.view(len(runs), count, *z.shape[1:])

    def retire(self, verdict: Tensor, x_adv: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Lets the fooled examples go, with the x_adv that fooled; on a GPU, a few steps later.

        Args:
            verdict: [B], uint8; a bool is taken for ``CLOSE``: each True is confirmed.
            x_adv: [B, ...], what the verdict is about, inside ball and clip range; not to be changed afterwards.
            state: tensors [B, ...] that the attack keeps for each example.

        Returns:
            (x_adv, *state) of the examples that stay.
        """
        if verdict.dtype == torch.bool:
            verdict = verdict.to(torch.uint8).mul_(CLOSE)
        self._waiting.append((HostCopy(verdict), x_adv, self.y, self._rows))
        self._collect(_IN_FLIGHT)
        return self._compact((x_adv, *state))

    def finish(self, best: Tensor) -> None:
        """Lets the remaining examples go, not fooled, with their best iterates [B, ...]."""
        self._collect(0)
        (best,) = self._compact((best,))
        if len(self):
            self._leave(self._rows.tolist(), best, False)
        self._rows = self._rows[:0]

    def _collect(self, in_flight: int) -> None:
        """Takes the verdicts that have arrived, or that must have."""
        while self._waiting and (len(self._waiting) > in_flight or self._waiting[0][0].arrived()):
            copy, x_adv, y, rows = self._waiting.pop(0)
            verdicts = copy.wait().numpy()
            found = []
            for position in np.flatnonzero(verdicts != STANDING):
                if int(rows[position]) in self._gone:
                    continue
                one = slice(position, position + 1)
                if verdicts[position] == CLOSE and not self.queries.fooled_alone(x_adv[one], y[one], self.targeted):
                    continue
                found.append(position)
            if found:
                gone = rows[found].tolist()
                self._gone.update(gone)
                self._shrink = True
                self._leave(gone, x_adv[torch.as_tensor(found, device=x_adv.device)], True)

    def _compact(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Drops the rows that have gone from the job's own tensors and from the attack's."""
        if not self._shrink:
            return state
        self._shrink = False
        staying = ~np.isin(self._rows, np.fromiter(self._gone, dtype=np.int64))
        move = (_moved if self.in_place else _selected)(staying)
        self._rows = move(torch.from_numpy(self._rows)).numpy()
        self.x, self.y, self.epsilon, self.index = (move(own) for own in (self.x, self.y, self.epsilon, self.index))
        return tuple(move(tensor) for tensor in state)


def _moved(staying: npt.NDArray[np.bool_]) -> Callable[[Tensor], Tensor]:
    """Fills the holes with rows from the end, in place: work for the rows that go, not for those that stay."""
    count = int(staying.sum())
    holes = torch.from_numpy(np.flatnonzero(~staying[:count]))
    last = torch.from_numpy(np.flatnonzero(staying[count:]) + count)

    def move(tensor: Tensor) -> Tensor:
        if len(holes):
            tensor[holes] = tensor[last]  # the last rows stay as they are, so a tensor given twice comes out right
        return tensor[:count]

    return move


def _selected(staying: npt.NDArray[np.bool_]) -> Callable[[Tensor], Tensor]:
    """Copies the rows that stay, for x_adv may still be asked for."""
    host = torch.from_numpy(np.flatnonzero(staying))

    def move(tensor: Tensor) -> Tensor:
        return tensor[host.to(tensor.device, non_blocking=True)]

    return move

"""The attack state: the examples of one batch that are still under attack."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.ops.logits import CLOSE, ROBUST, LogitLoss
from pyrobust.ops.sample_noise import sample_noise

from ..losses import Loss
from .levels import Levels
from .norms import Ball, Norm
from .queries import Gradient, Queries

#: (rows of the call, their final x_adv, success): takes the examples that leave the batch.
Leave: TypeAlias = Callable[[list[int], Tensor, bool], None]

# Number of verdicts in transit from a GPU: the host runs ahead of the GPU by at most this many steps.
_IN_FLIGHT = 4


class HostCopy:
    """An asynchronous copy of a tensor to the host; on the CPU, the tensor itself."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: Any = None  # a torch.cuda.Event, for which torch has no type
        self._host = tensor
        if tensor.is_cuda:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.current_stream(tensor.device).record_event()

    @staticmethod
    def always_arrived(device: torch.device) -> bool:
        """Whether copies from the device are available at once."""
        return device.type == "cpu"

    def arrived(self) -> bool:
        """Whether ``wait`` returns at once."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> Tensor:
        """Return the tensor on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._host


class AttackState:
    """The examples of one batch that are still under attack, and the queries of the model about them.

    An attack's ``_run`` receives a state. ``_run`` queries the model with ``gradient`` or ``logits``. It passes the
    verdicts on its iterates to ``retire``, which removes fooled examples from every per-example tensor. At the end,
    ``_run`` calls ``finish``. Every tensor that the attack keeps per example must go through ``retire``. A verdict is
    ``ROBUST``, ``FOOLED`` or ``CLOSE`` (``pyrobust.ops.logits``); a close verdict is confirmed by running the example
    alone.

    Rows of a batch change places when other rows leave, so nothing may depend on a row's position. ``retire`` may move
    rows within the tensors passed to it. On a GPU, ``retire`` still reads x_adv some steps later, so make a new x_adv
    for each step instead of changing x_adv in place.

    On a grid of levels, iterates stay arbitrary floats, but every queried and every returned point is ``snap(x_adv)``.
    The attack itself need not call ``snap``.

    Attributes:
        x: [B, ...], the clean examples.
        y: [B], int64, their labels; the target labels if ``targeted``.
        epsilon: [B], float64.
        index: [B], int64, the index that determines the noise of each example.
        targeted: whether success means that the model predicts y, rather than any other class.
        norm: the norm of the constraint.
        lower: lower end of the clip range, ``-pyrobust.clip.LIMIT`` if values have no limit.
        upper: upper end of the clip range, or ``pyrobust.clip.LIMIT``.
        width: width of the clip range, which serves as the unit of step sizes. If elements have radii, it is the
            largest width in units of these. If values have no limit, it is 1, divided by the largest radius if there
            are radii.
        levels: the grid that the model's inputs are on; None if there is none.
        budget: [B], int64, radius of the ball in integers (``levels.budgets``); unused without a grid.
        in_place: whether the memory of an iterate may be reused after the iterate has gone through ``retire`` and a
            newer iterate has replaced it.
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
        levels: Levels | None = None,
        budget: Tensor | None = None,
    ) -> None:
        self.queries = queries
        self.norm = norm
        self.x, self.y, self.epsilon, self.index = x, y, epsilon, index
        self.targeted = targeted
        self.lower, self.upper = lower, upper
        self._seed = seed
        self._leave = leave
        self._rows = np.asarray(rows, dtype=np.int64)
        self._images = np.array(index.tolist(), dtype=np.int64)  # index on the host, for the noise op
        self._departed: set[int] = set()
        self._must_compact = False
        self.in_place = HostCopy.always_arrived(x.device)  # on other devices, earlier iterates await their verdicts
        self._waiting: list[tuple[HostCopy, Tensor, Tensor, npt.NDArray[np.int64], Tensor, Tensor]] = []
        self.levels = levels
        self.budget = torch.zeros_like(index) if budget is None else budget

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[int]:
        """The row of each example in the arguments of the attack's ``generate``."""
        return [int(row) for row in self._rows]

    def take(self, rows: Tensor) -> AttackState:
        """Return a separate state with the examples of these rows, int64 [n].

        No result is recorded for examples that are removed from the separate state.
        """
        subset = copy.copy(self)
        subset.x, subset.y, subset.epsilon, subset.index = (
            tensor[rows] for tensor in (self.x, self.y, self.epsilon, self.index)
        )
        subset.budget = self.budget[rows]
        taken = rows.cpu().numpy()
        subset._rows, subset._images = self._rows[taken], self._images[taken]
        subset._leave = lambda rows, points, success: None
        subset._departed, subset._waiting, subset._must_compact = set(), [], False
        return subset

    @property
    def width(self) -> float:
        """The clip range's width, in elements' radii if they have any; without limits, 1 or 1 / largest radius."""
        return self.norm.width(self.lower, self.upper)

    @property
    def ball(self) -> Ball:
        """The feasible set of the examples."""
        return Ball(self.x, self.epsilon, self.lower, self.upper)

    def snap(self, x_adv: Tensor) -> Tensor:
        """Return the points at which the model is queried for the iterates [B, ...]: grid points, if there is a grid.

        An iterate inside the ball is rounded to a point inside the ball. An iterate outside the ball (for example, from
        a phase of APGD with a larger ball) is rounded to the nearest grid point. If there are more or fewer iterates
        than examples, each iterate is rounded without regard to the ball.
        """
        if self.levels is None:
            return x_adv
        return self.levels.snap(self.norm.name, x_adv, self.x if len(x_adv) == len(self) else None, self.budget)

    def logits(self, x_adv: Tensor) -> Tensor:
        """Return the logits [B, K], float32 or float64, without gradients."""
        return self.queries.logits(self.snap(x_adv))

    def verdict(self, logits: Tensor) -> Tensor:
        """Return the verdict of the logits on each example, uint8 [B]."""
        return self.queries.verdict(logits, self.y, self.targeted)

    def gradient(self, x_adv: Tensor, loss: Loss, target: Tensor | None = None) -> Gradient:
        """Run one forward and one backward pass of a loss at x_adv [B, ...]; target [B] defaults to y."""
        goal = self.y if target is None else target
        logits, value, gradient = self.queries.gradient(self.snap(x_adv), lambda z: loss(z, self.y, goal))
        return Gradient(logits, value, gradient, self.verdict(logits))

    def gradients(
        self, x_adv: Tensor, losses: Sequence[Callable[[Tensor], LogitLoss]]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Run one forward pass; return the logits [B, K], and the values and gradients of several losses."""
        return self.queries.gradients(self.snap(x_adv), losses)

    def place(self, delta: Tensor) -> Tensor:
        """Return the point x + delta, projected onto ball and clip range."""
        return self.norm.place(delta, self.ball)

    def moved(self, delta: Tensor) -> Tensor:
        """Return the point x + delta, clipped to the clip range, but not projected onto the ball."""
        return self.norm.moved(delta, self.ball)

    def step(self, x_adv: Tensor, gradient: Tensor, step: Tensor) -> Tensor:
        """Return x_adv after a projected step of size ``step`` [B] along the gradient; may overwrite the gradient."""
        return self.norm.step(x_adv, gradient, step, self.ball)

    def start(self, draw: int) -> Tensor:
        """Return each example's random start with the number ``draw``, in ball and clip range."""
        return self.place(self.norm.start(self.noise, draw, self.epsilon))

    def noise(self, family: str, first: int, count: int = 1, shape: Sequence[int] | None = None) -> Tensor:
        """Draw noise [B, count, *shape] of unit variance from only seed, image index, family and sample index.

        The family is "gaussian", "uniform" (on [-√3, √3]) or "laplace"; ``first`` is the first sample index; ``shape``
        is the shape of one sample, by default an example's. One call for many samples is cheaper than many calls.
        """
        like = self.x[:1] if shape is None else self.x.new_zeros((1, *shape))
        channels_last = shape is None and like.dim() == 4 and not like.is_contiguous()
        runs = [(0, image, first, count) for image in self._images.tolist()]
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

    def retire(self, verdict: Tensor, x_adv: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Remove the examples for which x_adv fools the model; on a GPU, this happens a few steps later.

        Args:
            verdict: [B], uint8, as returned by ``logit_verdict``. A bool verdict may be given instead: its True entries
                count as ``CLOSE`` and are confirmed in batches of one.
            x_adv: [B, ...], the points that the verdict is about, inside ball and clip range; must not be changed
                afterwards.
            tensors: [B, ...], the attack's other per-example tensors.

        Returns:
            (x_adv, *tensors) of the examples that stay.
        """
        if verdict.dtype == torch.bool:
            verdict = verdict.to(torch.uint8).mul_(CLOSE)
        if self.in_place and not verdict.numpy().any():  # all ROBUST, as in most steps
            return (x_adv, *tensors)
        self._waiting.append((HostCopy(verdict), x_adv, self.y, self._rows, self.x, self.budget))
        self._collect(_IN_FLIGHT)
        return self._compact((x_adv, *tensors))

    def finish(self, best: Tensor) -> None:
        """End the attack: the remaining examples count as not fooled; ``best`` [B, ...] holds their best iterates."""
        self._collect(0)
        (best,) = self._compact((best,))
        if len(self):
            self._leave(self._rows.tolist(), self._final(best, self.x, self.budget), False)
        self._rows = self._rows[:0]

    def _collect(self, in_flight: int) -> None:
        """Process the verdicts that have arrived; wait until at most ``in_flight`` are outstanding."""
        while self._waiting and (len(self._waiting) > in_flight or self._waiting[0][0].arrived()):
            copy, x_adv, y, rows, x, budget = self._waiting.pop(0)
            verdicts = copy.wait().numpy()
            claimed = [int(row) for row in np.flatnonzero(verdicts != ROBUST) if int(rows[row]) not in self._departed]
            if not claimed:
                continue
            chosen = on_device(claimed, x_adv.device)
            x_adv, x, budget = x_adv[chosen], x[chosen], budget[chosen]
            points = self._final(x_adv, x, budget)
            judged = self._judged(points, x_adv, x, budget)
            fooled = []
            for i, row in enumerate(claimed):
                example = points[i : i + 1], y[row : row + 1]
                certain = verdicts[row] != CLOSE and judged[i]
                if certain or self.queries.fooled_alone(*example, self.targeted):
                    fooled.append(i)
            if fooled:
                fooled_rows = [int(rows[claimed[i]]) for i in fooled]
                self._departed.update(fooled_rows)
                self._must_compact = True
                self._leave(fooled_rows, points[on_device(fooled, points.device)], True)

    def _final(self, x_adv: Tensor, x: Tensor, budget: Tensor) -> Tensor:
        """Return the final points of these iterates; on a grid, these are grid points inside the ball."""
        return x_adv if self.levels is None else self.levels.snap(self.norm.name, x_adv, x, budget, final=True)

    def _judged(self, points: Tensor, x_adv: Tensor, x: Tensor, budget: Tensor) -> list[bool]:
        """Return for each final point whether the model was queried at this very point, not at one outside the ball."""
        if self.levels is None:
            return [True] * len(points)
        seen = self.levels.snap(self.norm.name, x_adv, x, budget)
        same: list[bool] = (seen == points).flatten(1).all(1).tolist()
        return same

    def _compact(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Drop the rows of fooled examples from the state's tensors and from those of the attack."""
        if not self._must_compact:
            return tensors
        self._must_compact = False
        staying = ~np.isin(self._rows, np.fromiter(self._departed, dtype=np.int64))
        compact = (_fill_holes if self.in_place else _copy_staying)(staying)
        self._rows, self._images = (compact(torch.from_numpy(column)).numpy() for column in (self._rows, self._images))
        self.x, self.y, self.epsilon, self.index = (
            compact(column) for column in (self.x, self.y, self.epsilon, self.index)
        )
        self.budget = compact(self.budget)
        return tuple(compact(tensor) for tensor in tensors)


def on_device(rows: Sequence[int], device: torch.device) -> Tensor:
    """Copy row numbers [n] to a device as int64, without waiting for the device.

    >>> on_device([2, 0], torch.device("cpu"))
    tensor([2, 0])
    """
    return torch.tensor(rows, dtype=torch.int64, device="cpu").to(device, non_blocking=True)


def _fill_holes(staying: npt.NDArray[np.bool_]) -> Callable[[Tensor], Tensor]:
    """Return a function that moves the last rows into the places of dropped rows, at most one for each dropped row."""
    count = int(staying.sum())
    holes = torch.from_numpy(np.flatnonzero(~staying[:count]))
    last = torch.from_numpy(np.flatnonzero(staying[count:]) + count)

    def move(tensor: Tensor) -> Tensor:
        if len(holes):
            tensor[holes] = tensor[last]  # the last rows are unchanged, so a tensor passed twice comes out right
        return tensor[:count]

    return move


def _copy_staying(staying: npt.NDArray[np.bool_]) -> Callable[[Tensor], Tensor]:
    """Return a function that copies the rows that stay; the old x_adv remains intact for verdicts that arrive late."""
    host = torch.from_numpy(np.flatnonzero(staying))

    def move(tensor: Tensor) -> Tensor:
        return tensor[host.to(tensor.device, non_blocking=True)]

    return move

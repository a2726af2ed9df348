"""The base class of minimum-norm attacks."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrobust.checks import Numbers, flag
from pyrobust.metrics import distances_above
from pyrobust.metrics.distance import box_distances_above
from pyrobust.ops.logits import FOOLED

from ..engine.batches import BatchAttack
from ..engine.state import AttackState
from .nearest import Nearest, within
from .result import MinimumNorm

if TYPE_CHECKING:
    from typing_extensions import Self

# Multiples of the nearest perturbation to try if rounding undid its success.
_OVERSHOOTS = (1.0, 1.0003, 1.003, 1.01, 1.03, 1.1)
# Further multiples to try for a margin in ``generate``, which reports no distance.
_LONGER = (1.03, 1.1)


class MinimumNormAttack(BatchAttack):
    """An attack that searches for the nearest adversarial example at any distance.

    ``minimum`` returns the nearest adversarial examples found. ``generate`` returns them where they are within epsilon;
    elsewhere, it returns a point in the ball that may fail to fool the model. If possible, an adversarial point lies so
    far beyond the boundary that rounding, which depends on the batch, cannot undo its success.

    Subclasses define ``_search``.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``.

    >>> class Nudge(MinimumNormAttack):
    ...     def _search(self, state, nearest):
    ...         x_adv = state.place(-torch.ones_like(state.x))
    ...         nearest.offer(state, state.verdict(state.logits(x_adv)) > 0, x_adv)
    ...         nearest.tighten(state)
    >>> model = lambda x: torch.stack([x[:, 0], 1 - x[:, 0]], 1)
    >>> result = Nudge(model).minimum(torch.tensor([[0.75], [0.25]]), torch.tensor([0, 0]))
    >>> print(round(float(result.distance[0]), 3), result.found_by)  # the boundary is 0.25 away
    0.25 ('Nudge', 'clean')
    """

    _radius_is_a_cap = True
    _margin = True  # see ``minimum``
    # Multiples of the nearest perturbation to try until no rounding can undo its success.
    _certain_overshoots: tuple[float, ...] = (1.0, 1.00003, 1.0001, 1.0003, 1.001, 1.002, 1.005, 1.009)
    _found_by: dict[int, str] | None = None  # by row, for the ``minimum`` in progress

    def minimum(
        self,
        x: Numbers,
        y: Numbers,
        targeted: bool = False,
        target_labels: Tensor | None = None,
        *,
        indices: Sequence[int] | Tensor | None = None,
        margin: bool = True,
    ) -> MinimumNorm:
        """Find the nearest adversarial examples, regardless of epsilon.

        If epsilon has a radius for each element, distances are measured in units of these radii: max |δᵢ| / radiusᵢ.

        Args:
            x: [N, ...], float, finite, in [clip_min, clip_max].
            y: [N], integers, the labels.
            targeted: an adversarial example is one that the model assigns to the target label, rather than to any class
                other than y.
            target_labels: [N], integers, required with targeted=True.
            indices: [N], see ``generate``.
            margin: move each point beyond the boundary, by at most 0.9 % of its distance, until no rounding can undo
                its success. By the rule of ``pyrobust.correctness``, this is so once the compared logits differ by more
                than √ε times the largest |logit|, where ε is the rounding unit of the model's arithmetic. In three
                cases, a point fools the model in a batch of one, but need not fool the model in a larger batch: in l0,
                with margin=False, and if no sufficient move is found.

        Returns:
            The points, and their exact distances.

        Raises:
            InputError, InputTypeError, ModelError: see ``generate``.
        """
        x = self.snap(x)
        levels = self._levels_of(x)
        search = self._copy_for_minimum()
        search._margin = flag("margin", margin)
        found_by: dict[int, str] = {}
        search._found_by = found_by
        coordinates = x[0].numel() if len(x) else 1
        diameter: float | None = self._norm.diameter(coordinates, self._ends[1] - self._ends[0])
        box = self.box_of(x)
        if box is not None:
            search._at_any_distance, diameter = True, None
        with torch.inference_mode(False):  # ``note`` is called outside a caller's inference mode
            success = torch.zeros(len(x), dtype=torch.bool)

        def note(row: int, fooled: bool, point: Tensor) -> None:
            success[row] = fooled
            if self.callback is not None:
                self.callback(row, fooled, point)

        search.callback = note
        labels: Any = y
        x_adv = search.generate(x, labels, targeted, target_labels, epsilon=diameter, indices=indices)
        missed = ~success.to(x.device)
        x_adv[missed] = x[missed]
        self.forwards, self.backwards = search.forwards, search.backwards
        if box is not None:
            distance = box_distances_above(x_adv, x, box)
        else:
            measure = distances_above if levels is None else levels.distances
            distance = measure(x_adv, x, self.norm) if len(x) else torch.zeros(0, dtype=torch.float64)
        names = (found_by.get(row, "clean") if fooled else None for row, fooled in enumerate(success.tolist()))
        distance = distance.masked_fill(~success, math.inf)
        return MinimumNorm(
            x_adv,
            distance,
            success,
            tuple(names),
            norm=self.norm,
            forwards=self.forwards,
            backwards=self.backwards,
            box=box,
        )

    def _copy_for_minimum(self) -> Self:
        return copy.copy(self)

    @abc.abstractmethod
    def _search(self, state: AttackState, nearest: Nearest) -> None:
        """Offer adversarial points for all examples of the state to ``nearest``; all examples stay in the state."""

    def _stages(self) -> tuple[Callable[[AttackState, Nearest], None], ...]:
        """Return the stages of the search; an ensemble runs the first stages of all attacks before any second stage."""
        return (self._search,)

    def _names(self) -> tuple[str, ...]:
        """Names of the attacks, indexed by ``Nearest.attack``."""
        return (type(self).__name__,)

    def _run(self, state: AttackState) -> None:
        nearest = Nearest(state)
        self._search(state, nearest)
        if self._found_by is not None:
            names = self._names()
            self._found_by |= {row: names[i] for row, i in zip(state.rows, nearest.source.tolist(), strict=True)}
        self._retire_nearest(state, nearest)
        if not len(state):
            return state.finish(nearest.x)
        # The nearest point is outside the ball; its projection may fool the model, too.
        point = state.place(nearest.x - state.x)
        point, _ = state.retire(state.verdict(state.logits(point)), point, nearest.x)
        return state.finish(point)

    def _retire_nearest(self, state: AttackState, nearest: Nearest) -> None:
        """Retire examples that a point within epsilon fools: the nearest, or a farther one if rounding requires it."""
        l0 = self.norm == "l0"  # a longer perturbation of as many coordinates need not fool more reliably
        for certain in (True, False) if self._margin and not l0 else (False,):
            factors = self._certain_overshoots if certain else _OVERSHOOTS
            if certain and self._found_by is None:
                factors += _LONGER
            for factor in factors[: 1 if l0 else None]:
                point, distance = nearest.x.clone(), nearest.distance
                if factor > 1:
                    point = state.moved(point.sub_(state.x).mul_(factor))
                    distance = state.norm.distance(point, state.x)
                verdict = nearest.distance.isfinite() & within(distance, state.epsilon)
                if certain:
                    fooled = state.verdict(state.logits(point)) == FOOLED
                    verdict = (verdict & fooled).to(torch.uint8).mul_(FOOLED)
                _, *tensors = state.retire(verdict, point, *nearest.tensors)
                nearest.tensors = tuple(tensors)
                if not len(state):
                    return

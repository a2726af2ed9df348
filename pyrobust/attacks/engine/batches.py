"""The base class of the package's own attacks: batches, seeds, progress and callbacks."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from pyrobust.checks import AttackNormName, NormLike, image_indices, integer
from pyrobust.clip import OMITTED, ClipArgument
from pyrobust.errors import InputTypeError
from pyrobust.runner import Classifier, Progress, reporting
from pyrobust.thread_trial import ThreadTrial

from .base import AdversarialAttack
from .levels import GridLike, budgets
from .norms import Norm
from .queries import Queries
from .settings import optional, setting
from .state import AttackState, on_device

#: (row, success, x_adv): called for each example when the attack on it ends.
Callback: TypeAlias = Callable[[int, bool, Tensor], None]


def _function(name: str, value: Any) -> Any:
    if not callable(value):
        raise InputTypeError(name, "a callable", type(value).__name__)
    return value


class BatchAttack(AdversarialAttack):
    """A batched attack: examples are attacked independently, and each leaves its batch once its attack succeeds.

    For every example the attack returns one of three points: the example itself, if the model misclassifies it; else a
    point that fools the model even in a batch of one; or, if no such point was found, the point of highest loss. All
    points are in the ball and the clip range, in exact arithmetic. Random numbers depend only on the seed and the
    example's index, so results depend on the batch size only if the model's own arithmetic depends on it.

    Subclasses define ``_run`` (see ``pyrobust.attacks.engine.state.AttackState``).

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``; an ``EOT`` is averaged.
        epsilon: radius of the ball, a number or a tensor [N] with one radius per example; in linf, many attacks also
            take one radius per element, see ``AdversarialAttack``.
        norm: "linf", "l2", "l1" or "l0" (at most epsilon changed coordinates), if listed in the class attribute
            ``norms``.
        clip_min: smallest valid input value, see ``AdversarialAttack``.
        clip_max: largest valid input value.
        device: where to run; default: the device of the model's first parameter, else the CPU.
        clip: (clip_min, clip_max), replacing the two arguments; None for no limit.
        grid: step of the values that an image file can hold, such as "1/255", see ``AdversarialAttack``; the model sees
            only points on the grid.
        seed: random seed, in [0, 2**64).
        batch_size: rows per forward pass; default: found so that it fits in memory.
        dtype: of the batches, see ``pyrobust.runner.Runner``.
        memory_format: of the batches, see ``pyrobust.runner.Runner``.
        progress: True for a progress bar on the terminal, or a function of (examples done, examples).
        callback: called with (row, success, x_adv) for each example when the attack on it ends.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> class Darkest(BatchAttack):
    ...     def _run(self, state):
    ...         x_adv = state.place(-state.epsilon[:, None].expand(state.x.shape).to(state.x))
    ...         state.finish(*state.retire(state.verdict(state.logits(x_adv)), x_adv))
    >>> attack = Darkest(lambda x: torch.stack([x[:, 0], 1 - x[:, 0]], 1), epsilon=0.25)
    >>> attack.generate(torch.tensor([[0.625], [0.125]]), torch.tensor([0, 1]))
    tensor([[0.3750],
            [0.0000]])
    """

    #: Rows pushed through the model in the last ``generate``, and gradients computed for single rows.
    forwards = backwards = 0

    # Empty for a subclass that reads the ends of the clip range, or reads radii other than through ``state.norm``.
    _elementwise: ClassVar[tuple[AttackNormName, ...]] = ()
    _one_for_all: ClassVar[str] = "use PGD, APGD, FGSM, BIM, SPSA, Square, FAB, FMN, DeepFool or AutoAttack in linf"

    seed: int = setting(functools.partial(integer, least=0, most=(1 << 64) - 1), default=0, stored=False)
    progress: bool | Progress = setting(default=False, stored=False)
    callback: Callback | None = setting(optional(_function), default=None, stored=False)
    if TYPE_CHECKING:  # type checkers derive constructors from this
        batch_size: int | None = setting(default=None)
        dtype: torch.dtype | None = setting(default=None)
        memory_format: torch.memory_format | None = setting(default=None)

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: NormLike = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        clip: ClipArgument = OMITTED,
        grid: GridLike = None,
        seed: int = 0,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        progress: bool | Progress = False,
        callback: Callback | None = None,
    ) -> None:
        self._runner_settings = {"dtype": dtype, "memory_format": memory_format, "batch_size": batch_size}
        super().__init__(model, epsilon, norm, clip_min, clip_max, device, clip=clip, grid=grid)
        self.seed = seed
        self.progress = progress
        self.callback = callback

    def generate(
        self,
        x: Tensor,
        y: Tensor,
        targeted: bool = False,
        target_labels: Tensor | None = None,
        *,
        epsilon: float | Tensor | None = None,
        indices: Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Generate adversarial examples.

        Args:
            x: [N, ...], float, finite, in [clip_min, clip_max].
            y: [N], integers, the labels.
            targeted: success means that the model predicts the target label, rather than any class other than y.
            target_labels: [N], integers, required with targeted=True, otherwise None.
            epsilon: radius for this call: a number, [N] or radii per element; default: the attack's epsilon.
            indices: [N], the index of each example in its data set, in [0, 2**32), which determines its random
                numbers; default 0 … N - 1.

        Returns:
            [N, ...], the adversarial examples, on x's device and in its dtype, or in float32 if float64 x was cast for
            the model.

        Raises:
            InputError: mismatched shapes, values, labels or indices out of range, or missing target labels.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits, or logits without a gradient.
        """
        x = self._examples(x)
        y = self._success_labels(y, targeted, target_labels, len(x))
        lower, upper = self._ends
        # No two valid inputs are further apart than this; a larger radius might overflow x's dtype.
        diameter = self._norm.diameter(x[:1].numel(), upper - lower)
        norm, radius = self._geometry(x, epsilon)
        radius = radius.clamp(max=diameter) if norm is self._norm else radius
        budget = torch.zeros(len(x), dtype=torch.int64)
        if self._levels is not None:
            budget = budgets(self.norm, radius, self._levels.step)
            radius = self._levels.radius(self.norm, radius, budget, x[:1].numel())
        index = torch.tensor(image_indices(indices, len(x)), dtype=torch.int64)
        queries = Queries(self.runner)
        with (
            ThreadTrial(self.runner.device_for(x), self.runner.model) as queries.trial,
            self.runner.session(gradients=True),
            reporting(self.progress, len(x)) as report,
        ):
            x_adv = x.clone()
            done = torch.zeros(len(x), dtype=torch.bool)

            def leave(rows: list[int], points: Tensor, success: bool) -> None:
                x_adv[on_device(rows, x_adv.device)] = points.to(x_adv.device)
                done[rows] = True
                if self.callback is not None:
                    for row in rows:
                        self.callback(row, success, x_adv[row])
                report(int(done.sum()))

            try:
                wrong = (~self._correct(queries, x, y, targeted=targeted)).nonzero()[:, 0]
                if len(wrong):
                    leave(wrong.tolist(), x[wrong.to(x.device)], True)
                todo = (~done).nonzero()[:, 0]
                self._attack(
                    queries,
                    norm,
                    x,
                    y,
                    radius=radius,
                    budget=budget,
                    index=index,
                    todo=todo,
                    done=done,
                    targeted=targeted,
                    leave=leave,
                )
            finally:
                self.forwards, self.backwards = queries.forwards, queries.backwards
        return x_adv

    def _attack(
        self,
        queries: Queries,
        norm: Norm,
        x: Tensor,
        y: Tensor,
        radius: Tensor,
        budget: Tensor,
        index: Tensor,
        todo: Tensor,
        done: Tensor,
        targeted: bool,
        leave: Callable[[list[int], Tensor, bool], None],
    ) -> None:
        """Attack the examples of ``todo`` in batches."""
        runner = self.runner
        device = runner.device_for(x)
        lower, upper = self._ends

        def step(begin: int, end: int) -> None:
            rows = todo[begin:end]
            rows = rows[~done[rows]]  # some may have left before their batch ran out of memory
            if not len(rows):
                return
            state = AttackState(
                queries,
                norm,
                runner.batch(x[rows.to(x.device)]),
                y[rows].to(device),
                epsilon=radius[rows].to(device),
                index=index[rows].to(device),
                rows=rows.tolist(),
                targeted=targeted,
                lower=lower,
                upper=upper,
                seed=self.seed,
                leave=leave,
                levels=self._levels,
                budget=budget[rows].to(device),
            )
            self._run(state)

        runner.for_each(len(todo), tuple(x.shape[1:]), step, gradients=True)

    @abc.abstractmethod
    def _run(self, state: AttackState) -> None:
        """Attack one batch: remove fooled examples with ``state.retire``, and end with ``state.finish``."""

"""What all attacks of this package share: batches, seeds, progress, and who is still under attack."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from pyrobust.errors import InputError, InputTypeError
from pyrobust.runner import Classifier, Progress, Runner, reporting

from .arguments import batch_on, image_indices, integer, labels
from .base import AdversarialAttack
from .job import Job
from .queries import Queries

#: (row, success, x_adv): called for each example when the attack on it ends.
Callback: TypeAlias = Callable[[int, bool, Tensor], None]


class BatchAttack(AdversarialAttack):
    """An attack on batches of examples, each on its own: an example that is fooled leaves its batch at once.

    What comes back is, for every example: itself, where the model is wrong about it from the start; a point that fools
    the model also in a batch of one; or else the point of the highest loss that was found. All of it is in the ball and
    the clip range, in exact arithmetic. Random numbers depend on the seed and an example's index alone, so results
    depend on the batch size only where the model's own arithmetic does.

    Subclasses define ``_run``, see ``pyrobust.attacks.job.Job``.

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``; an ``EOT`` is averaged.
        epsilon: the radius of the ball, a number or a tensor [N], one for each example.
        norm: "linf", "l2" or "l1".
        clip_min: the least value of a valid input.
        clip_max: the largest.
        device: where to run; default: that of the model's first parameter, else the CPU.
        seed: in [0, 2**64).
        batch_size: rows a forward pass; default: found so that it fits memory.
        dtype: of the batches, see ``pyrobust.runner.Runner``.
        memory_format: of the batches, likewise.
        progress: True for a bar on the terminal, or a function of (examples done, examples).
        callback: called with (row, success, x_adv) for each example when the attack on it ends.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of another type.

    >>> class Darkest(BatchAttack):
    ...     def _run(self, job):
    ...         x_adv = job.place(-job.epsilon[:, None].expand(job.x.shape).to(job.x))
    ...         job.finish(*job.retire(job.verdict(job.logits(x_adv)), x_adv))
    >>> attack = Darkest(lambda x: torch.stack([x[:, 0], 1 - x[:, 0]], 1), epsilon=0.25)
    >>> attack.generate(torch.tensor([[0.625], [0.125]]), torch.tensor([0, 1]))
    tensor([[0.3750],
            [0.0000]])
    """

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: str = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        progress: bool | Progress = False,
        callback: Callback | None = None,
    ) -> None:
        super().__init__(model, epsilon, norm, clip_min, clip_max, device)
        self.seed = integer("seed", seed)
        if not 0 <= self.seed < 1 << 64:
            raise InputError(f"seed: expected 0 to 2**64 - 1, got {seed}")
        if callback is not None and not callable(callback):
            raise InputTypeError(f"callback: expected a callable, got {type(callback).__name__}")
        self.runner = Runner(model, device=device, dtype=dtype, memory_format=memory_format, batch_size=batch_size)
        self.progress = progress
        self.callback = callback
        #: Rows pushed through the model in the last ``generate``.
        self.forwards = 0

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
        """The adversarial examples.

        Args:
            x: [N, ...], float, finite, in [clip_min, clip_max].
            y: [N], integers, the labels.
            targeted: success is that the model says the target label, rather than anything but y.
            target_labels: [N], integers, needed where targeted and used only there.
            epsilon: a number or [N], in this call; default: the attack's.
            indices: [N], the index of each example in its data set, which its random numbers depend on, in
                [0, 2**32); default 0 … N - 1.

        Returns:
            [N, ...], of x's dtype and device.

        Raises:
            InputError: shapes that do not agree, values, labels or indices out of range, or no target labels.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits, or logits without a gradient.
        """
        x = self._examples(x)
        y = labels("y", y, len(x))
        if targeted:
            if target_labels is None:
                raise InputError("target_labels: expected one for each example where targeted, got None")
            y = labels("target_labels", target_labels, len(x))
        # No two valid inputs are further apart; a larger radius might not fit x's dtype.
        furthest = self._norm.diameter(x[:1].numel(), self.clip_max - self.clip_min)
        radius = self._epsilons(len(x), epsilon).clamp(max=furthest)
        index = image_indices(indices, len(x))
        queries = Queries(self.runner)
        with torch.inference_mode(False), torch.no_grad(), reporting(self.progress, len(x)) as report:
            x_adv = x.clone()
            done = torch.zeros(len(x), dtype=torch.bool)

            def leave(rows: list[int], points: Tensor, success: bool) -> None:
                x_adv[torch.tensor(rows, device=x_adv.device)] = points.to(x_adv.device)
                done[rows] = True
                if self.callback is not None:
                    for row in rows:
                        self.callback(row, success, x_adv[row])
                report(int(done.sum()))

            try:
                wrong = (~self._right(queries, x, y, targeted=targeted)).nonzero()[:, 0]
                if len(wrong):
                    leave(wrong.tolist(), x[wrong.to(x.device)], True)
                todo = (~done).nonzero()[:, 0]
                self._attack(queries, x, y, radius, index, todo, done, targeted, leave)
            finally:
                self.forwards = queries.forwards
        return x_adv

    def _attack(
        self,
        queries: Queries,
        x: Tensor,
        y: Tensor,
        radius: Tensor,
        index: Tensor,
        todo: Tensor,
        done: Tensor,
        targeted: bool,
        leave: Callable[[list[int], Tensor, bool], None],
    ) -> None:
        """Runs the examples of ``todo`` in batches."""
        runner = self.runner
        device = runner.device_for(x)

        def step(begin: int, end: int) -> None:
            rows = todo[begin:end]
            rows = rows[~done[rows]]  # of a batch that ran out of memory some may have left
            if not len(rows):
                return
            job = Job(
                queries,
                self._norm,
                batch_on(x[rows.to(x.device)], device, runner.memory_format),
                y[rows].to(device),
                radius[rows].to(device),
                index[rows].to(device),
                rows.tolist(),
                targeted=targeted,
                lower=self.clip_min,
                upper=self.clip_max,
                seed=self.seed,
                leave=leave,
            )
            self._run(job)

        with runner.session(gradients=True):
            runner.for_each(len(todo), tuple(x.shape[1:]), step, gradients=True)

    @abc.abstractmethod
    def _run(self, job: Job) -> None:
        """Attacks the examples of a batch, letting the fooled ones go by ``job.retire``; ends with ``job.finish``."""

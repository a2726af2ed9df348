"""Whether a model gives examples their labels, whatever batch they come in."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrobust.attacks.queries import Queries, note_no_winner
from pyrobust.errors import InputError
from pyrobust.metrics import predicted_classes
from pyrobust.runner import Runner


class Judge:
    """Says of examples whether the model classifies them right; an ``EOT`` model is averaged over its draws.

    Another batch may round a logit otherwise. So where the label's logit and the largest other one are within √ε of
    the model's dtype, relative to the row's largest |logit|, the model is asked again about that example alone: the
    answer is that of ``model(x[i:i+1])``, which is also what attacks confirm their successes by.

    Args:
        runner: of the model.

    >>> judge = Judge(Runner(lambda x: torch.cat([x, -x], dim=1)))
    >>> judge.right(torch.tensor([[1.0], [-1.0], [float("nan")]]), torch.tensor([0, 0, 0])).tolist(), judge.rows
    ([True, False, False], 4)
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._queries = Queries(runner)

    @property
    def rows(self) -> int:
        """Examples pushed through the model so far."""
        return self._queries.forwards

    def right(self, x: Tensor, y: Tensor, name: str = "y") -> Tensor:
        """Whether the model gives each example its label; a row without a winner is never right, which is logged.

        Args:
            x: [N, ...], float, on any device.
            y: [N], int64, on the CPU.
            name: of the argument that holds the labels, for the error.

        Returns:
            [N], bool, on the CPU.

        Raises:
            InputError: a label that is no class of the model.
            ModelError: a model that does not return logits.
        """
        right = torch.empty(len(x), dtype=torch.bool)
        without = torch.zeros(len(x), dtype=torch.bool)

        def step(begin: int, end: int) -> None:
            batch = x[begin:end].detach().to(self.runner.device_for(x), self.runner.dtype)
            if batch.dim() == 4:
                batch = batch.contiguous(memory_format=self.runner.memory_format)
            labels = y[begin:end].to(batch.device)
            logits = self._queries.logits(batch)
            unknown = (labels < 0) | (labels >= logits.shape[1])
            if bool(unknown.any()):
                raise InputError(
                    f"{name}: expected classes 0 to {logits.shape[1] - 1}, the model's, got {int(labels[unknown][0])}"
                )
            classes = predicted_classes(logits)
            verdict = classes == labels
            if len(batch) > 1:
                for i in _close(logits, labels, self.runner.dtype).nonzero()[:, 0].tolist():
                    alone = self._queries.logits(batch[i : i + 1])
                    verdict[i] = predicted_classes(alone)[0] == labels[i]
            right[begin:end] = verdict.cpu()
            without[begin:end] = (classes < 0).cpu()

        with self.runner.session():
            self.runner.for_each(len(x), tuple(x.shape[1:]), step)
        note_no_winner(self.runner, int(without.sum()), len(x))
        return right


def _close(logits: Tensor, labels: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows [N] whose verdict rounding could turn."""
    index = labels.unsqueeze(1)
    gap = logits.scatter(1, index, -torch.inf).amax(1) - logits.gather(1, index).squeeze(1)
    close: Tensor = gap.abs() <= torch.finfo(dtype).eps ** 0.5 * logits.abs().amax(1)
    return close | ~gap.isfinite()

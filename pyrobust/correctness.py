"""When a model counts as correct at an input, and when an example is run again in a batch of one.

A model is correct at x if its predicted class, the arg-max of the logits (the lowest class on a tie), is the label. If
the largest logit is NaN, +inf or -inf, the logits predict no class, and the model is not correct at x. A model is
robust to an attack at x if it is correct at x and at x_adv (``pyrobust.metrics.robust_accuracy``).

The prediction that counts is made in a batch of one, since a user will run the example alone. In a larger batch, the
logits may be rounded differently, so a prediction from such a batch is accepted only if rounding cannot change it. The
test is whether the label's logit and the largest other logit differ by more than √ε times the row's largest |logit|.
Examples that fail this test, and examples whose logits are not finite, are run again alone. ε is the rounding unit of
the coarsest arithmetic in the model (``Runner.unit``). If a callable casts its float64 input to float32, for example, ε
is the unit of float32. For a callable that computes outside torch, where its arithmetic cannot be observed, ε is the
unit of bfloat16.

The cost is one forward pass for the batch, and one for each example that is run again. On ordinary inputs, no example
has to be run again, or only a few if ε is coarse. Sweeps of attacks first probe whether the rows of a batch are
independent (``pyrobust.row_independence``). In two cases, sweeps run every example alone, in one forward pass each
(``Judge.classes_alone``). In the first case, the model is declared to be random, so row independence is not tested. In
the second case, proofs are stored for the same examples, and rounding must not make an attack appear to refute a proof.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from pyrobust.errors import InputError
from pyrobust.metrics import predicted_classes
from pyrobust.ops.logits import CLOSE, logit_verdict
from pyrobust.runner import Runner

logger = logging.getLogger(__name__)


def verdicts(logits: Tensor, y: Tensor, unit: float, targeted: bool = False, *, both: bool = True) -> Tensor:
    """Judge each row of a batch: ``ROBUST`` (correct), ``FOOLED`` (wrong) or ``CLOSE`` (run it alone), uint8 [B].

    Args:
        logits: [B, K], float32 or float64.
        y: [B], int64, on the device of the logits.
        unit: rounding unit of the model's arithmetic (``Runner.unit``).
        targeted: whether y is the class that an attack aims at. If so, a row that predicts y is ``FOOLED``.
        both: if True, both correct and wrong rows may be ``CLOSE``; if False, only wrong rows may, and rows whose gap
            between the logits is not finite. False suffices for an attack, which has to confirm only that the model is
            fooled.

    >>> verdicts(torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]]), torch.tensor([0, 0, 0]), 2.0**-23)
    tensor([0, 1, 2], dtype=torch.uint8)
    """
    return logit_verdict(logits, y, targeted, tolerance=unit**0.5, both=both)


class Judge:
    """Predicts classes, and says where a model is correct, by the rule of ``pyrobust.correctness``.

    Args:
        runner: the ``Runner`` that runs the model.
        logits: function that maps a batch [N, ...] on the runner's device to logits [N, K]. It is called inside
            ``runner.session``, which puts the model into evaluation mode; for ``right_alone``, the caller opens it. By
            default, ``runner.logits`` computes the logits.

    >>> judge = Judge(Runner(lambda x: torch.cat([x, -x], dim=1)))
    >>> judge.correct(torch.tensor([[1.0], [-1.0], [float("nan")]]), torch.tensor([0, 0, 0])).tolist(), judge.rows
    ([True, False, False], 4)
    >>> judge.classes(torch.tensor([[1.0], [-1.0], [float("nan")]])).tolist()
    [0, 1, -1]
    """

    def __init__(self, runner: Runner, logits: Callable[[Tensor], Tensor] | None = None) -> None:
        self.runner = runner
        self._forward = logits or (lambda batch: runner.logits(batch.to(runner.dtype), watch=True))
        #: Examples passed to ``logits`` so far.
        self.rows = 0

    def classes(self, x: Tensor) -> Tensor:
        """Return predicted classes of examples [N, ...], int64 [N] on the CPU; no class is -1, logged once per runner.

        Raises:
            ModelError: a model that does not return logits.
        """
        return self._classes(x, None, "")

    def classes_alone(self, x: Tensor) -> Tensor:
        """Return the same as ``classes``, but run every example in a batch of one, even if its logits are far apart."""
        self.runner.follow(x)
        with self.runner.session(gradients=True):
            classes = torch.empty(len(x), dtype=torch.int64, device="cpu")
            for i in range(len(x)):
                classes[i] = predicted_classes(self._logits(self.runner.batch(x[i : i + 1].detach())))[0]
        self._note_no_class(classes)
        return classes

    def correct(self, x: Tensor, y: Tensor, name: str = "y") -> Tensor:
        """Whether the model predicts the labels, bool [N] on the CPU; rows without a class are logged once per runner.

        Args:
            x: [N, ...], float, on any device.
            y: [N], int64, on the CPU.
            name: name of the argument that holds the labels, for the error.

        Raises:
            InputError: a label that is not a class of the model.
            ModelError: a model that does not return logits.
        """
        return self._classes(x, y, name) == y

    def right_alone(self, x: Tensor, y: Tensor) -> bool:
        """Whether the model predicts the label [1] of an example [1, ...], both on its device; call it in a session."""
        return bool(predicted_classes(self._logits(x))[0] == y[0])

    def _classes(self, x: Tensor, y: Tensor | None, name: str) -> Tensor:
        """Return classes that rounding cannot change; with y, it cannot change only whether they equal y."""
        self.runner.follow(x)
        with torch.inference_mode(False):  # the session leaves a caller's inference mode and writes to this tensor
            classes = torch.empty(len(x), dtype=torch.int64, device="cpu")

        def step(begin: int, end: int) -> None:
            batch = self.runner.batch(x[begin:end].detach())
            logits = self._logits(batch)
            predicted = predicted_classes(logits)
            if y is None:
                labels = predicted.clamp(min=0)
            else:
                labels = y[begin:end].to(batch.device)
                _check_labels(name, labels, logits.shape[1])
            if len(batch) > 1:
                close = verdicts(logits, labels, self.runner.unit) == CLOSE
                for i in close.nonzero()[:, 0].tolist():
                    predicted[i] = predicted_classes(self._logits(batch[i : i + 1]))[0]
            classes[begin:end] = predicted.cpu()

        # With gradients, so that a model may keep tensors for an attack's backward pass.
        with self.runner.session(gradients=True):
            self.runner.for_each(len(x), tuple(x.shape[1:]), step)
        self._note_no_class(classes)
        return classes

    def _logits(self, batch: Tensor) -> Tensor:
        self.rows += len(batch)
        logits = self._forward(batch).detach()
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def _note_no_class(self, classes: Tensor) -> None:
        """Warn once per runner about examples without a predicted class."""
        count = int((classes < 0).sum())
        if count and not self.runner.warned_no_class:
            self.runner.warned_no_class = True
            logger.warning(
                "%d of %d examples have no predicted class and count as wrong: their logits hold NaN or +inf, or only "
                "-inf",
                count,
                len(classes),
            )


def _check_labels(name: str, labels: Tensor, classes: int) -> None:
    unknown = (labels < 0) | (labels >= classes)
    if bool(unknown.any()):
        raise InputError(name, f"labels 0 to {classes - 1}, the model's classes", int(labels[unknown][0]))

"""Expectation over transformation, for randomized models."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from pyrobust.checks import count
from pyrobust.errors import InputTypeError, ModelError
from pyrobust.runner import Classifier


class EOT(nn.Module):
    """A randomized classifier for which attacks average logits, losses and gradients over several draws.

    The attack maximizes the mean loss (1/S)·Σₛ L(f(tₛ(x)), y), with tₛ drawn afresh for every forward pass. This is
    called expectation over transformation (Athalye, Engstrom, Ilyas and Kwok, 2018). An example counts as correctly
    classified if the mean of the S logits classifies it correctly. The draws come from the model's or the transform's
    own generator, so results depend on the generator's state and on the order of the batches.

    Args:
        model: batch [N, ...] → logits [N, K] or an object with ``.logits``; without a transform, the model itself
            should be random.
        samples: S, the number of draws per forward pass, at least 1.
        transform: random and differentiable, batch → batch of any shape that the model accepts.

    Raises:
        InputError: samples below 1.
        InputTypeError: a model or transform that is not callable, or a value of ``samples`` that is not an integer.

    >>> import torch
    >>> noisy = EOT(nn.Linear(2, 3), samples=8, transform=lambda x: x + 0.1 * torch.randn_like(x))
    >>> noisy(torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    """

    def __init__(self, model: Classifier, samples: int, transform: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        if not callable(model):
            raise InputTypeError("model", "a torch.nn.Module or a callable", type(model).__name__)
        if transform is not None and not callable(transform):
            raise InputTypeError("transform", "a callable", type(transform).__name__)
        self.model = model
        self.samples = count("samples", samples)
        self.transform = transform

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, K] of one draw.

        Raises:
            ModelError: a model that does not return logits.
        """
        output = self.model(x if self.transform is None else self.transform(x))
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor):
            raise ModelError(f"model: expected a logits tensor or an object with .logits, got {type(output).__name__}")
        return logits

"""Certified accuracy by interval bound propagation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.attacks.queries import Queries
from pyrobust.bounds import BoundedModel
from pyrobust.checks import non_negative
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.datasets import labelled_examples
from pyrobust.runner import Runner

# Examples bounded at once, independent of the loader's batches.
_CHUNK = 256


def certified_accuracy_ibp(
    model: nn.Module, test_loader: Iterable[Any], epsilon: float, device: torch.device | str | None = None
) -> dict[str, float]:
    """Compute clean accuracy, and accuracy certified by interval bound propagation (Gowal et al., 2018).

    A correctly classified example is certified if ``lower_y > max_{j ≠ y} upper_j`` for the sound bounds of
    ``compute_ibp_bounds`` over the l∞ ball, without clipping. ``BoundedModel.certify`` bounds differences of logits
    instead, and certifies more.

    Args:
        model: module that ``BoundedModel`` supports; runs in evaluation mode.
        test_loader: an iterable of pairs (x, y), of a batch [N, ...] and int64 [N], or of one example [...] and its
            class: a ``DataLoader``, a ``TensorDataset``, a list, or one batch (x, y).
        epsilon: l∞ perturbation radius, at least 0.
        device: device of the forward pass and the bounds; the model is moved there. Default: the model's device.

    Returns:
        ``clean_accuracy`` and ``certified_accuracy``, shares of all examples.

    Raises:
        InputError: no example, examples of several shapes, a label or epsilon out of range.
        InputTypeError: a model that is not a module, items that are not such pairs.
        ModelError: a model that does not return logits, or that cannot be bounded.

    >>> model = nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> loader = [(torch.tensor([[0.9, 0.1], [0.5, 0.4], [0.2, 0.8]]), torch.tensor([0, 0, 0]))]
    >>> {name: round(share, 2) for name, share in certified_accuracy_ibp(model, loader, 0.1).items()}
    {'clean_accuracy': 0.67, 'certified_accuracy': 0.33}
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    radius = non_negative("epsilon", epsilon)
    runner = Runner(model, device=device)
    judge = Queries(runner).judge
    bounded: BoundedModel | None = None
    total = clean = certified = 0
    with runner.session(gradients=True):  # gradients, since tensors made in inference mode cannot be traced
        for x, y in _chunks(test_loader):
            x = x.to(runner.device, runner.dtype)
            if bounded is None:
                bounded = BoundedModel(model, x)
            right = judge.right(x, y, "test_loader")
            bounds = bounded.bounds(x, radius, method="ibp")
            rows = torch.arange(len(y))
            others = bounds.upper.clone()
            others[rows, y] = -torch.inf
            proved = bounds.lower[rows, y] > others.amax(1)
            total += len(y)
            clean += int(right.sum())
            certified += int((right & proved).sum())
    if total == 0:
        raise InputError("test_loader: expected at least one example, got none")
    return {"clean_accuracy": clean / total, "certified_accuracy": certified / total}


def _chunks(test_loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches [N, ...] with labels [N], with N independent of the loader."""
    examples = labelled_examples("test_loader", test_loader)
    while chunk := list(islice(examples, _CHUNK)):
        shapes = {tuple(x.shape) for x, _ in chunk}
        if len(shapes) > 1:
            raise InputError(
                f"test_loader: expected examples of one shape, got {' and '.join(map(str, sorted(shapes)))}"
            )
        yield torch.stack([x.detach() for x, _ in chunk]), torch.cat([y for _, y in chunk])

"""Certified accuracy by interval bound propagation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.attacks.engine.queries import Queries
from pyrobust.bounds import compute_ibp_bounds
from pyrobust.checks import exact_cast, non_negative
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.datasets import labelled_batches
from pyrobust.machine import existing_device
from pyrobust.runner import Runner

logger = logging.getLogger(__name__)

# Smaller batches of the loader are joined until they have at least this many examples.
_CHUNK = 256


def certified_accuracy_ibp(
    model: nn.Module, test_loader: Iterable[Any], epsilon: float, device: torch.device | str | None = None
) -> dict[str, float]:
    """Compute clean accuracy, and accuracy certified by interval bound propagation (Gowal et al., 2018).

    A correctly classified example is certified if ``lower_y > max_{j ≠ y} upper_j`` for the sound bounds of
    ``compute_ibp_bounds`` over the l∞ ball, which is not clipped. ``BoundedModel.certify`` bounds differences of logits
    instead, and certifies more examples.

    Args:
        model: a module that ``BoundedModel`` supports. It is run in evaluation mode, and its previous modes are
            restored afterwards.
        test_loader: a ``DataLoader``, a ``TensorDataset``, a list or another iterable of pairs (x, y). A pair is either
            a batch [N, ...] with its labels, int64 [N], or one example [...] with its class. A single batch (x, y) is
            also allowed.
        epsilon: l∞ perturbation radius, at least 0.
        device: device of the forward pass and the bounds; the model is moved there. Default: the model's GPU, else
            "cuda" if there is a CUDA device, else "cpu". Without a CUDA device, "cuda" becomes "cpu", with a warning in
            the log.

    Returns:
        ``clean_accuracy`` and ``certified_accuracy``: shares of all examples, as floats.

    Raises:
        InputError: no examples, examples of different shapes, a value that is not finite or that the model's dtype does
            not represent, or a label or epsilon out of range.
        InputTypeError: a model that is not a module, or items that are not pairs (x, y).
        ModelError: a model that does not return logits, or that cannot be bounded.

    >>> model = nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> loader = [(torch.tensor([[0.9, 0.1], [0.5, 0.4], [0.2, 0.8]]), torch.tensor([0, 0, 0]))]
    >>> {name: round(share, 2) for name, share in certified_accuracy_ibp(model, loader, 0.1).items()}
    {'clean_accuracy': 0.67, 'certified_accuracy': 0.33}
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError("model", "a torch.nn.Module", type(model).__name__)
    radius = non_negative("epsilon", epsilon)
    runner = Runner(model, device=_device(model, device))
    judge = Queries(runner).judge
    total = clean = certified = 0
    with runner.session(gradients=True):  # gradients, since tensors made in inference mode cannot be traced
        for x, y in _chunks(test_loader):
            if runner.casts(x):
                x = exact_cast("test_loader: x", x, runner.input_dtype)
            x = x.to(runner.device, runner.dtype)
            lower, upper = compute_ibp_bounds(model, x, radius)
            correct = judge.correct(x, y, "test_loader")
            others = upper.scatter(1, y[:, None], -torch.inf)
            proved = lower.gather(1, y[:, None])[:, 0] > others.amax(1)
            total += len(y)
            clean += int(correct.sum())
            certified += int((correct & proved).sum())
    if total == 0:
        raise InputError("test_loader", "at least one example", "none")
    return {"clean_accuracy": clean / total, "certified_accuracy": certified / total}


def _device(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the device of the evaluation."""
    if device is None:
        current = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
        if current is not None and current.type == "cuda":
            return current
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if str(device) == "cuda" and not torch.cuda.is_available():
        logger.warning("device: no CUDA device is available; computing on the CPU instead")
        return torch.device("cpu")
    return existing_device(device)


def _chunks(test_loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches [N, ...] with labels [N], of at least ``_CHUNK`` examples except for the last."""
    images: list[Tensor] = []
    labels: list[Tensor] = []
    held = 0
    for x, y in labelled_batches("test_loader", test_loader):
        if images and x.shape[1:] != images[0].shape[1:]:
            shapes = " and ".join(str(tuple(t.shape[1:])) for t in (images[0], x))
            raise InputError("test_loader", "examples of one shape", shapes)
        images.append(x.detach())
        labels.append(y)
        held += len(y)
        if held >= _CHUNK:
            yield torch.cat(images), torch.cat(labels)
            images, labels, held = [], [], 0
    if held:
        yield torch.cat(images), torch.cat(labels)

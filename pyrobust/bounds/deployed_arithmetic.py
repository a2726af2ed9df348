"""Whether a GPU computes a network as ``semantics="float32"`` supposes: in IEEE floats, without Winograd or FFT."""

from __future__ import annotations

import torch

from pyrobust.bounds.graph.nodes import Conv2d, Node, in_order
from pyrobust.errors import InputError
from pyrobust.machine import strict_cuda


def other_convolutions(output: Node, device: torch.device) -> str | None:
    """Return why a device may compute convolutions by algorithms that the bounds do not cover; None if it cannot.

    >>> from pyrobust.bounds import BoundedModel
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3), torch.nn.Flatten()).eval()
    >>> other_convolutions(BoundedModel(net, torch.zeros(1, 1, 3, 3)).output, torch.device("cpu")) is None
    True
    """
    if device.type != "cuda" or not torch.backends.cudnn.enabled:
        return None
    if not any(isinstance(node, Conv2d) for node in in_order(output)):
        return None
    return "cuDNN may choose Winograd or FFT convolutions; torch.backends.cudnn.enabled = False excludes them"


def other_on_gpu(output: Node, device: torch.device) -> str | None:
    """Return why proofs do not cover a forward pass on a device, such as a GPU; None if proofs cover it.

    >>> from pyrobust.bounds import BoundedModel
    >>> net = torch.nn.Linear(2, 2).eval()
    >>> other_on_gpu(BoundedModel(net, torch.zeros(1, 2)).output, torch.device("cpu")) is None
    True
    """
    if device.type == "cuda" and not strict_cuda():
        return "a setting allows products in TF32, or emulated"
    return other_convolutions(output, device)


def check_covered(semantics: str, reason: str | None) -> None:
    """Raise InputError if ``reason`` says that float32 certificates do not cover the attacked forward pass.

    >>> check_covered("real", "cuDNN may choose Winograd or FFT convolutions")
    """
    if semantics == "float32" and reason is not None:
        raise InputError(
            "semantics", f'"real", since certificates of "float32" would not cover the attacked forward pass: {reason}'
        )

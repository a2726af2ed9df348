"""Select rows of tensors, and iterate over data sets and loaders of any kind as labelled batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import as_tensor, finite_values, label_hint, shown
from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo.rows import is_batch


def take(values: Tensor, indices: Sequence[int]) -> Tensor:
    """Return the rows of a tensor at these indices; if the indices are a range, the rows are not copied.

    >>> take(torch.arange(5), [3, 0]), take(torch.arange(5), range(1, 5, 2))
    (tensor([3, 0]), tensor([1, 3]))
    """
    return values[indices.start : indices.stop : indices.step] if isinstance(indices, range) else values[list(indices)]


def labelled_batches(name: str, dataset: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches [N, ...] of a data set or loader unchanged, each with its labels, int64 [N] on the CPU.

    The data set yields pairs (x, y), either one example [...] and its class, or a batch [N, ...] and labels, int64 [N];
    a single batch (x, y) also counts as a data set. Single examples become batches of one. In error messages, the data
    set is called ``name``.

    >>> [(tuple(x.shape), y.tolist()) for x, y in labelled_batches("data", (torch.zeros(2, 3), torch.tensor([1, 0])))]
    [((2, 3), [1, 0])]
    """
    if isinstance(dataset, tuple | list) and len(dataset) == 2 and is_batch(*dataset):
        dataset = [tuple(dataset)]
    for item in items(name, dataset):
        x = as_tensor(item[0]) if isinstance(item, tuple | list) and len(item) == 2 else None
        if x is None:
            raise InputTypeError(name, "pairs (x, y) with x a tensor, an array or a list", type(item).__name__)
        y = torch.tensor(item[1]) if isinstance(item[1], int | float) else as_tensor(item[1])
        if y is None:
            raise InputTypeError(name, "y to be integers", shown(item[1]), label_hint(item[1]))
        if not x.dtype.is_floating_point:
            raise InputTypeError(name, "x to be float", x.dtype, "for 8-bit images divide x.float() by 255")
        if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
            raise InputTypeError(name, "y to be integers", y.dtype)
        if y.dim() == 0:
            x, y = x.unsqueeze(0), y.unsqueeze(0)
        if y.dim() != 1 or x.dim() < 2 or len(x) != len(y):
            raise InputError(
                name,
                "x [...] with one label, or x [N, ...] with y [N]",
                f"x {tuple(x.shape)} and y {tuple(y.shape)}",
            )
        finite_values(f"{name}: x", x.detach())
        yield x, y.cpu().to(torch.int64)


def items(name: str, dataset: Any) -> Iterator[Any]:
    """Yield the items of an iterable or of a map-style data set."""
    if hasattr(dataset, "__iter__"):
        yield from dataset
    elif hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        # Plain iteration relies on IndexError, which a map-style data set need not raise.
        for i in range(len(dataset)):
            yield dataset[i]
    else:
        raise InputTypeError(name, "an iterable of pairs (x, y)", type(dataset).__name__)

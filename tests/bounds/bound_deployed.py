"""Forward passes of dense nets in float32, with sums in several orders."""

from __future__ import annotations

from collections.abc import Callable

import bound_nets
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Floats = npt.NDArray[np.float32]


def _forwards(terms: list[Floats]) -> Floats:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _backwards(terms: list[Floats]) -> Floats:
    return _forwards(terms[::-1])


def _pairwise(terms: list[Floats]) -> Floats:
    if len(terms) == 1:
        return terms[0]
    return _pairwise(terms[: len(terms) // 2]) + _pairwise(terms[len(terms) // 2 :])


#: Sums of a list of terms, each [P].
SUMS: dict[str, Callable[[list[Floats]], Floats]] = {
    "forwards": _forwards,
    "backwards": _backwards,
    "pairwise": _pairwise,
}


def deployed(net: nn.Sequential, x: Floats, order: str, rng: np.random.Generator) -> Floats:
    """Return outputs [P, K] for inputs [P, n], summing shuffled terms, bias included, in the given order."""
    for module in net:
        x = _value(module, x, order, rng)
        assert x.dtype == np.float32
    return x


def _value(module: nn.Module, x: Floats, order: str, rng: np.random.Generator) -> Floats:
    if isinstance(module, bound_nets.Residual):
        body = _value(module.body, x, order, rng)
        return x + body if module.sign > 0 else x - body
    if not isinstance(module, nn.Linear):
        return module(torch.from_numpy(x)).numpy()
    weight = module.weight.numpy()
    shuffled = rng.permutation(weight.shape[1])
    columns = []
    for i, row in enumerate(weight):
        terms = [x[:, k] * row[k] for k in shuffled]
        if module.bias is not None:
            terms.insert(int(rng.integers(len(terms) + 1)), np.full(len(x), module.bias[i].item(), dtype=np.float32))
        columns.append(SUMS[order](terms))
    return np.stack(columns, 1)

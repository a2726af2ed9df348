"""Find the images that a run's parameters select, and describe the parameters in which two runs differ."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

from pyrobust.late import numpy as np

# For longer lists, messages show only the first difference.
_MAX_SHOWN = 8


def describe_difference(name: str, first: Any, second: Any, wording: tuple[str, str] = ("stored", "given")) -> str:
    """Describe how two values of one parameter differ; for long lists, name the first difference between them.

    >>> describe_difference("sigma", 0.25, 0.5)
    'sigma: 0.25 stored, 0.5 given'
    >>> describe_difference("radii", [0.5] * 9, [0.5] * 9 + [1.0])
    'radii: 9 stored, 10 given; first difference at number 10: none stored, 1.0 given'
    >>> describe_difference("box", [[0.5] * 9], None)
    'box: 9 numbers stored, None given'
    """
    first, second = _leaves(first), _leaves(second)
    lists = isinstance(first, list) and isinstance(second, list)
    if not lists or max(len(first), len(second)) <= _MAX_SHOWN:
        return f"{name}: {_shown(first)} {wording[0]}, {_shown(second)} {wording[1]}"
    shorter = min(len(first), len(second))
    position = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), shorter)
    shown = [repr(values[position]) if position < len(values) else "none" for values in (first, second)]
    return (
        f"{name}: {len(first)} {wording[0]}, {len(second)} {wording[1]}; first difference at number {position + 1}: "
        f"{shown[0]} {wording[0]}, {shown[1]} {wording[1]}"
    )


def _shown(value: Any) -> str:
    return f"{len(value)} numbers" if isinstance(value, list) and len(value) > _MAX_SHOWN else repr(value)


def _leaves(value: Any) -> Any:
    """Return nested lists of more than a few numbers as one flat list, and any other value unchanged."""
    nested = isinstance(value, list) and any(isinstance(item, list) for item in value)
    flat = np.ravel(value).tolist() if nested else []
    return flat if len(flat) > _MAX_SHOWN else value


def describe_differences(
    first: dict[str, Any],
    second: dict[str, Any],
    wording: tuple[str, str] = ("stored", "given"),
    ignore: frozenset[str] = frozenset(),
) -> list[str]:
    """Describe each parameter, or entry of a dictionary parameter, that differs between two runs.

    >>> describe_differences({"sigma": 0.25, "n": 10}, {"sigma": 0.5, "n": 10})
    ['sigma: 0.25 stored, 0.5 given']
    >>> describe_differences({"settings": {"steps": 10}}, {"settings": {"steps": 20}})
    ['steps: 10 stored, 20 given']
    """
    first, second = _flatten(first), _flatten(second)
    names = [name for name in {**first, **second} if name not in ignore and first.get(name) != second.get(name)]
    return [describe_difference(name, first.get(name), second.get(name), wording) for name in names]


def _flatten(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with each dictionary replaced by its entries; an entry named like a parameter is qualified."""
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        entries = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{entry}" if entry in parameters else entry: item for entry, item in entries}
        if not isinstance(value, dict):
            flat[name] = value
    return flat


def chosen_indices(parameters: dict[str, Any]) -> range:
    """Return the data-set indices that a run covers, in order.

    The run takes every ``skip``-th image, but at most the first ``max`` of these images. Shard I of K takes every K-th
    of these images, beginning with the I-th.

    >>> list(chosen_indices({"images": 20, "skip": 2, "max": 7, "shard": [2, 3]}))
    [2, 8]
    """
    chosen = range(0, parameters["images"], parameters["skip"])[: parameters["max"]]
    shard = parameters["shard"]
    return chosen if shard is None else chosen[shard[0] - 1 :: shard[1]]


def processing_order(parameters: dict[str, Any]) -> Sequence[int]:
    """Return the data-set indices that a run covers, in processing order.

    By default, the indices increase. In random order, they are sorted by the SHA-256 of "order", the seed and the
    index. The random order depends neither on the platform nor on the versions of libraries, and the images of a shard
    keep the relative order that they have in the whole run.

    >>> selection = {"images": 20, "skip": 2, "max": 7, "shard": None}
    >>> processing_order(selection)
    range(0, 14, 2)
    >>> processing_order(selection | {"order": "random", "order_seed": 0})
    array('I', [10, 2, 8, 6, 0, 4, 12])
    """
    chosen = chosen_indices(parameters)
    if "order" not in parameters:
        return chosen
    prefix = f"order {parameters['order_seed']} "
    digests = np.empty(len(chosen), dtype="S32")
    for position, index in enumerate(chosen):
        digests[position] = hashlib.sha256(f"{prefix}{index}".encode()).digest()
    # Four bytes per image, since the order stays in memory while a run of many images is computed.
    indices = np.asarray(chosen, dtype=np.int64)[np.argsort(digests)]
    return array("I", indices.astype(np.uintc).tobytes())

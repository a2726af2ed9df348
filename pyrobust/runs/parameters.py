"""Parameters of a run: their names, valid values, and the differences between two runs."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pyrobust.checks import WORDS, is_finite, is_integer
from pyrobust.errors import InputError
from pyrobust.grid import read_grid

#: Execution settings that do not change results; shards of one sweep may differ in them.
EXECUTION = frozenset({"shard", "order", "order_seed", "batch_size", "chunk", "device", "threads"})

#: The same for runs on a grid, where batch size and device are part of the certified classifier. So are threads, which
#: are compared as part of the machine (`Identity.machine`).
EXECUTION_ON_GRID = frozenset({"shard", "order", "order_seed", "chunk", "threads"})

#: Parameters of a sequential run that define its certification rule.
RULE = ("radii", "n", "alpha", "hybrid", "two_class")

#: Largest image in a file, in float32 numbers: SQLite limits a blob to 1e9 bytes.
MAX_PIXELS = 1 << 27

# Longer lists are shown in messages by their first difference.
_MAX_SHOWN = 8


def is_name(value: Any) -> bool:
    r"""Whether a value is a valid name for run files and logs: 1 to 64 printable ASCII characters.

    >>> is_name("apgd-ce"), is_name("two\tcolumns")
    (True, False)
    """
    return _word(value) and value.isascii()


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: is_integer(value, low, high)


def _word(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()


def _shard(value: Any) -> bool:
    if value is None:
        return True
    pair = isinstance(value, list) and len(value) == 2 and all(map(_integer(1, WORDS), value))
    return pair and value[0] <= value[1]


def _normalize(value: Any) -> bool:
    if value is None:
        return True
    parts = value if isinstance(value, list) and len(value) == 2 else [None]
    return all(isinstance(part, list) and all(map(is_finite, part)) for part in parts)


def _grid_step(value: Any) -> bool:
    try:
        return isinstance(value, str) and str(read_grid(value)) == value != "auto"
    except InputError:
        return False


def _one_of(*choices: Any) -> Callable[[Any], bool]:
    return lambda value: value in choices and type(value) in map(type, choices)


def _optional(valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or valid(value)


def _range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_finite, value)) and value[0] < value[1]


def _shape(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(map(_integer(1, WORDS), value))
        and math.prod(value) <= MAX_PIXELS
    )


def _setting(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 256 and value.isprintable()
    return value is None or isinstance(value, bool) or is_finite(value)


def _settings(value: Any) -> bool:
    return (
        isinstance(value, dict) and len(value) <= 1024 and all(_word(name) and _setting(value[name]) for name in value)
    )


def _increasing(value: Any) -> bool:
    finite = isinstance(value, list) and 0 < len(value) <= 1024 and all(map(is_finite, value))
    return finite and all(a < b for a, b in pairwise(value))


_COMMON: dict[str, Callable[[Any], bool]] = {
    "num_classes": _integer(1, WORDS),
    "dtype": _word,
    "memory_format": _word,
    "images": _integer(1, WORDS),
    "skip": _integer(1, WORDS),
    "max": _optional(_integer(1, WORDS)),
    "shard": _shard,
    "batch_size": _integer(1, WORDS),
    "chunk": _integer(1, WORDS),
    "device": _word,
}
_SMOOTHING: dict[str, Callable[[Any], bool]] = _COMMON | {
    "sigma": lambda value: is_finite(value) and value > 0,
    "noise": _word,
    "norm": _word,
    "normalize": _normalize,
    "n": _integer(1, WORDS),
    "alpha": lambda value: is_finite(value) and 0 < value < 1,
    "seed": _integer(0, (1 << 64) - 1),
}
# Additional parameters of certifications and predictions on a grid; attacks on one have the grid alone.
_GRID: dict[str, Callable[[Any], bool]] = {
    "grid": _grid_step,
    "delta": lambda value: is_finite(value) and 0 < value <= 1,
}
# Additional parameters of runs that take their images in random order.
_ORDER: dict[str, Callable[[Any], bool]] = {"order": _one_of("random"), "order_seed": _integer(0, (1 << 64) - 1)}
# Execution settings that some runs lack: threads of a forward pass, and chunks of a sequential run.
_OPTIONAL: dict[str, Callable[[Any], bool]] = {"threads": _integer(1, 65536), "chunk": _integer(1, WORDS)}
_ATTACK: dict[str, Callable[[Any], bool]] = _COMMON | {
    "attack": is_name,
    "norm": _one_of("linf", "l2", "l1", "l0"),
    "clip": _range,
    "settings": _settings,
    "seed": _optional(_integer(0, (1 << 64) - 1)),
    "targeted": _one_of(False),
    "examples": _one_of(False, True),
    "shape": _shape,
    "example_dtype": _one_of("float32"),
}
#: Parameters of each layout (`layout_of`), with a test of their values.
PARAMETERS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "certify": _SMOOTHING | {"n0": _integer(1, WORDS), "method": _word},
    # Chunks are optional: without them, images of the whole run are packed together.
    "sequential": {name: valid for name, valid in _SMOOTHING.items() if name != "chunk"}
    | {
        "n0": _integer(1, WORDS),
        "method": _one_of("sequential"),
        "radii": lambda value: _increasing(value) and value[0] >= 0,
        "hybrid": lambda value: is_finite(value) and 0 <= value < 1,
        "two_class": _one_of(False, True),
    },
    "predict": _SMOOTHING,
    "attack": _ATTACK | {"epsilon": lambda value: is_finite(value) and value >= 0},
    "minimum": _ATTACK | {"minimum": _one_of(True)},
    "certified-first": _ATTACK
    | {"epsilon": lambda value: is_finite(value) and value >= 0, "certify_first": _one_of(True)},
    "verify": _COMMON
    | {
        "method": _one_of("cascade", "ibp", "crown-ibp", "crown", "lipschitz"),
        "norm": _one_of("linf", "l2", "l1"),
        "epsilons": _optional(lambda value: _increasing(value) and value[0] > 0),
        "largest": _optional(lambda value: is_finite(value) and value >= 0),
        "clip": _optional(_range),
        "sound": _one_of(False, True),
        "semantics": _one_of("real", "float32"),
        "attack": _optional(is_name),
        "settings": _settings,
        "seed": _optional(_integer(0, (1 << 64) - 1)),
        "examples": _one_of(False, True),
        "shape": _shape,
        "example_dtype": _one_of("float32"),
    },
    "sandwich": _COMMON
    | {
        "method": _one_of("cascade", "ibp", "crown-ibp", "crown", "lipschitz"),
        "norm": _one_of("linf", "l2", "l1"),
        "epsilons": _optional(lambda value: _increasing(value) and value[0] > 0),
        "clip": _range,
        "semantics": _one_of("real", "float32"),
        "attack": is_name,
        "settings": _settings,
        "seed": _optional(_integer(0, (1 << 64) - 1)),
        "examples": _one_of(False, True),
        "shape": _shape,
        "example_dtype": _one_of("float32"),
    },
    "smoothed-sandwich": _SMOOTHING
    | {
        "n0": _integer(1, WORDS),
        "n_attack": _integer(1, WORDS),
        "alpha_attack": lambda value: is_finite(value) and 0 < value < 1,
        "clip": _range,
        "attack": is_name,
        "settings": _settings,
        "examples": _one_of(False, True),
        "shape": _shape,
        "example_dtype": _one_of("float32"),
    },
}


def layout_of(kind: str, parameters: Any) -> str:
    """Return the layout of a run's columns and parameters: its kind, or one of the others of ``PARAMETERS``.

    Parameters may be untrusted.

    >>> layout_of("certify", {"method": "sequential"}), layout_of("certify", {"method": "fixed"})
    ('sequential', 'certify')
    >>> layout_of("attack", {"minimum": True}), layout_of("attack", {"epsilon": 0.1})
    ('minimum', 'attack')
    """
    if not isinstance(parameters, dict):
        return kind
    if kind == "certify" and parameters.get("method") == "sequential":
        return "sequential"
    if kind == "sandwich" and "sigma" in parameters:
        return "smoothed-sandwich"
    if kind == "attack" and "certify_first" in parameters:
        return "certified-first"
    return "minimum" if kind == "attack" and "minimum" in parameters else kind


def check_parameters(kind: str, parameters: Any) -> None:
    """Raise ValueError if untrusted parameters, as parsed from JSON, are missing, unknown or out of range.

    >>> check_parameters("predict", example("predict"))
    """
    valid = PARAMETERS[layout_of(kind, parameters)]
    if isinstance(parameters, dict) and "grid" in parameters:
        smoothed = kind in ("certify", "predict") or "sigma" in parameters
        grid = _GRID if smoothed else {"grid": _grid_step} if kind == "attack" else {}
        valid = valid | grid
    if isinstance(parameters, dict) and "order" in parameters:
        valid = valid | _ORDER
    if isinstance(parameters, dict):
        valid = valid | {name: test for name, test in _OPTIONAL.items() if name in parameters}
    if not isinstance(parameters, dict) or set(parameters) != set(valid):
        raise ValueError("parameters do not match this kind of run")
    for name, value in parameters.items():
        if not valid[name](value):
            raise ValueError(f"parameter {name}: {str(value)[:40]}")


def describe_difference(name: str, first: Any, second: Any, wording: tuple[str, str] = ("stored", "given")) -> str:
    """Describe two values of one parameter that differ; for long lists, name their first difference.

    >>> describe_difference("sigma", 0.25, 0.5)
    'sigma: 0.25 stored, 0.5 given'
    >>> describe_difference("radii", [0.5] * 9, [0.5] * 9 + [1.0])
    'radii: 9 stored, 10 given; first difference at number 10: none stored, 1.0 given'
    """
    lists = isinstance(first, list) and isinstance(second, list)
    if not lists or max(len(first), len(second)) <= _MAX_SHOWN:
        return f"{name}: {first!r} {wording[0]}, {second!r} {wording[1]}"
    shorter = min(len(first), len(second))
    place = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), shorter)
    shown = [repr(values[place]) if place < len(values) else "none" for values in (first, second)]
    return (
        f"{name}: {len(first)} {wording[0]}, {len(second)} {wording[1]}; first difference at number {place + 1}: "
        f"{shown[0]} {wording[0]}, {shown[1]} {wording[1]}"
    )


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
    """Lift the entries of dictionary parameters to the top level, under qualified names where names collide."""
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        entries = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{entry}" if entry in parameters else entry: item for entry, item in entries}
        if not isinstance(value, dict):
            flat[name] = value
    return flat


def chosen_indices(parameters: dict[str, Any]) -> range:
    """Return the data-set indices that a run covers, in order.

    Take every ``skip``-th image, then the first ``max`` of those; shard I of K takes every K-th of these from the I-th.

    >>> list(chosen_indices({"images": 20, "skip": 2, "max": 7, "shard": [2, 3]}))
    [2, 8]
    """
    chosen = range(0, parameters["images"], parameters["skip"])[: parameters["max"]]
    shard = parameters["shard"]
    return chosen if shard is None else chosen[shard[0] - 1 :: shard[1]]


def processing_order(parameters: dict[str, Any]) -> Sequence[int]:
    """Return the data-set indices that a run covers in the order in which it takes them.

    By default they increase. In random order they are sorted by the SHA-256 of "order", the seed and the index, which
    depends neither on the platform nor on the versions of libraries, and is the same within every shard.

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
    for place, index in enumerate(chosen):
        digests[place] = hashlib.sha256(f"{prefix}{index}".encode()).digest()
    # Four bytes an image, since the order is kept while a run of many images is computed.
    indices = np.asarray(chosen, dtype=np.int64)[np.argsort(digests)]
    return array("I", indices.astype(np.uintc).tobytes())


def example(kind: str) -> dict[str, Any]:
    """Return valid parameters of a small run of a layout, for doctests and tests.

    >>> example("certify")["n0"]
    100
    """
    method: dict[str, Any] = {
        "sigma": 0.25,
        "noise": "gaussian",
        "norm": "l2",
        "normalize": None,
        "n": 1000,
        "alpha": 0.001,
    }
    if kind == "sequential":
        method |= {"radii": [0.25, 0.5], "hybrid": 0.01, "two_class": False}
    if kind in ("attack", "minimum", "certified-first"):
        method = {
            "attack": "FGSM",
            "norm": "linf",
            **({"minimum": True} if kind == "minimum" else {"epsilon": 0.25}),
            **({"certify_first": True} if kind == "certified-first" else {}),
            "clip": [0.0, 1.0],
            "settings": {"loss": "ce"},
            "targeted": False,
            "examples": True,
            "shape": [1, 2, 2],
            "example_dtype": "float32",
        }
    if kind in ("verify", "sandwich"):
        own = {"largest": None, "sound": True} if kind == "verify" else {}
        method = own | {
            "method": "cascade",
            "norm": "linf",
            "epsilons": [0.1, 0.2],
            "clip": [0.0, 1.0],
            "semantics": "real",
            "attack": None if kind == "verify" else "FMN",
            "settings": {},
            "examples": kind == "sandwich",
            "shape": [1, 2, 2],
            "example_dtype": "float32",
        }
    if kind == "smoothed-sandwich":
        method |= {
            "n0": 100,
            "n_attack": 1000,
            "alpha_attack": 0.001,
            "clip": [0.0, 1.0],
            "attack": "SmoothedAttack",
            "settings": {},
            "examples": True,
            "shape": [1, 2, 2],
            "example_dtype": "float32",
        }
    return {
        "num_classes": 10,
        **method,
        "seed": 0,
        "dtype": "float32",
        "memory_format": "contiguous_format",
        "images": 20,
        "skip": 1,
        "max": None,
        "shard": None,
        "batch_size": 256,
        **({} if kind == "sequential" else {"chunk": 4}),
        "device": "cpu",
        **({"n0": 100, "method": "fixed"} if kind == "certify" else {}),
        **({"n0": 100, "method": "sequential"} if kind == "sequential" else {}),
    }

"""The parameters of a run: which there are, what is valid, and how two runs differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from pyrobust.checks import WORDS, is_finite, is_integer
from pyrobust.errors import InputError
from pyrobust.smoothing.grid import read_grid

#: How the work was done, not what was computed: shards of one sweep may differ in these.
EXECUTION = frozenset({"shard", "batch_size", "chunk", "device"})

#: The same where a grid is guaranteed: the batch is part of the classifier, and so is what computes it.
EXECUTION_ON_GRID = frozenset({"shard", "chunk"})

#: Parameters of a sequential run that define its certification rule.
RULE = ("radii", "n", "alpha", "hybrid", "two_class")

#: Of one image in a file: SQLite keeps at most 1e9 bytes in one place.
MAX_PIXELS = 1 << 27

# Of a list in a message.
_MOST_SHOWN = 8


def is_name(value: Any) -> bool:
    r"""Whether a value is a name that a file and a log can keep: 1 to 64 printable characters of ASCII.

    >>> is_name("apgd-ce"), is_name("two\tcolumns")
    (True, False)
    """
    return _word(value) and value.isascii()


def _whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: is_integer(value, low, high)


def _word(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()


def _shard(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and len(value) == 2 and all(map(_whole(1, WORDS), value)) and value[0] <= value[1]


def _normalize(value: Any) -> bool:
    if value is None:
        return True
    parts = value if isinstance(value, list) and len(value) == 2 else [None]
    return all(isinstance(part, list) and all(map(is_finite, part)) for part in parts)


def _step(value: Any) -> bool:
    try:
        return isinstance(value, str) and str(read_grid(value)) == value != "auto"
    except InputError:
        return False


def _one_of(*words: Any) -> Callable[[Any], bool]:
    return lambda value: value in words and type(value) in map(type, words)


def _range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_finite, value)) and value[0] < value[1]


def _shape(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(map(_whole(1, WORDS), value))
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


def _epsilons(value: Any) -> bool:
    if value is None:
        return True
    rising = isinstance(value, list) and 0 < len(value) <= 1024 and all(map(is_finite, value))
    return rising and value[0] > 0 and all(a < b for a, b in pairwise(value))


def _radii(value: Any) -> bool:
    rising = isinstance(value, list) and 0 < len(value) <= 1024 and all(map(is_finite, value))
    return rising and value[0] >= 0 and all(a < b for a, b in pairwise(value))


_COMMON: dict[str, Callable[[Any], bool]] = {
    "num_classes": _whole(1, WORDS),
    "dtype": _word,
    "memory_format": _word,
    "images": _whole(1, WORDS),
    "skip": _whole(1, WORDS),
    "max": lambda value: value is None or _whole(1, WORDS)(value),
    "shard": _shard,
    "batch_size": _whole(1, WORDS),
    "chunk": _whole(1, WORDS),
    "device": _word,
}
_SMOOTHING: dict[str, Callable[[Any], bool]] = _COMMON | {
    "sigma": lambda value: is_finite(value) and value > 0,
    "noise": _word,
    "norm": _word,
    "normalize": _normalize,
    "n": _whole(1, WORDS),
    "alpha": lambda value: is_finite(value) and 0 < value < 1,
    "seed": _whole(0, (1 << 64) - 1),
}
# Of certifications and predictions on a grid, besides.
_GRID: dict[str, Callable[[Any], bool]] = {"grid": _step, "delta": lambda value: is_finite(value) and 0 < value <= 1}
#: The parameters of each layout of run (`layout_of`), with what is valid.
PARAMETERS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "certify": _SMOOTHING | {"n0": _whole(1, WORDS), "method": _word},
    # Without chunks: images come and go one by one.
    "sequential": {name: valid for name, valid in _SMOOTHING.items() if name != "chunk"}
    | {
        "n0": _whole(1, WORDS),
        "method": _one_of("sequential"),
        "radii": _radii,
        "hybrid": lambda value: is_finite(value) and 0 <= value < 1,
        "two_class": _one_of(False, True),
    },
    "predict": _SMOOTHING,
    "attack": _COMMON
    | {
        "attack": is_name,
        "norm": _one_of("linf", "l2", "l1"),
        "epsilon": lambda value: is_finite(value) and value >= 0,
        "clip": _range,
        "settings": _settings,
        "seed": lambda value: value is None or _whole(0, (1 << 64) - 1)(value),
        "targeted": _one_of(False),
        "examples": _one_of(False, True),
        "shape": _shape,
        "example_dtype": _one_of("float32"),
    },
    "verify": _COMMON
    | {
        "method": _one_of("cascade", "ibp", "crown-ibp", "crown", "lipschitz"),
        "norm": _one_of("linf", "l2", "l1"),
        "epsilons": _epsilons,
        "largest": lambda value: value is None or (is_finite(value) and value >= 0),
        "clip": lambda value: value is None or _range(value),
        "sound": _one_of(False, True),
        "semantics": _one_of("real", "float32"),
        "attack": lambda value: value is None or is_name(value),
        "settings": _settings,
        "seed": lambda value: value is None or _whole(0, (1 << 64) - 1)(value),
        "examples": _one_of(False, True),
        "shape": _shape,
        "example_dtype": _one_of("float32"),
    },
}


def layout_of(kind: str, parameters: Any) -> str:
    """Which columns and parameters a run has: those of its kind, but for sequential certifications.

    Args:
        kind: of the run.
        parameters: of it; they may come out of a file.

    >>> layout_of("certify", {"method": "sequential"}), layout_of("certify", {"method": "fixed"})
    ('sequential', 'certify')
    """
    sequential = kind == "certify" and isinstance(parameters, dict) and parameters.get("method") == "sequential"
    return "sequential" if sequential else kind


def check_parameters(kind: str, parameters: Any) -> None:
    """Checks parameters that came out of a file.

    Args:
        kind: of the run.
        parameters: as JSON gave them.

    Raises:
        ValueError: one is missing, unknown or out of range.

    >>> check_parameters("predict", example("predict"))
    """
    valid = PARAMETERS[layout_of(kind, parameters)]
    if kind in ("certify", "predict") and isinstance(parameters, dict) and "grid" in parameters:
        valid = valid | _GRID
    if not isinstance(parameters, dict) or set(parameters) != set(valid):
        raise ValueError("parameters are not those of this kind of run")
    for name, value in parameters.items():
        if not valid[name](value):
            raise ValueError(f"parameter {name}: {str(value)[:40]}")


def describe_differences(there: dict[str, Any], now: dict[str, Any], ignore: frozenset[str] = frozenset()) -> list[str]:
    """Where two sets of parameters differ, one phrase each; of parameters that are dictionaries, each entry.

    >>> describe_differences({"sigma": 0.25, "n": 10}, {"sigma": 0.5, "n": 10})
    ['sigma: 0.25 there, 0.5 now']
    >>> describe_differences({"settings": {"steps": 10}}, {"settings": {"steps": 20}})
    ['steps: 10 there, 20 now']
    >>> describe_differences({"radii": [0.5] * 9}, {"radii": [0.5] * 9 + [1.0]})
    ['radii: 9 there, 10 now; the first that differs is number 10: none there, 1.0 now']
    """
    there, now = _flat(there), _flat(now)
    names = [name for name in {**there, **now} if name not in ignore and there.get(name) != now.get(name)]
    return [_difference(name, there.get(name), now.get(name)) for name in names]


def _difference(name: str, there: Any, now: Any) -> str:
    """One phrase; of long lists where they part."""
    if not (isinstance(there, list) and isinstance(now, list) and max(len(there), len(now)) > _MOST_SHOWN):
        return f"{name}: {there!r} there, {now!r} now"
    place = next((i for i, (a, b) in enumerate(zip(there, now, strict=False)) if a != b), min(len(there), len(now)))
    first, second = (repr(one[place]) if place < len(one) else "none" for one in (there, now))
    return (
        f"{name}: {len(there)} there, {len(now)} now; the first that differs is number {place + 1}: "
        f"{first} there, {second} now"
    )


def _flat(parameters: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        entries = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}.{entry}" if entry in parameters else entry: item for entry, item in entries}
        if not isinstance(value, dict):
            flat[name] = value
    return flat


def chosen_indices(parameters: dict[str, Any]) -> range:
    """The data-set indices that a run is to cover, in order.

    Every ``skip``-th of all images, the first ``max`` of those, and of these, for shard I of K, every K-th from the
    I-th on.

    >>> list(chosen_indices({"images": 20, "skip": 2, "max": 7, "shard": [2, 3]}))
    [2, 8]
    """
    chosen = range(0, parameters["images"], parameters["skip"])[: parameters["max"]]
    shard = parameters["shard"]
    return chosen if shard is None else chosen[shard[0] - 1 :: shard[1]]


def example(kind: str) -> dict[str, Any]:
    """Valid parameters of a small run of a layout, for examples and tests.

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
    if kind == "attack":
        method = {
            "attack": "FGSM",
            "norm": "linf",
            "epsilon": 0.25,
            "clip": [0.0, 1.0],
            "settings": {"loss": "ce"},
            "targeted": False,
            "examples": True,
            "shape": [1, 2, 2],
            "example_dtype": "float32",
        }
    if kind == "verify":
        method = {
            "method": "cascade",
            "norm": "linf",
            "epsilons": [0.1, 0.2],
            "largest": None,
            "clip": [0.0, 1.0],
            "sound": True,
            "semantics": "real",
            "attack": None,
            "settings": {},
            "examples": False,
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

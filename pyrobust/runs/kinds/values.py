"""Tests of untrusted values of parameters, as parsed from JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

from pyrobust.checks import WORDS, is_finite, is_integer
from pyrobust.errors import InputError
from pyrobust.grid import read_grid
from pyrobust.late import numpy as np

Valid: TypeAlias = Callable[[Any], bool]

#: Largest image in a file, in float32 numbers: SQLite limits a blob to 1e9 bytes.
MAX_PIXELS = 1 << 27


def parse_json(text: str) -> Any:
    """Parse untrusted JSON; raise ValueError if it is malformed or nests too deeply for Python's stack.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: JSON that nests too deep
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that nests too deep") from None


def is_name(value: Any) -> bool:
    r"""Whether a value is a valid name for run files and logs: 1 to 64 printable ASCII characters.

    >>> is_name("apgd-ce"), is_name("two\tcolumns")
    (True, False)
    """
    return is_word(value) and value.isascii()


def is_word(value: Any) -> bool:
    """Whether a value is a text of 1 to 64 printable characters."""
    return isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()


def integer(low: int, high: int) -> Valid:
    """Return a test that accepts the integers from ``low`` to ``high``."""
    return lambda value: is_integer(value, low, high)


def finite(valid: Callable[[float], bool]) -> Valid:
    """Return a test that accepts finite numbers that pass another test."""
    return lambda value: is_finite(value) and valid(value)


def one_of(*choices: Any) -> Valid:
    """Return a test that accepts the given values, but not equal values of another type, such as 1 for True."""
    return lambda value: value in choices and type(value) in map(type, choices)


def none_or(valid: Valid) -> Valid:
    """Return a test that accepts None and values that pass another test."""
    return lambda value: value is None or valid(value)


def increasing(valid: Callable[[float], bool]) -> Valid:
    """Return a test that accepts lists of 1 to 1024 increasing finite numbers; the first must pass another test."""
    return lambda value: (
        isinstance(value, list)
        and 0 < len(value) <= 1024
        and all(map(is_finite, value))
        and all(a < b for a, b in pairwise(value))
        and valid(value[0])
    )


def is_shard(value: Any) -> bool:
    """Whether a value is None or a pair [I, K] with I <= K."""
    if value is None:
        return True
    pair = isinstance(value, list) and len(value) == 2 and all(map(count, value))
    return pair and value[0] <= value[1]


def is_normalization(value: Any) -> bool:
    """Whether a value is None or a pair of lists: means and standard deviations."""
    if value is None:
        return True
    pair = value if isinstance(value, list) and len(value) == 2 else [None]
    return all(isinstance(numbers, list) and all(map(is_finite, numbers)) for numbers in pair)


def is_grid_step(value: Any) -> bool:
    """Whether a value is the text of a grid step, spelled exactly as ``str`` spells the result of `read_grid`."""
    try:
        return isinstance(value, str) and str(read_grid(value)) == value != "auto"
    except InputError:
        return False


def is_range(value: Any) -> bool:
    """Whether a value is a pair of increasing numbers."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_finite, value)) and value[0] < value[1]


def is_clip(value: Any) -> bool:
    """Whether a value is a clip range: None, two increasing numbers, or two finite lists low <= high of equal shape.

    >>> is_clip(None), is_clip([[0.0, 0.0], [1.0, 2.0]]), is_clip([[0.0, 0.0], [1.0, "2"]])
    (True, True, False)
    """
    if value is None or is_range(value):
        return True
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(side, list) for side in value):
        return False
    try:
        low, high = (np.array(side) for side in value)
    except ValueError:  # lists of different lengths
        return False
    numbers = all(side.dtype.kind in "if" and bool(np.isfinite(side).all()) for side in (low, high))
    return numbers and low.shape == high.shape and bool((low <= high).all())


def is_box(value: Any) -> bool:
    """Whether a value is a nested list of finite radii >= 0, not all 0.

    >>> is_box([0.0, 0.5]), is_box([0.0, 0.0]), is_box([[0.1], [0.1, 0.2]]), is_box([0.5, -1.0])
    (True, False, False, False)
    """
    if not isinstance(value, list):
        return False
    try:
        radii = np.array(value)
    except ValueError:  # lists of different lengths
        return False
    return radii.dtype.kind in "if" and bool((np.isfinite(radii) & (radii >= 0)).all() and radii.any())


def frozen(value: Any) -> Any:
    """Return nested lists as nested tuples, which compare and hash by value.

    >>> frozen([0.0, [1.0]])
    (0.0, (1.0,))
    """
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def is_shape(value: Any) -> bool:
    """Whether a value is an input shape, [C, H, W] or [D], that a file can hold."""
    return (
        isinstance(value, list) and len(value) in (1, 3) and all(map(count, value)) and math.prod(value) <= MAX_PIXELS
    )


def are_settings(value: Any) -> bool:
    """Whether a value is a valid dictionary of attack settings: short texts, finite numbers, bools or None, by name."""
    return (
        isinstance(value, dict)
        and len(value) <= 1024
        and all(is_word(name) and _setting(value[name]) for name in value)
    )


def _setting(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= 256 and value.isprintable()
    return value is None or isinstance(value, bool) or is_finite(value)


#: Test for counts of images, samples or rows.
count: Valid = integer(1, WORDS)
#: Test for seeds.
seed: Valid = integer(0, (1 << 64) - 1)
#: Test for probabilities of error.
alpha: Valid = finite(lambda value: 0 < value < 1)
#: Test for perturbation radii.
radius: Valid = finite(lambda value: value >= 0)
#: Test for increasing epsilons of a verification.
epsilons: Valid = none_or(increasing(lambda first: first > 0))

"""Values as arguments, in messages and in what an interpreter shows of a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from pyrobust.errors import InputTypeError


def number(name: str, value: Any) -> float:
    """The number that an argument is.

    A string is none, though it may be read as one, nor is a truth value.

    Args:
        name: of the argument.
        value: a number, an array or a tensor of one, and the like.

    Returns:
        A float, infinite where an integer is too large for one; whether it is in range is for the caller to say.

    Raises:
        InputTypeError: something else.

    >>> number("sigma", 1)
    1.0
    >>> number("sigma", "1")
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: sigma: expected a number, got '1'
    """
    if not isinstance(value, bool | str | bytes):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
        except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several numbers
            pass
    raise InputTypeError(f"{name}: expected a number, got {value!r:.200}")


def numbers(name: str, values: Iterable[Any]) -> list[float]:
    """The numbers of an argument that is a sequence of them.

    A string is none, though each of its characters may be read as one; neither is a number in quotes.

    Args:
        name: of the argument.
        values: a list, an array, a tensor and the like.

    Returns:
        Floats; whether they are in range is for the caller to say.

    Raises:
        InputTypeError: a string, no sequence, or one that holds something else.

    >>> numbers("radii", (0, 0.25))
    [0.0, 0.25]
    >>> numbers("radii", "25")
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: radii: expected a sequence of numbers, got '25'
    """
    given = items(name, values)
    try:
        if not any(isinstance(value, str | bytes) for value in given):
            return [float(value) for value in given]
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several numbers
        pass
    raise InputTypeError(f"{name}: expected a sequence of numbers, got [{some(given)}]")


def items(name: str, values: Iterable[Any]) -> list[Any]:
    """The items of an argument that is a sequence of numbers, as they are.

    Args:
        name: of the argument.
        values: a list, an array, a tensor and the like.

    Raises:
        InputTypeError: a string, or no sequence.

    >>> items("radii", (0, 0.25))
    [0, 0.25]
    """
    if not isinstance(values, str | bytes):
        with suppress(TypeError):  # of what is no sequence, and of a tensor without dimensions
            return list(values)
    raise InputTypeError(f"{name}: expected a sequence of numbers, got {values!r}")


def array(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A number or an array of numbers, as an array.

    Args:
        name: of the argument.
        values: of any shape.

    Raises:
        InputTypeError: strings, or what is no array.

    >>> array("p_lower", [0.5, 0.75])
    array([0.5 , 0.75])
    """
    with suppress(TypeError, ValueError):
        given = np.asarray(values)
        if given.dtype.kind not in "US" and not any(isinstance(value, str | bytes) for value in _objects(given)):
            return given.astype(np.float64)
    raise InputTypeError(f"{name}: expected a number or an array of numbers, got {values!r:.200}")


def some(values: Sequence[Any], form: Callable[[Any], str] = repr, most: int = 5) -> str:
    """The first few of some values, and how many more there are.

    Args:
        values: any.
        form: writes one of them.
        most: of them are written.

    >>> some([0.5, "a"]), some(range(1, 2001))
    ("0.5, 'a'", '1, 2, 3, 4, 5 and 1,995 more')
    """
    more = f" and {len(values) - most:,} more" if len(values) > most else ""
    return ", ".join(map(form, values[:most])) + more


def summary(result: object, **facts: Any) -> str:
    """What an interpreter shows of a result: what it is about, without its arrays.

    Args:
        result: of any class.
        facts: by name, in this order; those that are None are left out.

    >>> class Found: ...
    >>> summary(Found(), images=2, sigma=0.25, grid=None)
    'Found(images=2, sigma=0.25)'
    """
    shown = ", ".join(f"{name}={value!r}" for name, value in facts.items() if value is not None)
    return f"{type(result).__name__}({shown})"


def _objects(values: npt.NDArray[Any]) -> Iterable[Any]:
    """What numpy has no format for, such as fractions and lists that mix strings with numbers."""
    return values.flat if values.dtype.kind == "O" else ()

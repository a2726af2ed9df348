"""Values as arguments, in messages and in what an interpreter shows of a result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyrobust.errors import InputTypeError

# Of a long list in a message.
_NAMED = 5


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
    try:
        given = None if isinstance(values, str | bytes) else list(values)
        if given is not None and not any(isinstance(value, str | bytes) for value in given):
            return [float(value) for value in given]
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several numbers
        pass
    got = some(values) if isinstance(values, list | tuple) else repr(values)
    raise InputTypeError(f"{name}: expected a sequence of numbers, got {got}") from None


def some(values: Iterable[Any]) -> str:
    """The first few of some values, and how many more there are.

    Args:
        values: any.

    >>> some([0.5, "a"]), some(range(1, 2001))
    ("0.5, 'a'", '1, 2, 3, 4, 5 and 1,995 more')
    """
    shown = [repr(value) for value in values]
    more = f" and {len(shown) - _NAMED:,} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + more


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

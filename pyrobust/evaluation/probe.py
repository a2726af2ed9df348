"""The first look at a model: what it does with one image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyrobust.errors import ModelError, PyrobustError


@contextmanager
def probing(shape: Sequence[int]) -> Iterator[None]:
    """Says that a model failed on one image, where it was given one to see whether it takes it.

    A model that does not fit the images is the likeliest mistake of all, and its traceback says little. What fails
    later, in the middle of a sweep, keeps its own.

    Args:
        shape: of the image, without batch dimension.

    Raises:
        ModelError: whatever the model raised, as its cause; this package's errors pass unchanged.

    >>> with probing((1, 8, 8)):
    ...     raise ValueError("expected 3 channels")
    Traceback (most recent call last):
    pyrobust.errors.ModelError: model: failed on one image of shape (1, 8, 8): ValueError: expected 3 channels
    """
    try:
        yield
    except PyrobustError:
        raise
    except Exception as error:
        reason = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        raise ModelError(f"model: failed on one image of shape {tuple(shape)}: {reason}") from error

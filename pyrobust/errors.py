"""The exceptions pyrobust raises.

Each is also the built-in exception that a caller would expect, so ``except ValueError`` keeps working. Messages say
which argument or file, what was expected, what came and what to do.

>>> from pyrobust.errors import InputError
>>> issubclass(InputError, ValueError)
True
"""

from __future__ import annotations


class PyrobustError(Exception):
    """Base class: ``except PyrobustError`` catches everything the library raises on purpose."""


class InputError(PyrobustError, ValueError):
    """An argument has a value, shape or range that the call cannot use."""


class InputTypeError(PyrobustError, TypeError):
    """An argument has a type or dtype that the call cannot use."""


class FileFormatError(PyrobustError, ValueError):
    """A file is missing, truncated, of another format, or refused because reading it would run code."""


class StoreError(PyrobustError, RuntimeError):
    """A run cannot be written or continued: other parameters, a newer schema, a full disk."""


class ModelError(PyrobustError, RuntimeError):
    """The model failed, or returned something other than logits of the expected shape."""


class MissingExtraError(PyrobustError, RuntimeError):
    """An optional dependency is not installed; the message names the extra that brings it."""

"""The exceptions pyrobust raises.

Each is also a built-in exception, so ``except ValueError`` keeps working. Messages name the argument or file, what was
expected, what was given and what to do.

>>> from pyrobust.errors import InputError
>>> issubclass(InputError, ValueError)
True
"""

from __future__ import annotations


class PyrobustError(Exception):
    """Base class of every exception that the library raises on purpose."""


class InputError(PyrobustError, ValueError):
    """An argument has a value, shape or range that the call cannot use."""


class InputTypeError(PyrobustError, TypeError):
    """An argument has a type or dtype that the call cannot use."""


class FileFormatError(PyrobustError, ValueError):
    """A file is missing, truncated, of another format, or refused because reading it would run code."""


class StoreError(PyrobustError, RuntimeError):
    """A run cannot be written or resumed: other parameters, a newer schema, a full disk."""


class ModelError(PyrobustError, RuntimeError):
    """The model failed, or returned something other than logits of the expected shape."""


class RowDependenceError(ModelError):
    """The model's output for a row depends on other rows of the batch, or on its place, or changes between calls."""


class CrossingError(PyrobustError, RuntimeError):
    """Adversarial examples inside certified balls, more than chance explains: a certificate is false."""


class WorkerError(PyrobustError, RuntimeError):
    """Workers cannot be started or reached, differ from the driver, or died again and again."""


class MissingExtraError(PyrobustError, RuntimeError):
    """An optional dependency is not installed; the message names the extra that installs it."""

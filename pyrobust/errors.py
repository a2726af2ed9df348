"""The exceptions that pyrobust raises.

Each exception class derives from a built-in one, so ``except ValueError`` keeps working. Messages name the argument or
file, what was expected, what was given and what to do.

>>> from pyrobust.errors import InputError
>>> issubclass(InputError, ValueError)
True
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class PyrobustError(Exception):
    """Base class of every exception that the library raises on purpose."""


class _ArgumentError(PyrobustError):
    """An error about an argument; fields hold the parts of its message."""

    def __init__(
        self,
        argument: str,
        expected: str = "",
        got: object = "",
        hint: str = "",
        *,
        problem: str = "",
        where: object = "",
    ) -> None:
        if not expected and not problem:
            argument, problem = "", argument
        self.function, _, self.argument = argument.rpartition(": ")
        self.expected, self.got, self.hint = expected, f"{got}", hint
        self.where, self.problem = f"{where}", problem
        super().__init__(str(self))  # pickle and copy call the class with this message, then restore the fields

    def __str__(self) -> str:
        got = f", got {self.got}" if self.got else ""
        problem = f"expected {self.expected}{got}" if self.expected else self.problem
        about = ": ".join(filter(None, (self.function, self.argument, self.where, problem)))
        return f"{about}; {self.hint}" if self.hint else about

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class InputError(_ArgumentError, ValueError):
    """An argument has a value, shape or range that the call cannot use.

    Args:
        argument: the name of the argument, or the names of several arguments, joined by ", ". To name the function at
            the beginning of the message, pass ``function: argument``. If the error is not about an argument, pass the
            whole message as ``argument``, and leave the other fields empty.
        expected: the expected value.
        got: the value, or a text about it.
        hint: what to do.
        problem: what is wrong, in place of ``expected`` and ``got``.
        where: the place within the argument: a file, a data set, an image.

    Attributes:
        function, argument, expected, got, hint, problem, where: texts, empty if the message has no such part. If an
            attribute is assigned, the message changes accordingly. For example, the message shows the new ``argument``
            in place of the old one.

    >>> error = InputError("sigma", "a finite number above 0", -1.0)
    >>> error
    InputError('sigma: expected a finite number above 0, got -1.0')
    >>> error.argument = "--sigma"
    >>> str(error)
    '--sigma: expected a finite number above 0, got -1.0'
    """


class InputTypeError(_ArgumentError, TypeError):
    """An argument has a type or dtype that the call cannot use; arguments and attributes are those of `InputError`.

    >>> InputTypeError("steps", "an integer", 1.5, "round it")
    InputTypeError('steps: expected an integer, got 1.5; round it')
    """


class FileFormatError(PyrobustError, ValueError):
    """A file is missing, truncated, in another format, or refused because reading it would run code."""


class StoreError(PyrobustError, RuntimeError):
    """A run cannot be written or resumed, for example if parameters differ, the schema is newer or the disk is full."""


class ModelError(PyrobustError, RuntimeError):
    """The model failed, or returned something other than logits of the expected shape."""


class RowDependenceError(ModelError):
    """The model's output for a row depends on other rows or the row's position in the batch, or changes between calls.

    Args:
        problem: what differs; this text is also an attribute.
        consequence: what cannot be computed for that reason; in the message, this text follows ``problem``.
    """

    def __init__(self, problem: str, consequence: str = "") -> None:
        super().__init__(f"{problem}. {consequence}" if consequence else problem)
        self.problem = problem


class CrossingError(PyrobustError, RuntimeError):
    """There are more adversarial examples inside certified balls than chance explains: a certificate is false."""


class WorkerError(PyrobustError, RuntimeError):
    """Workers cannot be started or reached, differ from the first worker, or died repeatedly."""


class MissingExtraError(PyrobustError, RuntimeError):
    """An optional dependency is not installed; the message names the extra that installs it."""


@contextlib.contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """Turn a failed import in the block into a MissingExtraError that states ``needs`` and names the extra to install.

    >>> with extra("plot", "plot: needs matplotlib"):
    ...     import matplotlib_of_another_name
    Traceback (most recent call last):
    pyrobust.errors.MissingExtraError: plot: needs matplotlib; install it with pip install "pyrobust[plot]"
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f'{needs}; install it with pip install "pyrobust[{name}]"') from error

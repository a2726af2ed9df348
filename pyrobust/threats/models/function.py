"""Functions as models."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

from pyrobust.checks import integer, shown
from pyrobust.errors import InputTypeError
from pyrobust.threats.models.answer import Answer, CallError
from pyrobust.threats.models.code import function_hash
from pyrobust.threats.models.sampling import as_unicode


class FunctionModel:
    """A function from prompts to answers as a model.

    Args:
        function: takes a prompt, and ``attempt=`` if it has an argument of that name; returns a string or an
            ``Answer``. It is called from several threads. An exception is a failed call, worth a retry if it is a
            ``ConnectionError`` or ``TimeoutError``; a ``CallError`` says so itself.
        name: identity of the model; None for the function's name and a hash of its code, with the numbers and texts in
            its closure, defaults and ``functools.partial``. Whatever else changes its answers (files, settings of
            objects, lists) belongs into a name of your own.
        max_tokens: most tokens that a call can cost, prompt included.

    Raises:
        InputError: ``max_tokens`` below 0.
        InputTypeError: no function, or an argument of another type.

    >>> def shout(prompt):
    ...     return prompt.upper()
    >>> FunctionModel(shout, name="shout")("hello").text
    'HELLO'
    """

    def __init__(self, function: Callable[..., str | Answer], *, name: str | None = None, max_tokens: int = 0) -> None:
        if not callable(function):
            raise InputTypeError(f"function: expected a function from a string to a string, got {shown(function)}")
        if name is not None and (not isinstance(name, str) or not name):
            raise InputTypeError(f"name: expected a string that is not empty, or None, got {shown(name)}")
        self._function = function
        self._max_tokens = integer("max_tokens", max_tokens, 0)
        self._given = name
        self.name = name or self._own_name()
        try:
            self._takes_attempt = "attempt" in inspect.signature(function).parameters
        except (ValueError, TypeError):  # built-in functions may have no signature
            self._takes_attempt = False

    def _own_name(self) -> str:
        function = self._function
        definition = function if hasattr(function, "__qualname__") else type(function)
        code = function_hash(function)[:16]
        place = ":".join(filter(None, (getattr(definition, "__module__", None), definition.__qualname__)))
        return place + (f"?code={code}" if code else "")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Name a function anew that was imported where it is unpickled: its code may be another there."""
        self.__dict__.update(state)
        module = sys.modules.get(getattr(self._function, "__module__", None) or "")
        if not self._given and getattr(module, getattr(self._function, "__qualname__", ""), None) is self._function:
            self.name = self._own_name()

    def __call__(self, prompt: str, attempt: int = 0) -> Answer:
        """Answer a prompt by one call of the function.

        Raises:
            CallError: the function raised an exception, or returned no text.
        """
        try:
            answer = self._function(prompt, **({"attempt": attempt} if self._takes_attempt else {}))
        except CallError:
            raise
        except (Exception, SystemExit) as error:
            raise CallError(
                f"{self.name}: {type(error).__name__}: {str(error)[:300]}",
                retryable=isinstance(error, ConnectionError | TimeoutError),
            ) from error
        if isinstance(answer, str):
            return Answer(as_unicode(answer), raw={"text": str(answer)})
        if not isinstance(answer, Answer) or not isinstance(answer.text, str):
            raise CallError(f"{self.name}: expected the function to return a string or an Answer, got {shown(answer)}")
        return Answer(as_unicode(answer.text), answer.input_tokens, answer.output_tokens, _json(answer.raw, self.name))

    def largest_cost(self, prompt: str) -> int:
        """Return ``max_tokens``."""
        return self._max_tokens


def _json(raw: Any, name: str) -> dict[str, Any]:
    """A copy of raw data as JSON values."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(raw), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise CallError(f"{name}: Answer.raw: expected JSON values: {error}") from error
    return copy

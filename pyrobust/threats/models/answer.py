"""Models of text as threats call them: a prompt and an attempt in, an answer or a call error out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pyrobust.errors import PyrobustError


@dataclass(frozen=True)
class Answer:
    """The answer of a model to a prompt.

    Args:
        text: the answer itself; may be empty.
        input_tokens: tokens of the prompt as the model counted them; None where it does not say.
        output_tokens: tokens of the answer; None where the model does not say.
        raw: whatever the model returned, as JSON values, whole.

    >>> Answer("I can't help with that.", 12, 7).tokens
    19
    >>> Answer("Sure").tokens is None
    True
    """

    text: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int | None:
        """Tokens of prompt and answer together; None where either is unknown."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


class CallError(PyrobustError, RuntimeError):
    """A call of a model brought no answer.

    Args:
        message: what failed and what to do.
        retryable: whether the same call may succeed later (rate limits, server errors, lost connections).
        retry_after: seconds that the server asked to wait; None where it did not say.
        raw: whatever came in place of an answer, as JSON values.

    >>> CallError("rate limit reached", retryable=True, retry_after=2.0).retry_after
    2.0
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        raw: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.raw: Mapping[str, Any] = dict(raw or {})


@runtime_checkable
class TextModel(Protocol):
    """A model from prompts to answers, safe to call from several threads at once.

    >>> class Echo:
    ...     name = "echo"
    ...     def __call__(self, prompt: str, attempt: int) -> Answer:
    ...         return Answer(prompt)
    ...     def largest_cost(self, prompt: str) -> int:
    ...         return 2 * len(prompt.encode())
    >>> isinstance(Echo(), TextModel)
    True
    """

    @property
    def name(self) -> str:
        """Identity of the model with every setting that changes its answers: the cache and the store compare it."""
        ...

    def __call__(self, prompt: str, attempt: int) -> Answer:
        """Answer a prompt; attempts (0, 1, ...) of one prompt are draws of their own.

        Raises:
            CallError: no answer came.
        """
        ...

    def largest_cost(self, prompt: str) -> int:
        """Return an upper bound of the tokens of prompt and answer together, reserved before the call."""
        ...

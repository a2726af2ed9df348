"""Settings that language models share: system prompt, temperature, length, seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote

from pyrobust.checks import count, integer, non_negative, shown
from pyrobust.errors import InputError, InputTypeError
from pyrobust.threats.models.answer import CallError

_STEP, _SEEDS = 1_000_003, 1 << 31


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn.

    Args:
        system: system prompt, or None.
        temperature: 0 for the likeliest tokens; None leaves it to the model.
        max_tokens: most tokens of an answer.
        seed: seed of the first attempt, or None.
    """

    system: str | None = None
    temperature: float | None = 0.0
    max_tokens: int = 256
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.system is not None:
            if not isinstance(self.system, str):
                raise InputTypeError(f"system: expected a string or None, got {shown(self.system)}")
            if not is_unicode(self.system):
                raise InputError("system: expected Unicode text, got a lone surrogate; repair the text's encoding")
        if self.temperature is not None:
            object.__setattr__(self, "temperature", non_negative("temperature", self.temperature))
        object.__setattr__(self, "max_tokens", count("max_tokens", self.max_tokens, _SEEDS - 1))
        if self.seed is not None:
            object.__setattr__(self, "seed", integer("seed", self.seed, 0, _SEEDS - 1))

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """The conversation that a prompt starts.

        Raises:
            CallError: the prompt holds half a character, which neither UTF-8 nor tokenizers can carry.
        """
        if not is_unicode(prompt):
            raise CallError("prompt: expected Unicode text, got a lone surrogate; repair the text's encoding")
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": prompt}]

    def seed_of(self, attempt: int) -> int | None:
        """Seed of an attempt: ``seed + 1000003 * attempt`` modulo 2**31, so that runs of near seeds share none.

        >>> [Sampling(seed=7).seed_of(attempt) for attempt in range(3)]
        [7, 1000010, 2000013]
        """
        return None if self.seed is None else (self.seed + _STEP * integer("attempt", attempt, 0)) % _SEEDS

    def identify(self, name: str, **settings: object) -> str:
        """A model's name with its settings; system prompts by their hash.

        >>> Sampling(seed=7).identify("m", limit=None)
        'm?temperature=0.0&max_tokens=256&seed=7'
        """
        known = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed, **settings}
        if self.system is not None:
            known["system"] = hashlib.sha256(self.system.encode()).hexdigest()[:16]
        pairs = (f"{key}={quote(str(value), safe='/:,')}" for key, value in known.items() if value is not None)
        return f"{name}?{'&'.join(pairs)}"


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it holds no lone surrogates.

    >>> is_unicode("naïve"), is_unicode("half a pair: " + chr(0xD83D))
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_unicode(text: str) -> str:
    """Join surrogate pairs, and replace lone surrogates by U+FFFD, as UTF-8 and databases need it.

    >>> as_unicode("a" + chr(0xD83D) + "b").encode().hex(" ")
    '61 ef bf bd 62'
    """
    return str(text) if is_unicode(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

"""Prompts of a threat, from a file or a list."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from pyrobust.checks import count, file_path, items, shown, summary
from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.threats.untrusted import MAX_ROWS, csv_rows, json_lines, read_bytes, text_field
from pyrobust.threats.verdicts import ThreatVerdict

_SPELLINGS: Final = {"behavior": "behaviour"}


@dataclass(frozen=True)
class ThreatPrompt:
    """One prompt of a threat.

    Attributes:
        id: identifier, unique within the threat.
        prompt: the text that is sent.
        behaviour: the goal of the attack. If it is empty, the prompt is the behaviour. For the intervals, prompts with
            the same behaviour are one cluster.
        group: the attack's method, or the probe.
        category: category of the behaviour.
        target: the text that a judge compares the answer with. It is the fact, or the output that an injection aims at.
        threat: kind of threat, as in ``ThreatVerdict``.
        extra: further fields of the file, as JSON values. If one of them is "messages", a chat, its messages are sent
            in place of the prompt.
    """

    id: str
    prompt: str
    behaviour: str = ""
    group: str = ""
    category: str = ""
    target: str = ""
    threat: str = "jailbreak"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise InputTypeError(name, "a string", shown(getattr(self, name)))
        for name in ("id", "prompt", "threat"):
            if not getattr(self, name):
                raise InputError(name, "a string that is not empty", "''")
        if not isinstance(self.extra, Mapping):
            raise InputTypeError("extra", "a mapping of JSON values", shown(self.extra))

    @property
    def chat(self) -> list[dict[str, str]] | None:
        """The messages of a chat, with "role" and "content"; None for a prompt that is one text."""
        return _chat(self.extra.get("messages"))


#: What functions accept as a prompt: text, a chat, a ``ThreatPrompt``, or a mapping with its fields.
PromptLike: TypeAlias = str | Sequence[Mapping[str, Any]] | Mapping[str, Any] | ThreatPrompt

_TEXTS: Final = tuple(name for name in ThreatPrompt.__dataclass_fields__ if name != "extra")


@dataclass(frozen=True)
class Threat:
    """Prompts, and the number of attempts at each.

    Attributes:
        prompts: the prompts, as strings, chats, mappings with the fields of ``ThreatPrompt``, or ``ThreatPrompt``
            objects. A chat is a list of messages with "role" and "content", and its last message is from the user.
            Prompts without an id are numbered. Fields with other names are kept in ``extra``.
        attempts: number of attempts at each prompt.
        source: the file that the prompts were read from, or a name.

    Raises:
        InputError: there is no prompt, a prompt is empty, or an id occurs twice.
        InputTypeError: a field is of the wrong type.

    >>> threat = Threat(["Pick a lock.", {"prompt": "Pick a lock!", "behaviour": "locks"}], attempts=3)
    >>> threat, threat.prompts[1].id
    (Threat(prompts=2, attempts=3, behaviours=2), '1')
    """

    prompts: tuple[ThreatPrompt, ...]
    attempts: int = 1
    source: str = ""

    def __init__(self, prompts: Sequence[PromptLike], attempts: int = 1, source: str = "") -> None:
        mappings = [prompts] if isinstance(prompts, str) else items("prompts", prompts, "prompts")
        rows = [item if isinstance(item, ThreatPrompt) else _prompt(item, i) for i, item in enumerate(mappings)]
        if not rows:
            raise InputError("prompts", "at least one", "none")
        name, times = Counter(row.id for row in rows).most_common(1)[0]
        if times > 1:
            raise InputError("prompts", "a different id for each", f"{name!r} {times} times")
        count("attempts", attempts, MAX_ROWS // len(rows))
        object.__setattr__(self, "prompts", tuple(rows))
        object.__setattr__(self, "attempts", attempts)
        object.__setattr__(self, "source", source)

    @classmethod
    def read(cls, path: str | os.PathLike[str], attempts: int = 1, *, threat: str | None = None) -> Threat:
        r"""Read prompts from a CSV table or JSON Lines (name ends in ``.jsonl``); the file is untrusted.

        The column or key ``prompt`` is needed. Numbers in JSON become strings where a string is expected.

        Args:
            path: the file.
            attempts: number of attempts at each prompt. A number out of range raises an InputError.
            threat: kind of threat for prompts that do not name one.

        Raises:
            FileFormatError: the file is missing, damaged, too large or empty, or an id occurs twice. If a line is at
                fault, the message names it.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = file_path("file", os.path.join(folder, "prompts.csv"))
        ...     _ = file.write_text("id,prompt,target\nparis,What is the capital of France?,Paris\n")
        ...     Threat.read(file, threat="factuality").prompts[0].target
        'Paris'
        """
        path = file_path("path", path)
        content = read_bytes(path)
        if b"\0" in content:
            line = content[: content.index(b"\0")].count(b"\n") + 1
            raise FileFormatError(f"{path}: line {line}: contains a NUL byte; expected text in UTF-8")
        lines: Any = (
            ((f"{path}: line {number}", entry) for number, entry in json_lines(path))
            if path.suffix.lower() in (".jsonl", ".ndjson")
            else csv_rows(path)
        )
        rows: list[ThreatPrompt] = []
        places: dict[str, str] = {}
        for where, entry in lines:
            try:
                row = _prompt(entry, len(rows))
            except (InputError, InputTypeError) as error:
                raise FileFormatError(f"{where}: {error}") from error
            if row.id in places:
                raise FileFormatError(f"{where}: expected a different id for each prompt, got {row.id!r} again")
            places[row.id] = where
            rows.append(row if threat is None or entry.get("threat") else replace(row, threat=threat))
            if len(rows) > MAX_ROWS:
                raise FileFormatError(f"{where}: expected at most {MAX_ROWS} prompts; split the file")
        if not rows:
            raise FileFormatError(f"{path}: expected at least one prompt, got none")
        return cls(rows, attempts, str(path))

    def __len__(self) -> int:
        """Number of attempts at all prompts."""
        return len(self.prompts) * self.attempts

    def __repr__(self) -> str:
        behaviours = len({row.behaviour or row.prompt for row in self.prompts})
        return summary(self, prompts=len(self.prompts), attempts=self.attempts, behaviours=behaviours)

    def each_attempt(self) -> Iterator[tuple[str, ThreatPrompt, int]]:
        """Yield id, prompt and number of each attempt.

        If a prompt occurs again, word for word, the numbering of its attempts continues.

        >>> [(id, number) for id, _, number in Threat(["a", "a"], attempts=2).each_attempt()]
        [('0#0', 0), ('0#1', 1), ('1#0', 2), ('1#1', 3)]
        """
        seen: Counter[str] = Counter()
        for row in self.prompts:
            for attempt in range(self.attempts):
                yield row.id if self.attempts == 1 else f"{row.id}#{attempt}", row, seen[row.prompt]
                seen[row.prompt] += 1


def verdict_on(prompt: ThreatPrompt, id: str, attempt: int, model: str, **values: Any) -> ThreatVerdict:
    """Return a verdict on an attempt at a prompt."""
    defaults = {name: getattr(prompt, name) for name in ("prompt", "behaviour", "group", "category", "threat")}
    return ThreatVerdict(id, attempt=attempt, model=model, **defaults, **values)


def _prompt(value: Any, number: int) -> ThreatPrompt:
    """Make a prompt from a string, a chat or a mapping."""
    if isinstance(value, str):
        return ThreatPrompt(str(number), value)
    if isinstance(value, list | tuple):
        value = {"messages": value}
        if _chat(value["messages"]) is None:
            raise InputTypeError("prompts", "messages with texts for role and content", shown(value))
    if not isinstance(value, Mapping):
        raise InputTypeError("prompts", "strings, chats or mappings", shown(value))
    fields: dict[str, Any] = {}
    kept = value.get("extra")
    extra: dict[str, Any] = dict(kept) if isinstance(kept, Mapping) else {}
    for key, item in value.items():
        name = _SPELLINGS.get(key, key)
        if name in _TEXTS and item not in (None, ""):
            fields[name] = str(item) if type(item) in (int, float) else item
        elif name not in _TEXTS and item is not kept:
            extra[str(key)] = item
    chat = _chat(extra.get("messages"))
    if "prompt" not in fields and chat:
        fields["prompt"] = chat[-1]["content"]
    if "prompt" not in fields:
        raise InputError("prompt", "a field of this name", ", ".join(map(str, value))[:80] or "none")
    return ThreatPrompt(**{"id": str(number)} | fields, extra=extra)


def _chat(messages: Any) -> list[dict[str, str]] | None:
    """Return the messages if each has a role and content, else None."""
    if not isinstance(messages, list | tuple) or not messages:
        return None
    mappings = [message for message in messages if isinstance(message, Mapping)]
    parts = [{name: text_field(message, name) for name in ("role", "content")} for message in mappings]
    return parts if len(parts) == len(messages) and all(all(texts.values()) for texts in parts) else None

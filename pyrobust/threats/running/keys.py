"""Keys of calls, and their answers as text, in ledgers and caches."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pyrobust.errors import FileFormatError
from pyrobust.threats.models.answer import Answer
from pyrobust.threats.readers.untrusted import mapping, read_errors


def call_key(model: str, text: str, attempt: int) -> str:
    """Key of a call: model with its settings, text and attempt. Equal keys are never asked twice.

    >>> call_key("echo", "Hi", 0)[:8] == call_key("echo", "Hi", 1)[:8]
    False
    """
    return hashlib.sha256(json.dumps([model, text, attempt]).encode()).hexdigest()


def encode_answer(answer: Answer) -> str:
    """Encode an answer as JSON, whole.

    >>> decode_answer(encode_answer(Answer("Sure", 3, 1, {"id": "x"})), "call 1")
    Answer(text='Sure', input_tokens=3, output_tokens=1, raw={'id': 'x'})
    """
    fields = {name: getattr(answer, name) for name in ("text", "input_tokens", "output_tokens")}
    return json.dumps(fields | {"raw": dict(answer.raw)}, default=repr)


def decode_answer(text: str, where: str) -> Answer:
    """Decode an untrusted answer; FileFormatError names the place."""
    with read_errors(where):
        fields: dict[str, Any] = mapping(json.loads(text), where)
    asked, answered = (fields.get(name) for name in ("input_tokens", "output_tokens"))
    plain = all(value is None or (type(value) is int and value >= 0) for value in (asked, answered))
    if not isinstance(fields.get("text"), str) or not isinstance(fields.get("raw"), dict) or not plain:
        raise FileFormatError(f"{where}: damaged answer; start a new run or cache")
    return Answer(fields["text"], asked, answered, fields["raw"])

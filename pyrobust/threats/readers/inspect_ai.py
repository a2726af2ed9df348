"""Logs of inspect-ai (UK AI Security Institute), as JSON or as ``.eval``, a zip archive of JSON files.

Each epoch of a sample is an attempt, and each scorer is a judge. The score "C" is read as 1, "P" as 0.5 and "I" as 0.
The attack succeeded if the score is at least the threshold. Numbers may be given as text. "N" (no answer), other texts
and lists are not verdicts.
"""

from __future__ import annotations

import io
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyrobust.errors import FileFormatError, MissingExtraError
from pyrobust.threats.answers import ThreatAnswer
from pyrobust.threats.prompts import ThreatPrompt
from pyrobust.threats.readers.rows import named_field, verdict
from pyrobust.threats.untrusted import (
    MAX_BYTES,
    MAX_ROWS,
    array_field,
    mapping,
    object_field,
    parse_json,
    read_errors,
    text_field,
)
from pyrobust.threats.verdicts import ThreatVerdict
from pyrobust.zoo.untrusted import check_ratio, read_exactly

_ZSTANDARD: Final = 93
_HEADERS: Final = ("header.json", "_journal/start.json", "start.json")
_LETTERS: Final = {"C": 1.0, "P": 0.5, "I": 0.0, "YES": 1.0, "TRUE": 1.0, "NO": 0.0, "FALSE": 0.0}


#: Place and content of the header of a log, then of each of its samples.
Parts: TypeAlias = Iterator[tuple[str, dict[str, Any]]]


def archive_parts(path: Path) -> Parts:
    """Return the parts of an ``.eval`` log; refuse archives that unpack to an implausibly large size."""
    with read_errors(str(path)), zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        samples = sorted(name for name in members if name.startswith("samples/") and name.endswith(".json"))
        header = next((name for name in _HEADERS if name in members), None)
        if header is None:
            raise FileFormatError(f"{path}: expected a log of inspect-ai with {_HEADERS[0]}, got another archive")
        total = sum(members[name].file_size for name in (header, *samples))
        check_ratio(total, sum(members[name].compress_size for name in (header, *samples)), str(path))
        if total > MAX_BYTES or len(samples) > MAX_ROWS:
            raise FileFormatError(f"{path}: expected at most {MAX_BYTES} bytes, got {total} in {len(samples)} samples")
        for name in (header, *samples):
            where = f"{path}: {name}"
            content = mapping(parse_json(_unpacked(archive, members[name], where), where), where)
            yield str(path) if name == header else where, content


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> bytearray:
    """Unpack a member; recent logs use zstandard, which Python's zipfile reads from 3.14 on."""
    if info.compress_type != _ZSTANDARD or sys.version_info >= (3, 14):
        with archive.open(info) as file:
            return read_exactly(file, info.file_size, where)
    try:
        import zstandard
    except ImportError as error:
        message = (
            f"{where}: needs zstandard or Python 3.14; install it, or convert the log: inspect log convert --to json"
        )
        raise MissingExtraError(message) from error
    raw = archive.fp
    if raw is None:
        raise FileFormatError(f"{where}: the archive is closed")
    raw.seek(info.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", raw.read(4))
    raw.seek(name_length + extra_length, 1)
    try:
        with zstandard.ZstdDecompressor().stream_reader(
            io.BytesIO(raw.read(info.compress_size)), read_across_frames=True
        ) as file:
            content = read_exactly(file, info.file_size, where)
    except zstandard.ZstdError as error:
        raise FileFormatError(f"{where}: {error}") from error
    if zlib.crc32(content) != info.CRC:
        raise FileFormatError(f"{where}: the checksum differs; the file is damaged")
    return content


def log_parts(log: dict[str, Any], path: Path) -> Parts:
    """Return the parts of a JSON log."""
    yield str(path), log
    for i, sample in enumerate(array_field(log, "samples", str(path))):
        where = f"{path}: samples[{i}]"
        yield where, mapping(sample, where)


def verdicts_of(parts: Parts, threshold: float | None, behaviour: str | None = None) -> list[ThreatVerdict]:
    """Return each scorer's verdict on each epoch of each sample; samples without a result get missing verdicts."""
    location, log = next(parts)
    rows: list[ThreatVerdict] = []
    seen: dict[str, dict[str, Any]] = {}
    for where, sample in parts:
        names = _names(where, sample, log)
        if behaviour is not None:
            names["behaviour"] = named_field(behaviour, where, object_field(sample, "metadata", where), sample)
        seen[names["id"]] = seen[str(sample["id"])] = names
        rows += _scored(where, sample, names, threshold)
    return rows + [verdict(location, **names, status="unsubmitted") for names in _not_run(location, log, seen)]


def answers_of(parts: Parts) -> list[ThreatAnswer]:
    """Return the answer to each epoch of each sample; for samples without a result, the answer's text is None."""
    location, log = next(parts)
    answers, seen = [], {}
    for where, sample in parts:
        names = _names(where, sample, log)
        seen[names["id"]] = seen[str(sample["id"])] = names
        failed = sample.get("error") is not None
        answers.append(_answer(names, None if failed else _completion(where, sample), _texts(sample.get("target"), "")))
    return answers + [_answer(names, None, "", submitted=False) for names in _not_run(location, log, seen)]


def _answer(names: dict[str, Any], text: str | None, target: str, *, submitted: bool = True) -> ThreatAnswer:
    prompt = ThreatPrompt(
        names["id"],
        names["prompt"] or names["id"],
        names["behaviour"],
        names["group"],
        category=names["category"],
        target=target,
        threat=names["threat"] or "jailbreak",
    )
    return ThreatAnswer(
        names["id"], prompt, names["attempt"], names["model"], text=text, submitted=submitted, cost=names["cost"]
    )


def _completion(where: str, sample: dict[str, Any]) -> str | None:
    """Return the answer that pyrobust's scorer judged, or else the text of the first choice in the model's output.

    The output comes second because, after ``inspect log recover``, a sample's output is the last model call of the
    sample, even if a judge made this call.
    """
    scores = object_field(sample, "scores", where)
    for judge in scores:
        score = object_field(scores, judge, f"{where}: scores")
        ours = object_field(score, "metadata", where).keys() >= {"status", "score"}
        if ours and isinstance(score.get("answer"), str):
            return str(score["answer"])
    choices = object_field(sample, "output", where).get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    content = object_field(first, "message", f"{where}: output").get("content")
    if isinstance(content, list):
        content = [text_field(entry, "text") for entry in content if isinstance(entry, dict)]
    return None if content is None else _texts(content, "\n")


def _names(where: str, sample: dict[str, Any], log: dict[str, Any]) -> dict[str, Any]:
    """Return those columns of a sample's verdicts that are the same for all scorers."""
    name, epoch = sample.get("id"), sample.get("epoch", 1)
    if type(name) not in (int, str) or type(epoch) is not int:
        raise FileFormatError(f"{where}: id, epoch: expected a string or an integer, and an integer")
    setting = object_field(log, "eval", where)
    metadata = object_field(sample, "metadata", where)
    usage = object_field(sample, "model_usage", where)
    counts = [object_field(usage, model, f"{where}: model_usage").get("total_tokens") for model in usage]
    tokens = [count for count in counts if type(count) is int and 0 <= count < 1 << 53]
    return {
        "id": f"{name}/{epoch}",
        "prompt": _prompt(sample.get("input")),
        "behaviour": text_field(metadata, "behavior", "behaviour", "id_original") or str(name),
        "group": text_field(metadata, "group"),
        "threat": text_field(metadata, "threat") or text_field(setting, "task"),
        "category": text_field(metadata, "category"),
        "model": text_field(setting, "model"),
        "attempt": epoch,
        "cost": float(sum(tokens)) if tokens else None,
    }


def _scored(
    where: str, sample: dict[str, Any], names: dict[str, Any], threshold: float | None
) -> Iterator[ThreatVerdict]:
    failed = sample.get("error") is not None
    scores = object_field(sample, "scores", where)
    for judge, score in scores.items():
        score = mapping(score, f"{where}: scores: {judge}")
        value = score.get("value")
        broken = failed or object_field(score, "metadata", where).get("status") == "error"  # as our scorer records it
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for entry, single in parts:
            parsed = _value(single, f"{where}: scores: {judge}", threshold)
            yield verdict(
                where,
                success=None if parsed is None else parsed >= (0.5 if threshold is None else threshold),
                score=parsed,
                judge=f"{judge}/{entry}" if entry else judge,
                status="judged" if parsed is not None else "error" if broken else "unparsable",
                **names,
            )
    if not scores:
        yield verdict(where, status="error", **names)


def _value(value: Any, where: str, threshold: float | None) -> float | None:
    """Return a score as a number; None if it is not a verdict."""
    if isinstance(value, str):
        text = value.strip().upper()
        if text in _LETTERS:
            return _LETTERS[text]
        try:
            value = float(text)
        except ValueError:
            return None
    if not isinstance(value, int | float):
        return None
    if not -1e300 < value < 1e300:
        return None
    if threshold is None and not 0 <= value <= 1:
        raise FileFormatError(f"{where}: expected a score in [0, 1], got {value}; pass a threshold for other scales")
    return float(value)


def _not_run(where: str, log: dict[str, Any], seen: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns of ``_names`` for the samples that have no result because the evaluation ended early."""
    setting = object_field(log, "eval", where)
    if log.get("status", "success") == "success":
        return []
    names = object_field(setting, "dataset", where).get("sample_ids")
    epochs = object_field(setting, "config", where).get("epochs")
    epochs = epochs if type(epochs) is int and 1 <= epochs <= 1000 else 1
    recorded = object_field(object_field(setting, "metadata", where), "prompts", where)  # as our task records them
    ids = [name for name in names if type(name) in (int, str)] if isinstance(names, list) else []
    rows = []
    for name in dict.fromkeys(ids):
        metadata = mapping(recorded.get(str(name), {}), where)
        sample = {"id": name, "input": str(name) if metadata else "", "metadata": metadata}
        fields = seen.get(str(name)) or _names(where, sample, log)
        rows += [
            fields | {"id": f"{name}/{epoch}", "attempt": epoch, "cost": None}
            for epoch in range(1, epochs + 1)
            if f"{name}/{epoch}" not in seen
        ]
    return rows


def _prompt(value: Any) -> str:
    """Return the text of the input: all of it if it is a string, else the last text of the conversation."""
    if isinstance(value, list):
        texts = [text_field(message, "content") for message in value if isinstance(message, dict)]
        value = next((text for text in reversed(texts) if text), "")
    return value if isinstance(value, str) else ""


def _texts(value: Any, between: str) -> str:
    """Return a text, or join the texts of a list."""
    texts = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
    return between.join(filter(None, texts))

"""The JSON file beside an exported log, which holds the run's header and the hash of the log that it belongs to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from pyrobust.runs.reader import COMMAND, Header

_FORMAT = "header of a pyrobust log"
#: First bytes of every header file.
BEGINS = f'{{\n "format": "{_FORMAT}"'.encode()
_MAX_BYTES = 1 << 24
_TEXTS = ("model", "model_sha256", "data", "data_sha256", "guarantee")


def header_path(log: Path) -> Path:
    """Return the path of the header of a log.

    >>> header_path(Path("runs/log.tsv")).name
    'log.tsv.json'
    """
    return log.with_name(f"{log.name}.json")


def encode_header(
    header: Header, content: bytes, machines: dict[str, int] | None = None, set_aside: dict[int, str] | None = None
) -> bytes:
    """Encode the header of a run for a log with this content.

    If there are several machines, the header names them (`Run.machines`). If chunks were set aside, the header names
    these chunks (`Run.set_aside`).

    >>> encode_header(Header("predict", {}, "net", "", "digits", "", "real", {}), b"idx").startswith(BEGINS)
    True
    """
    fields = {name: getattr(header, name) for name in ("kind", "parameters", *_TEXTS, "versions")}
    log = {"rows": content.count(b"\n") - 1, "sha256": hashlib.sha256(content).hexdigest()}
    chunks: dict[str, Any] = {"machines": machines} if machines and len(machines) > 1 else {}
    chunks |= {"set_aside": set_aside} if set_aside else {}
    return (
        json.dumps({"format": _FORMAT, "log": log, "run": fields} | chunks, indent=1, allow_nan=False) + "\n"
    ).encode()


def read_log_header(log: Path) -> Header | None:
    """Read the header beside a log; None if the file is missing or of another kind. Both files are untrusted.

    Raises:
        ValueError: the header is damaged, or belongs to another log.
    """
    path = header_path(log)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES)
    except OSError:
        return None
    if not content.startswith(BEGINS):
        return None
    try:
        stored = json.loads(content)
        fields, described = stored["run"], stored["log"]
        header = Header(**fields)
        texts = all(isinstance(getattr(header, name), str) for name in _TEXTS)
        ours = {"identity", "schema_version", COMMAND} & set(fields)
        if not texts or ours or not _is_software(header.versions):
            raise ValueError("unexpected values")
        header.type.check(header.parameters)
        rows, expected = int(described["rows"]), str(described["sha256"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"damaged ({' '.join(str(error).split())[:100]})") from None
    digest = hashlib.sha256()
    with log.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise ValueError(f"it belongs to another log, of {rows:,} rows, or the log was changed since it was exported")
    return dataclasses.replace(header, versions=dict(header.versions))


def _is_software(versions: Any) -> bool:
    return isinstance(versions, dict) and all(isinstance(text, str) for text in versions.values())

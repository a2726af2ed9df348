"""The identity of a run's model beside its parameters: a hash of its code, and its logits on probe inputs."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch

from pyrobust.runs.kinds.values import parse_json

#: Number of probe inputs, and the most logits stored for each.
PROBES, LOGITS = 8, 16


@dataclass(frozen=True)
class Identity:
    """Fingerprint of a model's computation, compared when a run is resumed or merged.

    Attributes:
        code: hashes of the code (`pyrobust.zoo.code_hash`): the hash at the start of the run, followed by one hash for
            each change that was allowed. Empty if there are no source files.
        machine: hardware, number of threads and torch version; equal machines are expected to give equal bits.
        bits: SHA-256 of the logits on the probe inputs; "" where kernels are not bitwise reproducible.
        logits: the first few logits of each probe input, with None for NaN or infinity. Empty if the model does not
            reproduce its logits up to the tolerance.
        tolerance: largest difference allowed between the logits of two machines, relative to the largest logit of the
            same probe input.
        void: why the results must not be used; "" for a valid run.

    >>> from dataclasses import replace
    >>> stored = Identity(("a" * 64,), "cpu", "b" * 64, ((1.0, 2.0),), 1e-3)
    >>> stored.differences(replace(stored, machine="gpu", bits="c" * 64, logits=((1.0, 2.001),)))
    []
    >>> stored.differences(replace(stored, code=("d" * 64,)))
    ["code of the model: 'aaaaaaaaaaaaaaaa' stored, 'dddddddddddddddd' given"]
    """

    code: tuple[str, ...]
    machine: str
    bits: str
    logits: tuple[tuple[float | None, ...], ...]
    tolerance: float
    void: str = ""

    def differences(self, other: Identity, wording: tuple[str, str] = ("stored", "given")) -> list[str]:
        """Return one phrase for each difference from the model of another run."""
        phrases = []
        if (self.code or other.code) and not set(self.code) & set(other.code):
            first, second = ((code[-1][:16] if code else "none") for code in (self.code, other.code))
            phrases.append(f"code of the model: {first!r} {wording[0]}, {second!r} {wording[1]}")
        if self.bits and other.bits and self.machine == other.machine:
            if self.bits != other.bits:
                phrases.append("logits on probe inputs: other bits on equal hardware, threads and torch")
        elif self.logits and other.logits and not self._close(other):
            phrases.append(
                f"logits on probe inputs: they differ by more than {self.tolerance:.2g} of the largest logit"
            )
        return phrases

    def _close(self, other: Identity) -> bool:
        if [len(row) for row in self.logits] != [len(row) for row in other.logits]:
            return False
        for ours, theirs in zip(self.logits, other.logits, strict=True):
            scale = max((abs(value) for value in ours if value is not None), default=0.0)
            for a, b in zip(ours, theirs, strict=True):
                if (a is None) != (b is None):
                    return False
                if a is not None and b is not None and abs(a - b) > self.tolerance * scale:
                    return False
        return True

    def encode(self) -> str:
        """Return the identity as JSON."""
        return json.dumps(asdict(self), allow_nan=False)


def decode_identity(text: str) -> Identity:
    """Decode an untrusted identity; raise ValueError if it is malformed.

    >>> decode_identity(Identity((), "cpu", "", (), 0.0).encode())
    Identity(code=(), machine='cpu', bits='', logits=(), tolerance=0.0, void='')
    """
    values = parse_json(text)
    names = ("code", "machine", "bits", "logits", "tolerance", "void")
    if not isinstance(values, dict) or set(values) != set(names):
        raise ValueError("identity: unexpected fields")
    code, machine, bits, logits, tolerance, void = (values[name] for name in names)
    valid = (
        _list_of(code, lambda value: isinstance(value, str) and len(value) == 64, 1024)
        and all(isinstance(value, str) and len(value) <= 4096 for value in (machine, bits, void))
        and _list_of(logits, lambda row: _list_of(row, _number_or_none, LOGITS), PROBES)
        and _number_or_none(tolerance)
        and tolerance is not None
    )
    if not valid:
        raise ValueError("identity: unexpected values")
    return Identity(tuple(code), machine, bits, tuple(map(tuple, logits)), float(tolerance), void)


def _list_of(value: Any, valid: Any, longest: int) -> bool:
    return isinstance(value, list) and len(value) <= longest and all(map(valid, value))


def _number_or_none(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and math.isfinite(value))


def software_versions() -> dict[str, str]:
    """Return the versions of the software that computes the results.

    >>> sorted(software_versions())
    ['numpy', 'pyrobust', 'python', 'torch']
    """
    return {
        "pyrobust": metadata.version("pyrobust"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }

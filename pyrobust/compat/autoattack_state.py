"""The progress of an evaluation, kept in a state file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrobust.errors import FileFormatError, InputError
from pyrobust.zoo.files import write_atomically

_VERSION = 2
# Largest size in bytes of one flag, and of everything else in the file.
_FLAG_BYTES, _OTHER_BYTES = 8, 1 << 16


def hash_of(x: Tensor, y: Tensor) -> str:
    """Hash the images and labels that identify an evaluation.

    >>> len(hash_of(torch.zeros(2, 3), torch.tensor([0, 1])))
    64
    """
    digest = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    for tensor in (x, y):
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class State:
    """Which attacks have run, and which examples are robust to them.

    Attributes:
        run: norm, eps, attacks, number of examples and hashes, all of which must match when a run is resumed.
        done: names of the attacks that have run.
        clean: clean accuracy; None if not measured yet.
        robust: whether each example is robust so far; None before the first attack.

    >>> State({"norm": "Linf", "eps": 0.1, "attacks": ["square"], "examples": 2}).done
    []
    """

    def __init__(self, run: dict[str, Any]) -> None:
        self.run = run
        self.done: list[str] = []
        self.clean: float | None = None
        self.robust: list[bool] | None = None

    def write(self, path: Path) -> None:
        """Replace the file; raises StoreError if it cannot be written."""
        content = {"version": _VERSION, **self.run, "done": self.done, "clean": self.clean, "robust": self.robust}
        write_atomically(path, json.dumps(content).encode())

    @classmethod
    def read(cls, path: Path, run: dict[str, Any]) -> State:
        """Read the state of ``run`` from an untrusted file.

        Raises FileFormatError if the file is too large or does not hold a state, and InputError if the state belongs to
        another run; the message names the difference.
        """
        try:
            limit = _OTHER_BYTES + _FLAG_BYTES * run["examples"]
            with path.open("rb") as file:
                text = file.read(limit + 1)
            if len(text) > limit:
                raise FileFormatError(
                    f"{path}: expected at most {limit} bytes for {run['examples']} examples, got a larger file"
                )
            content = json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path}: expected a state file of an evaluation: {error}") from None
        version = content.get("version") if isinstance(content, dict) else None
        if type(version) is not int or version != _VERSION:
            raise FileFormatError(f"{path}: expected a state file of an evaluation, version {_VERSION}")
        for name, value in run.items():
            if content.get(name) != value:
                raise InputError(
                    "state_path",
                    f"a state with {name} {value!r}",
                    f"{content.get(name)!r} in {path}",
                    "start a new run with another file",
                )
        state = cls(run)
        done, clean, robust = content.get("done"), content.get("clean"), content.get("robust")
        if not isinstance(done, list) or not all(name in run["attacks"] for name in done):
            raise FileFormatError(f"{path}: done: expected a list of names among {', '.join(run['attacks'])}")
        if not done and clean is None and robust is None:  # nothing had been measured yet
            return state
        if not isinstance(clean, float) or not 0 <= clean <= 1:
            raise FileFormatError(f"{path}: clean: expected a share in [0, 1]")
        if not isinstance(robust, list) or len(robust) != run["examples"] or not all(type(v) is bool for v in robust):
            raise FileFormatError(
                f"{path}: robust: expected a list of {run['examples']} booleans, one for each example"
            )
        state.done, state.clean, state.robust = done, clean, robust
        return state

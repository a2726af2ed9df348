"""How far an evaluation has come, in a file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrobust.errors import FileFormatError, InputError
from pyrobust.zoo.files import write_atomically

_VERSION = 1
# Bytes that a flag takes at most, and everything else.
_FLAG, _REST = 8, 1 << 16


def hash_of(x: Tensor, y: Tensor) -> str:
    """What tells the images and labels of one evaluation from those of another.

    >>> len(hash_of(torch.zeros(2, 3), torch.tensor([0, 1])))
    64
    """
    digest = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    for tensor in (x, y):
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class State:
    """Which attacks have run, and which examples withstand them.

    Args:
        run: norm, eps, attacks, examples (their number) and hashes, which a continued run must share.

    Attributes:
        run: as given.
        done: names of the attacks that have run.
        robust: for each example whether it withstands; None before anything is known.

    >>> State({"norm": "Linf", "eps": 0.1, "attacks": ["square"], "examples": 2}).done
    []
    """

    def __init__(self, run: dict[str, Any]) -> None:
        self.run = run
        self.done: list[str] = []
        self.robust: list[bool] | None = None

    def write(self, path: Path) -> None:
        """Replaces the file.

        Raises:
            StoreError: it cannot be written.
        """
        content = {"version": _VERSION, **self.run, "done": self.done, "robust": self.robust}
        write_atomically(path, json.dumps(content).encode())

    @classmethod
    def read(cls, path: Path, run: dict[str, Any]) -> State:
        """The state in a file, which nobody vouches for.

        Args:
            path: the file.
            run: what it has to be a state of.

        Raises:
            FileFormatError: not a state, or too large for one.
            InputError: a state of another run; the message names the difference.
        """
        try:
            limit = _REST + _FLAG * run["examples"]
            with path.open("rb") as file:
                text = file.read(limit + 1)
            if len(text) > limit:
                raise FileFormatError(
                    f"{path}: expected at most {limit} bytes for {run['examples']} examples, got more"
                )
            content = json.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{path}: expected a state of an evaluation: {error}") from None
        if not isinstance(content, dict) or content.get("version") != _VERSION:
            raise FileFormatError(f"{path}: expected a state of an evaluation, version {_VERSION}")
        for name, value in run.items():
            if content.get(name) != value:
                raise InputError(
                    f"state_path: expected a state with {name} {value!r}, got {content.get(name)!r} in {path}; "
                    "use another file"
                )
        state = cls(run)
        done, robust = content.get("done"), content.get("robust")
        if not isinstance(done, list) or not all(name in run["attacks"] for name in done):
            raise FileFormatError(f"{path}: done: expected names of attacks to run")
        if not isinstance(robust, list) or len(robust) != run["examples"] or not all(type(v) is bool for v in robust):
            raise FileFormatError(f"{path}: robust: expected true or false for each of {run['examples']} examples")
        state.done, state.robust = done, robust
        return state

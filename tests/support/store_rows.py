"""Headers and rows of synthetic runs, for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pyrobust.runs.identity import Identity
from pyrobust.runs.kinds import KINDS
from pyrobust.runs.reader import Header
from pyrobust.runs.writer import RunWriter
from support.example_parameters import example

IDENTITY = Identity((), "cpu, 1 threads", "", (), 0.0)


def header(kind: str = "certify", **changes: Any) -> Header:
    parameters = example(kind) | changes
    return Header(kind, parameters, "net", "a" * 64, "digits", "b" * 64, "real", {"pyrobust": "0.1.0"}, IDENTITY)


def rows(indices: Sequence[int], radius: float = 0.5, p_lower: float = 0.9, seconds: float = 0.25) -> dict[str, Any]:
    size = len(indices)
    counts = np.zeros((size, 11), dtype=np.int64)
    counts[:, 3], counts[:, 10] = 990, 10
    return {
        "idx": indices,
        "label": [3] * size,
        "prediction": np.full(size, 3),
        "status": ["ok"] * size,
        "seconds": [seconds] * size,
        "counts0": counts // 10,
        "counts": counts,
        "p_lower": [p_lower] * size,
        "radius": [radius] * size,
    }


def attack_rows(indices: Sequence[int], attack: str = "FGSM") -> dict[str, Any]:
    """Rows of an attack that fools the model at every third image, each with an example of its own."""
    broken = [index % 3 == 0 for index in indices]
    return {
        "idx": indices,
        "label": [3] * len(indices),
        "prediction": [3] * len(indices),
        "status": ["ok"] * len(indices),
        "seconds": [0.5] * len(indices),
        "adversarial": [4 if is_broken else 3 for is_broken in broken],
        "distance": [0.125 if is_broken else None for is_broken in broken],
        "broken_by": [attack if is_broken else "" for is_broken in broken],
        "x_adv": [np.full((1, 2, 2), index % 100 / 100, dtype="<f4").tobytes() for index in indices],
    }


def proved_rows(indices: Sequence[int]) -> dict[str, Any]:
    """Rows of an attack that leaves out what is proved: every image that it does not break."""
    rows = attack_rows(indices)
    proved = [int(name == "") for name in rows["broken_by"]]
    return rows | {
        "proved": proved,
        "rows_saved": [40 * each for each in proved],
        "proof_seconds": [0.25] * len(proved),
    }


def sandwich_rows(indices: Sequence[int]) -> dict[str, Any]:
    """Rows of a sandwich of a network, in which every third image has no adversarial example."""
    broken = [index % 3 != 0 for index in indices]
    size = len(indices)
    rows = attack_rows(indices)
    for name in ("distance", "broken_by"):
        del rows[name]
    return rows | {
        "lower": [0.1 + index / 100 for index in indices],
        "lower_by": ["crown"] * size,
        "upper": [0.3 + index / 100 if each else None for index, each in zip(indices, broken, strict=True)],
        "upper_by": ["FMN" if each else "" for each in broken],
        "adversarial": [4 if each else 3 for each in broken],
        "confidence": [0.9 - index / 1000 for index in indices],
        "margin": [None] * size,
    }


def sequential_rows(indices: Sequence[int]) -> dict[str, Any]:
    """Rows of a sequential certification that decided every radius after 1,100 samples."""
    size = len(indices)
    more = {"samples": [1100] * size, "p_upper": [0.95] * size, "rival_upper": [1.0] * size, "undecided": ["00"] * size}
    return rows(indices) | more


def pending_rows(indices: Sequence[int]) -> dict[str, Any]:
    """Unfinished images of a sequential certification, with 100 votes each."""
    counts = np.zeros((len(indices), 11), dtype=np.int64)
    counts[:, 3] = 100
    limits = {"p_lower": 0.5, "p_upper": 0.75, "rival_lower": 0.0, "rival_upper": 0.5, "seconds": 0.125}
    return {"idx": indices, "counts0": counts, "counts": counts} | {
        name: [value] * len(indices) for name, value in limits.items()
    }


def verify_rows(indices: Sequence[int]) -> dict[str, Any]:
    """Rows of a verification at two epsilons, which CROWN proves at the first."""
    size = len(indices)
    columns = {"radius": 0.1, "verdicts": "verified,unknown", "stages": "crown,", "margins": "0.5,-0.25", "x_adv": b""}
    common = ("idx", "label", "prediction", "status", "seconds")
    return {name: rows(indices)[name] for name in common} | {name: [value] * size for name, value in columns.items()}


def search_rows(indices: Sequence[int]) -> dict[str, Any]:
    """Rows of a search for radii by a Lipschitz constant."""
    texts = {"verdicts": "", "stages": "lipschitz", "margins": ""}
    return verify_rows(indices) | {name: [text] * len(indices) for name, text in texts.items()}


#: The rows of each layout, and of verifications that search for radii.
MAKERS: dict[str, Callable[[Sequence[int]], dict[str, Any]]] = {
    "certify": rows,
    "sequential": sequential_rows,
    "attack": attack_rows,
    "minimum": attack_rows,
    "certified-first": proved_rows,
    "verify": verify_rows,
    "search": search_rows,
    "sandwich": sandwich_rows,
}


def write_rows(path: Path, case: str, **changes: Any) -> Path:
    """Write a run of a layout, or of a search for radii, with its first eight images."""
    layout = "verify" if case == "search" else case
    search = {"epsilons": None, "largest": 1.0} if case == "search" else {}
    kind = KINDS[layout].name
    guarantee = {"certify": "real", "attack": "empirical"}.get(kind, "deterministic")
    made = replace(header(kind), parameters=example(layout) | search | changes, guarantee=guarantee)
    with RunWriter(path, made) as writer:
        for first in (0, 4):
            writer.append(MAKERS[case](range(first, first + 4)))
    return path

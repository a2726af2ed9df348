"""Headers and rows of synthetic runs, for the tests of the store."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyrobust.runs.identity import Identity
from pyrobust.runs.parameters import example
from pyrobust.runs.reader import Header

IDENTITY = Identity((), "cpu, 1 threads", "", (), 0.0)


def header(kind: str = "certify", **changes: Any) -> Header:
    parameters = example(kind) | changes
    return Header(kind, parameters, "net", "a" * 64, "digits", "b" * 64, "real", {"pyrobust": "0.1.0"}, IDENTITY)


def rows(indices: range, radius: float = 0.5, p_lower: float = 0.9, seconds: float = 0.25) -> dict[str, Any]:
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

"""Verdicts, stages and margins of a verification, as the text columns of a run keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: Of bound propagation, from the cheapest on; "cascade" is all of them in turn.
METHODS = ("ibp", "crown-ibp", "crown")
#: What a certificate can come from: these, or a Lipschitz constant.
PROOFS = (*METHODS, "lipschitz")
#: Which stages can give each verdict.
STAGES: dict[str, tuple[str, ...]] = {"verified": PROOFS, "falsified": ("forward", "attack"), "unknown": ("",)}


def encode(values: Sequence[Any]) -> str:
    """One value for each epsilon, separated by commas.

    >>> encode(["verified", "unknown"]), encode([0.5, float("-inf")])
    ('verified,unknown', '0.5,-inf')
    """
    return ",".join(map(str, values))


def decode_verdicts(table: Mapping[str, npt.NDArray[Any]], count: int) -> dict[str, npt.NDArray[Any]]:
    """The inverse of `encode` for whole columns.

    Args:
        table: with the columns verdicts, stages and margins; untrusted.
        count: of epsilons, at least 1.

    Returns:
        ``verdict`` and ``stage``, str [N, count], and ``margin``, float64 [N, count].

    Raises:
        ValueError: another number of values, an unknown word, a stage that does not give its verdict, a verified
            margin that is not positive.

    >>> columns = {"verdicts": ["verified,unknown"], "stages": ["ibp,"], "margins": ["0.5,-1.0"]}
    >>> decode_verdicts({name: np.array(texts) for name, texts in columns.items()}, 2)["verdict"].tolist()
    [['verified', 'unknown']]
    """
    rows = len(table["verdicts"])
    found: dict[str, npt.NDArray[Any]] = {}
    for name, column in (("verdict", "verdicts"), ("stage", "stages"), ("margin", "margins")):
        texts = [text.split(",") for text in table[column].tolist()]
        if any(len(values) != count for values in texts):
            raise ValueError(f"{column} of another number than the {count} epsilons")
        values = [[float(value) for value in row] for row in texts] if name == "margin" else texts
        found[name] = np.array(values, np.float64 if name == "margin" else np.str_).reshape(rows, count)
    fine = np.zeros((rows, count), dtype=bool)
    for verdict, stages in STAGES.items():
        fine |= (found["verdict"] == verdict) & np.isin(found["stage"], stages)
    if not fine.all():
        raise ValueError("a verdict that its stage does not give")
    if not (found["margin"][found["verdict"] == "verified"] > 0).all():
        raise ValueError("a verified margin that is not positive")
    return found

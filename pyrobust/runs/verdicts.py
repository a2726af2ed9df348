"""Verdicts, stages and margins of a verification run, as comma-separated text columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyrobust.late import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

#: Bound propagation methods: those that "cascade" tries, in this order, and all.
CASCADE = ("ibp", "crown-ibp", "crown")
METHODS = (*CASCADE, "alpha-crown")
#: Stages that can prove a certificate.
PROOFS = (*METHODS, "lipschitz")
#: The stages that can give each verdict.
STAGES: dict[str, tuple[str, ...]] = {"verified": PROOFS, "falsified": ("forward", "attack"), "unknown": ("",)}


def encode(values: Sequence[Any]) -> str:
    """Join one value for each epsilon with commas.

    >>> encode(["verified", "unknown"]), encode([0.5, float("-inf")])
    ('verified,unknown', '0.5,-inf')
    """
    return ",".join(map(str, values))


def decode_verdicts(table: Mapping[str, npt.NDArray[Any]], count: int) -> dict[str, npt.NDArray[Any]]:
    """Decode untrusted columns to ``verdict`` and ``stage``, str [N, count], and ``margin``, float64 [N, count].

    >>> columns = {"verdicts": ["verified,unknown"], "stages": ["ibp,"], "margins": ["0.5,-1.0"]}
    >>> decode_verdicts({name: np.array(texts) for name, texts in columns.items()}, 2)["verdict"].tolist()
    [['verified', 'unknown']]
    """
    rows = len(table["verdicts"])
    decoded: dict[str, npt.NDArray[Any]] = {}
    for name, column in (("verdict", "verdicts"), ("stage", "stages"), ("margin", "margins")):
        texts = [text.split(",") for text in table[column].tolist()]
        if any(len(values) != count for values in texts):
            raise ValueError(f"{column} that do not match the {count} epsilons")
        values = [[float(value) for value in row] for row in texts] if name == "margin" else texts
        decoded[name] = np.array(values, np.float64 if name == "margin" else np.str_).reshape(rows, count)
    consistent = np.zeros((rows, count), dtype=bool)
    for verdict, stages in STAGES.items():
        consistent |= (decoded["verdict"] == verdict) & np.isin(decoded["stage"], stages)
    if not consistent.all():
        raise ValueError("a verdict that its stage cannot give")
    if not (decoded["margin"][decoded["verdict"] == "verified"] > 0).all():
        raise ValueError("a verified margin that is not positive")
    return decoded

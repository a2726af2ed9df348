"""entmax: sparsemax is the projection onto the unit simplex (Martins and Astudillo 2016)."""

from __future__ import annotations

from torch import Tensor

from . import Peer


def peer() -> Peer:
    from entmax import sparsemax

    def simplex(v: Tensor, radius: float) -> Tensor:
        return sparsemax(v, dim=-1) if radius == 1 else sparsemax(v / radius, dim=-1) * radius

    return Peer("entmax sparsemax", projections={"simplex": simplex})

"""adv-lib (Rony): sort-based projections. Its attacks need torchvision and are left out."""

from __future__ import annotations

from . import Peer


def peer() -> Peer:
    from adv_lib.utils.projections import l1_ball_euclidean_projection, simplex_projection

    return Peer("adv-lib", projections={"l1_ball": l1_ball_euclidean_projection, "simplex": simplex_projection})

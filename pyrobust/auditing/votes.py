"""The votes behind the radii of a certification log, and the survival curve of p_A that they give."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.metrics.survival import SurvivalCurve, survival_curve
from pyrobust.metrics.votes import votes_for_radius

Votes: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def votes_of(log: CertificationLog) -> Votes | None:
    """Return each image's votes n_A as (point, least, most), as ``votes_for_radius`` does.

    A run stores the votes, so all three are equal; a text log has only radii. Return None for logs without votes:
    verifications, sequential runs, text logs of non-Gaussian noise, and logs with unknown n, alpha or sigma.
    """
    if not log.smoothed or log.n is None or log.sampled_by_votes:
        return None
    if log.votes is not None:
        return log.votes, log.votes, log.votes
    if log.alpha is None or log.sigma is None or log.noise != "gaussian" or log.decimals is None:
        return None
    return votes_for_radius(log.radius, log.n, log.alpha, log.sigma, decimals=log.decimals)


def survival_of(log: CertificationLog, votes: Votes | None = None) -> SurvivalCurve | None:
    """Return the survival curve of p_A, with bounds for the rounding of printed radii; None if votes are unknown.

    ``votes`` is ``votes_of(log)`` if that is already computed.
    """
    votes = votes or votes_of(log)
    if votes is None or log.n is None:
        return None
    point, least, most = votes
    return survival_curve(point, log.n, log.certified, least=least, most=most)

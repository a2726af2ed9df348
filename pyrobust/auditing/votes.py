"""The votes behind the radii of a certification log, and the survival curve that they make."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.auditing.certification_log import CertificationLog
from pyrobust.metrics.survival import SurvivalCurve, survival_curve
from pyrobust.metrics.votes import votes_for_radius

Votes: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def votes_of(log: CertificationLog) -> Votes | None:
    """The votes n_A of each image: (point, least, most), as of ``votes_for_radius``; of a run all three are the same.

    Args:
        log: of any origin.

    Returns:
        None of a log without votes: a verification, radii of noise that is not Gaussian, or n, alpha or sigma unknown.
    """
    if log.kind == "verify" or log.n is None:
        return None
    if log.votes is not None:
        return log.votes, log.votes, log.votes
    if log.alpha is None or log.sigma is None or log.noise != "gaussian" or log.decimals is None:
        return None
    return votes_for_radius(log.radius, log.n, log.alpha, log.sigma, decimals=log.decimals)


def survival_of(log: CertificationLog, votes: Votes | None = None) -> SurvivalCurve | None:
    """The survival curve of p_A, with a band for the votes that printed radii may stand for.

    Args:
        log: of any origin.
        votes: ``votes_of(log)``, where it is at hand.

    Returns:
        The curve; None of a log without votes.
    """
    votes = votes or votes_of(log)
    if votes is None or log.n is None:
        return None
    point, least, most = votes
    return survival_curve(point, log.n, log.certified, least=least, most=most)

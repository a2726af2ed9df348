"""Every native op in plain PyTorch: specification, oracle of the tests, baseline of the benchmarks.

The functions have the signatures of their twins in ``pyrobust.ops`` and the noise follows
docs/decisions/noise-contract.md step by step. They check no arguments: that is the ops' part.
"""

from __future__ import annotations

from .examples import count_changed, put_rows
from .logits import logit_loss, logit_verdict
from .noise import FAMILIES, STAGES, noise_words, sample_noise, unit_noise
from .norm_balls import project_l2_ball, project_linf_ball
from .perturbation import add_perturbation
from .philox import philox4x32
from .projections import project_l1_ball, project_l1_ball_box, project_simplex
from .relax_rows import least_of_rows, relax_rows
from .relaxation import relax_coefficients
from .steps import l1_step, l1_step_in_ball, linf_momentum_step, linf_step
from .votes import count_votes

__all__ = [
    "FAMILIES",
    "STAGES",
    "add_perturbation",
    "count_changed",
    "count_votes",
    "l1_step",
    "l1_step_in_ball",
    "least_of_rows",
    "linf_momentum_step",
    "linf_step",
    "logit_loss",
    "logit_verdict",
    "noise_words",
    "philox4x32",
    "project_l1_ball",
    "project_l1_ball_box",
    "project_l2_ball",
    "project_linf_ball",
    "project_simplex",
    "put_rows",
    "relax_coefficients",
    "relax_rows",
    "sample_noise",
    "unit_noise",
]

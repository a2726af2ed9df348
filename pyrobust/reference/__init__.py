"""Every native op in plain PyTorch: specification, oracle of the tests, and baseline of the benchmarks.

The references have the signatures of the functions in ``pyrobust.ops``, without the ``out`` of projections. The other
functions here are steps of the noise, which follows docs/decisions/noise-contract.md step by step. The functions do not
check their arguments; the ops do.
"""

from __future__ import annotations

from typing import Final

from .batch_last_bounds import batch_last_concretize, batch_last_relax, batch_last_relu_intervals
from .batch_last_conv import batch_last_conv, batch_last_conv_transposed, batch_last_conv_weight
from .examples import count_changed, put_rows
from .hyperplane_step import hyperplane_step
from .logits import logit_loss, logit_verdict
from .noise import FAMILIES as _FAMILIES
from .noise import STAGES as _STAGES
from .noise import noise_words, sample_noise, unit_noise
from .norm_balls import project_l2_ball, project_linf_ball
from .perturbation import add_perturbation
from .philox import philox4x32
from .projections import project_l1_ball, project_l1_ball_box, project_simplex
from .relax_rows import concretize_rows, relax_rows
from .relaxation import relax_coefficients
from .sample_grid_noise import grid_integers, sample_grid_noise
from .square_window import square_window
from .steps import l1_step, l1_step_in_ball, linf_momentum_step, linf_step
from .votes import count_votes

__all__ = [
    "FAMILIES",
    "STAGES",
    "add_perturbation",
    "batch_last_concretize",
    "batch_last_conv",
    "batch_last_conv_transposed",
    "batch_last_conv_weight",
    "batch_last_relax",
    "batch_last_relu_intervals",
    "concretize_rows",
    "count_changed",
    "count_votes",
    "grid_integers",
    "hyperplane_step",
    "l1_step",
    "l1_step_in_ball",
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
    "sample_grid_noise",
    "sample_noise",
    "square_window",
    "unit_noise",
]

# Assigned, not only imported: the reference pages show the string below an assignment.
STAGES: Final = _STAGES
"""Purposes for which noise is drawn, each with its number in the Philox counter, so that no two stages share a draw."""

FAMILIES: Final = _FAMILIES
"""Noise distributions, with their numbers in the Philox counter; each has standard deviation sigma."""

"""One typed function per native op, with its argument checks, fake kernel and gradient.

``torch.ops.pyrobust`` holds the raw ops; call them through these functions. Each op on tensors has a reference in plain
PyTorch in ``pyrobust.reference``, with the same signature except for the ``out`` of projections.
"""

from __future__ import annotations

from typing import Final

from .batch_last_bounds import batch_last_concretize, batch_last_relax, batch_last_relu_intervals
from .batch_last_conv import batch_last_conv, batch_last_conv_transposed, batch_last_conv_weight
from .count_votes import count_votes
from .examples import count_changed, put_rows
from .grid_table import GridNoise, grid_noise
from .hyperplane_step import hyperplane_step
from .logits import logit_loss, logit_verdict
from .native import build_info
from .noise_arguments import STAGES as _STAGES
from .norm_balls import project_l2_ball, project_linf_ball
from .perturbation import add_perturbation
from .projections import project_l1_ball, project_l1_ball_box, project_simplex
from .relax_rows import concretize_rows, relax_rows
from .relaxation import relax_coefficients
from .sample_grid_noise import sample_grid_noise
from .sample_noise import FAMILIES as _FAMILIES
from .sample_noise import sample_noise
from .square_window import square_window
from .steps import l1_step, l1_step_in_ball, linf_momentum_step, linf_step

__all__ = [
    "FAMILIES",
    "STAGES",
    "GridNoise",
    "add_perturbation",
    "batch_last_concretize",
    "batch_last_conv",
    "batch_last_conv_transposed",
    "batch_last_conv_weight",
    "batch_last_relax",
    "batch_last_relu_intervals",
    "build_info",
    "concretize_rows",
    "count_changed",
    "count_votes",
    "grid_noise",
    "hyperplane_step",
    "l1_step",
    "l1_step_in_ball",
    "linf_momentum_step",
    "linf_step",
    "logit_loss",
    "logit_verdict",
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
]

# Assigned, not only imported: the reference pages show the string below an assignment.
STAGES: Final = _STAGES
"""Purposes for which noise is drawn, the stages. Each has a number in Philox's counter; no two stages share a draw."""

FAMILIES: Final = _FAMILIES
"""Noise distributions, all with standard deviation sigma. Each has a number in Philox's counter."""

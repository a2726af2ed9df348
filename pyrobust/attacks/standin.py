"""Where ``add_perturbation`` was before it became an op."""

from __future__ import annotations

from pyrobust.ops.perturbation import add_perturbation

__all__ = ["add_perturbation"]

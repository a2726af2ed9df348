"""What surrounds an attack's step: batches and their state, queries, norms, grids, and the declaration of settings."""

from __future__ import annotations

from .batches import BatchAttack

__all__ = ["BatchAttack"]

"""Code that attacks share: batches and their state, queries, norms, grids and declared settings."""

from __future__ import annotations

from .batches import BatchAttack

__all__ = ["BatchAttack"]

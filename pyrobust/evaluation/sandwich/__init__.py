"""Sandwich: each example's distance to misclassification, bounded below by certificates and above by attacks."""

from __future__ import annotations

from pyrobust.evaluation.sandwich.result import Crossing, Sandwich
from pyrobust.evaluation.sandwich.sweep import sandwich, sandwich_dataset

__all__ = ["Crossing", "Sandwich", "sandwich", "sandwich_dataset"]

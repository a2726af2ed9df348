"""Diagnosis of attacks that fail: a robust model, or gradients that mislead?"""

from __future__ import annotations

from .diagnose import diagnose
from .finding import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]

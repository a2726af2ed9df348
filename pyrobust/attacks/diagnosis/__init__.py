"""Diagnosis of attacks that fail: is the model robust, or do its gradients mislead the attacks?"""

from __future__ import annotations

from .diagnose import diagnose
from .finding import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]

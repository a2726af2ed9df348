"""Every native op in plain PyTorch: specification, oracle of the tests, baseline of the benchmarks.

The functions have the signatures of their twins in ``pyrobust.ops`` and follow docs/decisions/noise-contract.md step by
step. They check no arguments: that is the ops' part.
"""

from __future__ import annotations

from .noise import FAMILIES, STAGES, noise_words, sample_noise, unit_noise
from .philox import philox4x32
from .votes import count_votes

__all__ = ["FAMILIES", "STAGES", "count_votes", "noise_words", "philox4x32", "sample_noise", "unit_noise"]

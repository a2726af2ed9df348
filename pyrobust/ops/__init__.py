"""One typed function per native op: argument checks, the call, the fake kernel.

``torch.ops.pyrobust`` holds the raw ops; these functions are how to call them. Each has a plain-PyTorch twin of the
same signature in ``pyrobust.reference``.
"""

from __future__ import annotations

from .count_votes import count_votes
from .native import build_info
from .sample_noise import FAMILIES, STAGES, sample_noise

__all__ = ["FAMILIES", "STAGES", "build_info", "count_votes", "sample_noise"]

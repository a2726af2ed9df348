"""Make the helpers of the sweeps' tests importable."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS / "evaluation"), str(_TESTS / "runs")]

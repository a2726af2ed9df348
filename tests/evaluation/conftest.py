"""Make the helpers of this folder, of the store's and of the attacks' tests importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[1] / name) for name in ("attacks", "runs"))]

"""Fixtures of the metrics' tests; makes metric_cases importable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def published():
    """A function that reads the label, prediction and radius columns of a published log."""
    folder = os.environ.get("PYROBUST_DATA")
    if not folder:
        pytest.skip("PYROBUST_DATA is not set")

    def read(name):
        columns = np.loadtxt(Path(folder) / "logs" / name, skiprows=1, usecols=(1, 2, 3), unpack=True)
        return columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2]

    return read

"""Fixtures for the thread counts of the CPU kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pyrobust import _C

sys.path.insert(0, str(Path(__file__).parent))  # for op_inputs


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    assert _C.num_threads() == request.param
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, then the GPU; a fake one would run the CPU's kernels again."""
    return torch.device("cpu") if request.param == "cpu" else request.getfixturevalue("cuda")

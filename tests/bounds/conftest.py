"""Every way of running the CPU kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pyrobust import _C

sys.path.insert(0, str(Path(__file__).parent))  # for exact, bound_nets, bound_sets, bound_graphs, bound_data


@pytest.fixture(params=_C.simd_levels())
def simd_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine can run, one after the other."""
    before = _C.simd_level()
    _C.set_simd_level(request.param)
    assert _C.simd_level() == request.param
    yield request.param
    _C.set_simd_level(before)


@pytest.fixture
def threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)

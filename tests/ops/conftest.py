"""Fixtures for the thread counts of the CPU kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pyrobust import _C


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

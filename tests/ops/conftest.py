"""Every way of running the CPU kernels, and the GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pyrobust import _C


@pytest.fixture(params=_C.simd_levels())
def simd_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine can run, one after the other."""
    before = _C.simd_level()
    _C.set_simd_level(request.param)
    assert _C.simd_level() == request.param
    yield request.param
    _C.set_simd_level(before)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    assert _C.num_threads() == request.param
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def cuda() -> torch.device:
    if _C.build_info()["cuda"] is None:
        pytest.skip("pyrobust was built without CUDA")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    return torch.device("cuda")

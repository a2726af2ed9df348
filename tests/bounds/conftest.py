"""Fixtures of the tests of bounds."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["native", "torch"])
def both_engines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once per engine, for every ``BoundedModel`` of its module."""
    model = functools.partial(request.module.BoundedModel, engine=request.param)
    monkeypatch.setattr(request.module, "BoundedModel", model)
    return str(request.param)

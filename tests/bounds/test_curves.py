"""Relaxations of smooth functions against ball arithmetic."""

from __future__ import annotations

import pytest
from bound_functions import FUNCTIONS, intervals, violations


@pytest.mark.parametrize("name", FUNCTIONS)
def test_relaxations_enclose_the_function(name: str) -> None:
    for seed in (0, 1):
        assert violations(name, *intervals(name, 300, seed)) == (0, 0)


@pytest.mark.full
@pytest.mark.parametrize("name", FUNCTIONS)
def test_relaxations_enclose_the_function_at_length(name: str) -> None:
    for seed in range(2, 102):
        assert violations(name, *intervals(name, 10_000, seed)) == (0, 0)

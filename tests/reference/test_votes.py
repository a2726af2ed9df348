"""The vote histogram against a loop over Python numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust.reference import count_votes

VALUES = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 65504.0]


def winner(row: list[float]) -> int:
    if any(math.isnan(value) or value == math.inf for value in row) or max(row) == -math.inf:
        return len(row)
    return row.index(max(row))  # ties go to the first


@given(
    st.integers(1, 6).flatmap(
        lambda classes: st.lists(
            st.tuples(st.lists(st.sampled_from(VALUES), min_size=classes, max_size=classes), st.integers(0, 2)),
            min_size=1,
            max_size=20,
        )
    ),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_against_a_loop(rows: list[tuple[list[float], int]], dtype: torch.dtype) -> None:
    classes = len(rows[0][0])
    want = [[5] * (classes + 1) for _ in range(3)]
    for row, image in rows:
        want[image][winner(row)] += 1
    counts = torch.full((3, classes + 1), 5)
    logits = torch.tensor([row for row, _ in rows], dtype=dtype)
    assert count_votes(logits, torch.tensor([image for _, image in rows]), counts) is counts
    assert counts.tolist() == want


@pytest.mark.parametrize("classes", [1, 10])
def test_no_rows(classes: int) -> None:
    counts = torch.zeros(0, classes + 1, dtype=torch.int64)
    assert count_votes(torch.empty(0, classes), torch.empty(0, dtype=torch.int64), counts).shape == (0, classes + 1)

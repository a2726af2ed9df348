"""Floating-point attack on smoothing: a base classifier that reads x from the low-order bits of x + noise.

Floats below 1/2 are multiples of 2^-25, and floats from 1/2 on are multiples of 2^-24. A sum that cancels is exact and
preserves this: for a pixel at 128/255, just above 1/2, and sigma = 1/2, every sum within 1/512 of zero is a multiple of
2^-24. For 127/255, just below 1/2, half of them are not. The smoothed classifier therefore changes between two images
one grey level apart, while its votes are unanimous at each of them and give radii far larger than the distance.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pyrobust import ABSTAIN, RandomizedSmoothing

SHAPE = (3, 64, 64)
SIGMA = 0.5
ODD, EVEN = 0, 1


def reads_low_bits(batch: torch.Tensor) -> torch.Tensor:
    """Predict class 0 if a value near zero is an odd multiple of 2^-25."""
    near = batch.abs() < 1 / 512
    odd = (batch * 2.0**25).remainder_(2) == 1
    any_odd = (near & odd).flatten(1).any(1)
    return torch.stack([any_odd, ~any_odd], 1).float()


def grey(level: int) -> torch.Tensor:
    return torch.full(SHAPE, float(level)) / 255


def certify(x: torch.Tensor, grid: str | None):
    smoother = RandomizedSmoothing(reads_low_bits, 2, SIGMA, grid=grid, batch_size=100)
    return smoother.certify_batch(x[None], n0=50, n=1000, alpha=0.001)


def test_float_noise_gives_false_certificates():
    here, there = certify(grey(127), None), certify(grey(128), None)
    distance = math.dist(grey(127).flatten().tolist(), grey(128).flatten().tolist())
    assert here.prediction.tolist() == [ODD]
    assert here.radius[0] > 2 * distance
    # This image lies within the radius, but by the argument above no sample of it has the certified class.
    assert there.counts[0].tolist() == [0, 1000, 0]
    assert there.prediction.tolist() == [EVEN]
    assert there.radius[0] > 2 * distance


def test_grid_noise_gives_consistent_certificates():
    levels = range(126, 130)
    results = [certify(grey(level), "1/255") for level in levels]
    assert {result.guarantee for result in results} == {"grid"}
    assert max(result.radius[0] for result in results) > 0.5  # otherwise nothing is tested
    for i, result in enumerate(results):
        for j, other in enumerate(results):
            distance = abs(i - j) / 255 * math.sqrt(np.prod(SHAPE))
            if result.radius[0] > distance:
                assert other.prediction[0] in (result.prediction[0], ABSTAIN)


@pytest.mark.usefixtures("unprobed")
def test_grid_sums_are_exact():
    """With the same noise, two images give sums that differ exactly by the difference of the images."""
    seen = []

    def look(batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.clone())
        return batch.flatten(1)[:, :2]

    smoother = RandomizedSmoothing(look, 2, SIGMA, grid="1/255", batch_size=50)
    smoother.votes(grey(127)[None], n=50, indices=[0])
    smoother.votes(grey(128)[None], n=50, indices=[0])
    first, second = ((batch.double() * 255).round() for batch in seen)
    assert torch.equal(first + 1, second)
    for integers, batch in zip((first, second), seen, strict=True):
        assert torch.equal(integers.float() / torch.tensor(255.0), batch)

"""A planted attack: a base classifier that reads x out of the low-order bits of x + noise.

A float below 1/2 is a multiple of 2^-25, one from 1/2 on of 2^-24. A sum that cancels is exact, and keeps that: for a
pixel at 128/255, just above 1/2, and sigma = 1/2, every sum within 1/512 of zero is a multiple of 2^-24. For 127/255,
just below, half of them are not. So the smoothed classifier changes between two images that are one grey level apart,
while at each of them its votes are unanimous: the radius that they give is far larger than the distance.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from pyrobust import ABSTAIN, RandomizedSmoothing

SHAPE = (3, 64, 64)
SIGMA = 0.5
READS, READS_NOT = 0, 1


def reads_low_bits(batch: torch.Tensor) -> torch.Tensor:
    """Class 0 where a number near zero is an odd multiple of 2^-25."""
    near = batch.abs() < 1 / 512
    odd = (batch * 2.0**25).remainder_(2) == 1
    found = (near & odd).flatten(1).any(1)
    return torch.stack([found, ~found], 1).float()


def grey(level: int) -> torch.Tensor:
    return torch.full(SHAPE, float(level)) / 255


def certify(x: torch.Tensor, grid: str | None):
    smoother = RandomizedSmoothing(reads_low_bits, 2, SIGMA, grid=grid, batch_size=100)
    return smoother.certify_batch(x[None], n0=50, n=1000, alpha=0.001)


def test_float_noise_certifies_what_is_false():
    here, there = certify(grey(127), None), certify(grey(128), None)
    distance = math.dist(grey(127).flatten().tolist(), grey(128).flatten().tolist())
    assert here.prediction.tolist() == [READS]
    assert here.radius[0] > 2 * distance
    # Within that radius, and by the argument above no sample at all is of the certified class.
    assert there.counts[0].tolist() == [0, 1000, 0]
    assert there.prediction.tolist() == [READS_NOT]
    assert there.radius[0] > 2 * distance


def test_noise_on_the_grid_does_not():
    levels = range(120, 136)
    found = [certify(grey(level), "1/255") for level in levels]
    assert {result.guarantee for result in found} == {"grid"}
    assert max(result.radius[0] for result in found) > 0.5  # there is something to contradict
    for i, one in enumerate(found):
        for j, other in enumerate(found):
            distance = abs(i - j) / 255 * math.sqrt(np.prod(SHAPE))
            if one.radius[0] > distance:
                assert other.prediction[0] in (one.prediction[0], ABSTAIN)


def test_sums_on_the_grid_tell_nothing_but_themselves():
    """The same noise on two images gives sums that differ by the images alone, to the last bit."""
    seen = []

    def look(batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.clone())
        return batch.flatten(1)[:, :2]

    smoother = RandomizedSmoothing(look, 2, SIGMA, grid="1/255", batch_size=50)
    smoother.votes(grey(127)[None], n=50)
    smoother.votes(grey(128)[None], n=50)
    first, second = ((batch.double() * 255).round() for batch in seen)
    assert torch.equal(first + 1, second)
    for integers, batch in zip((first, second), seen, strict=True):
        assert torch.equal(integers.float() / torch.tensor(255.0), batch)

"""Emulated grid noise of the CUDA threads: words that need further words to decide, and whole samples."""

from __future__ import annotations

import ctypes
import random
from fractions import Fraction

import numpy as np
import pytest
from emulation import build

from pyrobust import ops, reference
from pyrobust.reference.sample_grid_noise import _words

DOMAIN, SEED, IMAGE, SAMPLE = 256 + 3, 2**64 - 5, 2**32 - 1, 77


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build("grid.cpp", tmp_path_factory.mktemp("grid"))


def count_above(grid: ctypes.CDLL, thresholds: list[int], element: int, v: int, flip: bool) -> int:
    words = np.array([[t >> 64, t >> 32 & 0xFFFFFFFF, t & 0xFFFFFFFF] for t in thresholds], dtype=np.uint32)
    return int(
        grid.count_above(
            words.ctypes.data_as(ctypes.c_void_p),
            len(words),
            ctypes.c_uint64(SEED),
            ctypes.c_uint32(DOMAIN),
            ctypes.c_uint32(IMAGE),
            ctypes.c_uint32(SAMPLE),
            ctypes.c_uint32(element // 4),
            element % 4,
            ctypes.c_uint32(v),
            ctypes.c_uint32(0xFFFFFFFF if flip else 0),
        )
    )


@pytest.mark.parametrize("flip", [False, True])
def test_a_tie_takes_two_further_words(grid: ctypes.CDLL, flip: bool) -> None:
    """Use tables with many thresholds for one leading word, at and around the bits of the further words."""
    draw = random.Random(0)
    second, third = (_words(IMAGE, SAMPLE, 1, 12, DOMAIN + more, SEED) for more in (1, 2))
    decided = set()
    for element in range(12):
        rest = second[element] << 32 | third[element]
        rest = (1 << 64) - 1 - rest if flip else rest
        for v in (0, 1, 5, 2**30, 2**31 - 1):
            bits = v << 64 | rest
            near = [bits + move for move in (-(1 << 64), -(1 << 32), -1, 0, 1, 1 << 32, 1 << 64)]
            near += [v << 64 | draw.getrandbits(64) for _ in range(20)] + [v << 64, v << 64 | (1 << 64) - 1]
            near = [t for t in near if 0 <= t < 1 << 95]
            for size in (1, 2, 5, len(near)):
                table = sorted(draw.sample(near, size), reverse=True)
                want = sum(bits < t for t in table)
                assert count_above(grid, table, element, v, flip) == want
                decided.add((size, want))
    assert len(decided) > 20


def test_far_tails(grid: ctypes.CDLL) -> None:
    """Draw the smallest word, which lies above hundreds of thresholds."""
    noise = ops.grid_noise(1.0, Fraction(1, 255))
    second, third = (_words(IMAGE, SAMPLE, 1, 4, DOMAIN + more, SEED) for more in (1, 2))
    for element in range(4):
        bits = second[element] << 32 | third[element]
        want = sum(bits < t for t in noise.thresholds)
        assert sum(t >> 64 == 0 for t in noise.thresholds) > 100
        assert count_above(grid, list(noise.thresholds), element, 0, flip=False) == want


@pytest.mark.parametrize(("sigma", "step"), [(0.25, Fraction(1, 255)), (1.0, Fraction(1, 16)), (300.0, Fraction(1))])
def test_samples(grid: ctypes.CDLL, sigma: float, step: Fraction) -> None:
    noise, blocks = ops.grid_noise(sigma, step), 300
    guide, words = noise.guide.numpy(), noise.words.numpy()
    drawn = np.zeros(4 * blocks, dtype=np.int32)
    grid.grid_noise(
        guide.ctypes.data_as(ctypes.c_void_p),
        23 - (len(guide) // 32).bit_length() + 1,
        words.ctypes.data_as(ctypes.c_void_p),
        len(words),
        ctypes.c_uint64(SEED),
        ctypes.c_uint32(DOMAIN),
        ctypes.c_uint32(IMAGE),
        ctypes.c_uint32(SAMPLE),
        ctypes.c_int64(blocks),
        drawn.ctypes.data_as(ctypes.c_void_p),
    )
    want = reference.grid_integers(IMAGE, SAMPLE, 1, 4 * blocks, sigma=sigma, step=step, seed=SEED)
    assert drawn.tolist() == want[0].tolist()

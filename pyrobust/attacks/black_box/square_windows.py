"""Geometry of the Square attack: the window schedule, windows as memory offsets, and patterns."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyrobust.ops.native import read_here

# Numbers of queries, out of 10 000, after which the window's share of the image is halved.
_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


def window_share(query: int, n_queries: int, p_init: float, rescale: bool) -> float:
    """Return the share of the image that a query's window covers: at first p_init, then halved nine times.

    The share is halved after the queries numbered 10, 50, 200, 500, 1000, 2000, 4000, 6000 and 8000 (from 0) out of 10
    000; with ``rescale``, these numbers are scaled to n_queries (Andriushchenko et al., 2020, "Square Attack: a
    query-efficient black-box adversarial attack via random search", section 3).

    >>> window_share(10, 5000, 0.8, rescale=False), window_share(11, 5000, 0.8, rescale=False)
    (0.8, 0.4)
    >>> window_share(10, 5000, 0.8, rescale=True)
    0.4
    """
    if rescale:
        query = query * 10_000 // n_queries
    return float(p_init / 2 ** sum(query > limit for limit in _HALVINGS))


class Grid(NamedTuple):
    """The pixels of a batch of images, described by offsets into the memory of one image."""

    channels: int
    height: int
    width: int
    #: Number of elements from one channel, row and column to the next.
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, x: Tensor) -> Grid:
        """Return the pixel grid of a batch [B, C, H, W], contiguous or channels_last.

        Inputs of other shapes count as one row of one channel.

        >>> Grid.of(torch.zeros(2, 3, 4, 5)).strides
        (20, 5, 1)
        >>> Grid.of(torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)).strides
        (1, 15, 3)
        """
        if x.dim() != 4:
            return cls(1, 1, x[0].numel(), (0, 0, 1))
        _, channels, height, width = x.shape
        strides = (height * width, width, 1) if x.is_contiguous() else (1, width * channels, channels)
        return cls(channels, height, width, strides)

    @staticmethod
    def rows(x: Tensor) -> Tensor:
        """View x as [B, C·H·W], in memory order."""
        return (x if x.is_contiguous() else x.permute(0, 2, 3, 1)).flatten(1)

    def sides(self, share: float, odd: bool) -> tuple[int, int]:
        """Return height and width of a square with this share of the image's area, each cut to the image's side.

        With ``odd``, both are odd numbers of at least 3, unless the image is too small.
        """
        side = max(round(math.sqrt(share * self.height * self.width)), 3 if odd else 1)
        side += odd and side % 2 == 0
        return min(side, self.height), min(side, self.width)

    def window(self, sides: tuple[int, int], top: Tensor, left: Tensor) -> Tensor:
        """Return the offsets [B, C, h·w] of windows with upper left corners top [B] and left [B]."""
        _, row, column = self.strides
        (inside,) = read_here(_inside(self, sides, top.device))
        return (top * row + left * column)[:, None, None] + inside

    def tiles(self) -> tuple[Tensor, int]:
        """Return offsets [T, C, side²] of T squares, which leave a margin narrower than ``side``, and ``side``."""
        side = max(min(self.height, self.width) // 5, 1)
        down, across = self.height // side, self.width // side
        top, left = (self.height - down * side) // 2, (self.width - across * side) // 2
        rows = torch.arange(down).mul(side).add(top).repeat_interleave(across)
        columns = torch.arange(across).mul(side).add(left).repeat(down)
        return self.window((side, side), rows, columns), side


# There are few sizes, each used by many queries: copy each to the device once.
@functools.lru_cache(maxsize=64)
def _inside(grid: Grid, sides: tuple[int, int], device: torch.device) -> Tensor:
    """Return the offsets [C, h·w] of the pixels of the window in the upper left corner."""
    channel, row, column = grid.strides
    offsets = (
        torch.arange(grid.channels)[:, None, None] * channel
        + torch.arange(sides[0])[:, None] * row
        + torch.arange(sides[1]) * column
    )
    return offsets.flatten(1).to(device)


@functools.lru_cache(maxsize=64)
def pattern(sides: tuple[int, int], norm: str, device: torch.device | None = None) -> Tensor:
    """Return two windows, float64 [2, h·w]: each has a positive pyramid next to a negative one, with joint norm 1.

    A pyramid's value at a pixel is ``Σₖ 1 / (k + 1)ᵖ``, where k runs from the pixel's distance to the center up to the
    border's distance to the center. Both distances are in the maximum norm. The power p is 2 for l2 (Andriushchenko et
    al., 2020, equation 2) and 4 for l1. The first window stacks the pyramids vertically, and the second window stacks
    them horizontally. If the window is not square, both stack the pyramids along its longer side.

    >>> pattern((3, 3), "l2")[0].reshape(3, 3).sign().int()
    tensor([[ 1,  1,  1],
            [-1, -1, -1],
            [-1, -1, -1]], dtype=torch.int32)
    """
    height, width = sides
    tall = height >= width
    power, order = (2, 2) if norm == "l2" else (4, 1)
    across, along = min(sides), max(sides)
    halves = [_pyramid(half, across, power, order) for half in (along // 2, along - along // 2)]
    upright = torch.cat([halves[0], -halves[1]]) if along > 1 else halves[1]
    upright = upright / upright.flatten().norm(order)
    other = upright.T if height == width else upright
    return torch.stack([(pattern if tall else pattern.T).flatten() for pattern in (upright, other)]).to(device)


def _pyramid(height: int, width: int, power: int, order: int) -> Tensor:
    down = (torch.arange(height) - height // 2).abs()
    across = (torch.arange(width) - width // 2).abs()
    distance = torch.maximum(down[:, None], across)
    steps = max(height // 2, width // 2) + 1
    tails = torch.arange(1, steps + 1, dtype=torch.float64).pow(-power).flip(0).cumsum(0).flip(0)
    pyramid = tails[distance]
    return pyramid / pyramid.flatten().norm(order) if height else pyramid

"""Random search for points nearer than the nearest adversarial point so far, for inputs of few coordinates."""

from __future__ import annotations

from torch import Tensor

from pyrobust.checks import NORMS, count
from pyrobust.ops.logits import ROBUST

from ..engine.norms import Noise
from ..engine.settings import optional, setting
from ..engine.state import AttackState
from .engine import MinimumNormAttack
from .nearest import Nearest

# Number of the first random point, above those of FMN and FAB, and how many points are drawn in one call.
_FIRST, _BLOCK = 1 << 20, 100
# Number of neighbourhoods of the nearest point: the first is half its distance wide, each other half as wide as the one
# before.
_NEIGHBOURHOODS = 8
# Share of a neighbourhood's width by which its points have to be nearer to x.
_NEARER = 0.3


class Sampling(MinimumNormAttack):
    """Random search for the nearest adversarial point; it covers the ball around x if an input has few coordinates.

    First, points are drawn uniformly from a ball around x. Its radius is the distance of the nearest adversarial point
    so far, so the ball shrinks with each success. These points find boundaries to which no gradient at x leads. Then
    points are drawn from shrinking neighbourhoods of the nearest adversarial point. They find the corners of piecewise
    linear boundaries, near which gradients lead back and forth between faces. The number of points that cover a ball
    grows exponentially with the number of coordinates: beyond about eight coordinates, gradients are more effective.

    Args:
        model, epsilon, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``MinimumNormAttack``.
        norm: "linf", "l2" or "l1".

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> import torch
    >>> model = lambda x: torch.stack([torch.full_like(x[:, 0], 0.1), ((x - 0.2).abs() < 0.1).all(1).float()], 1)
    >>> x, y = torch.tensor([[0.75, 0.5]]), torch.tensor([0])
    >>> print(round(float(Sampling(model).minimum(x, y).distance), 2))  # a flat model with a box of another class
    0.45
    """

    norms = NORMS
    _elementwise = NORMS

    points: int = setting(count, "uniform points of the ball, at least 1", default=2000)
    neighbours: int = setting(count, "points in each of the eight neighbourhoods, at least 1", default=12)
    coordinates: int | None = setting(
        optional(count), "inputs of more coordinates are not sampled; None: all are", default=None
    )

    def _search(self, state: AttackState, nearest: Nearest) -> None:
        if self.coordinates is not None and state.x[0].numel() > self.coordinates:
            return
        if not bool((nearest.reach(state) > 0).any()):  # values have no limits, and there is no point to sample around
            return
        noise = _in_blocks(state.noise)
        for draw in range(self.points):
            radius = nearest.reach(state)
            self._try(state, nearest, state.norm.start(noise, draw, radius), radius)
        nearest.shorten(state)
        for draw in range(self.points, self.points + _NEIGHBOURHOODS * self.neighbours):
            width = 0.5 ** (1 + (draw - self.points) // self.neighbours)
            radius = nearest.reach(state)
            delta = state.norm.start(noise, draw, width * radius).add_(nearest.x).sub_(state.x)
            self._try(state, nearest, delta, radius * (1 - _NEARER * width))
        nearest.shorten(state)

    def _try(self, state: AttackState, nearest: Nearest, delta: Tensor, radius: Tensor) -> None:
        """Offer the points x + delta [B, ...], projected onto balls of radius [B] and onto the clip range."""
        point = state.norm.place(delta, state.ball._replace(epsilon=radius))
        nearest.offer(state, state.verdict(state.logits(point)) != ROBUST, point)


def _in_blocks(noise: Noise) -> Noise:
    """Return noise with draws numbered from _FIRST on and made in blocks; each number may be used only once."""
    blocks: dict[tuple[str, tuple[int, ...] | None], tuple[int, Tensor]] = {}

    def draw(family: str, number: int, shape: tuple[int, ...] | None = None) -> Tensor:
        block, offset = divmod(number, _BLOCK)
        if blocks.get((family, shape), (None,))[0] != block:
            blocks[family, shape] = block, noise(family, _FIRST + block * _BLOCK, _BLOCK, shape)
        return blocks[family, shape][1][:, offset : offset + 1]

    return draw

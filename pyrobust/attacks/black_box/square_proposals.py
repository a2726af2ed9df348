"""The proposals of the Square attack: its random starts and updates in each norm."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from pyrobust.ops.native import read_here
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.ops.square_window import square_window

from ..engine.norms import per_example
from ..engine.state import AttackState
from .square_windows import Grid, pattern


def _tiny(like: Tensor) -> float:
    """Return max(1e-12, the dtype's smallest normal number): added to a divisor, it keeps the quotient finite."""
    return max(1e-12, torch.finfo(like.dtype).smallest_normal)


class Proposals(abc.ABC):
    """Proposes changes to the best images so far, and reverts those that are rejected.

    Random numbers u are uniform on [-1, 1]. ``tensors`` holds the tensors kept per example; ``AttackState.retire``
    drops the rows of finished examples from these tensors and from the images.

    Attributes:
        odd: whether windows have odd sides of at least 3.
        grid: the pixels of the images.
        tensors: tensors kept per example, [B, ...].
        start_numbers: number of random numbers per start.
        query_numbers: number of random numbers per query.
    """

    odd: bool
    start_numbers: int
    query_numbers: int

    def __init__(self, state: AttackState) -> None:
        self.state = state
        self.grid = Grid.of(state.x)
        self.tensors: list[Tensor] = []

    @abc.abstractmethod
    def start(self, u: Tensor) -> Tensor:
        """Return start images [B, ...], made from the random numbers u [B, start_numbers]."""

    @abc.abstractmethod
    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        """Return the images ``best``, with one window changed in each image.

        The random numbers u [B, query_numbers] determine the changes. On the CPU ``best`` may be overwritten.
        """

    @abc.abstractmethod
    def settle(self, best: Tensor, accepted: Tensor) -> Tensor:
        """Return the best images, with the changes of the last proposal kept only in the accepted rows (mask [B])."""

    def _corner(self, sides: tuple[int, int], u: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the upper left corners of windows inside the image, top [B] and left [B], from uniform u [B, 2]."""
        corners = []
        for k, room in enumerate((self.grid.height - sides[0], self.grid.width - sides[1])):
            corners.append(((u[:, k] + 1) * (0.5 * (room + 1))).long().clamp_(0, room))
        return corners[0], corners[1]


class _InPlace(Proposals):
    """Proposals that read and write only windows, so that a query needs no pass over whole images."""

    def __init__(self, state: AttackState) -> None:
        super().__init__(state)
        self._written: list[tuple[Tensor, Tensor, Tensor]] = []

    def settle(self, best: Tensor, accepted: Tensor) -> Tensor:
        rows = Grid.rows(best)
        for offsets, old, new in self._written:
            rows.scatter_(1, offsets, torch.where(accepted.unsqueeze(1), new, old))
        return best

    def _write(self, best: Tensor, *changes: tuple[Tensor, Tensor]) -> Tensor:
        """Return ``best`` with the changes written one after the other: values [B, C, n] at offsets [B, C, n]."""
        # On a GPU the attack state still needs these images some queries later.
        candidate = best.clone() if best.is_cuda else best
        rows = Grid.rows(candidate)
        flat = [(offsets.flatten(1), new.flatten(1)) for offsets, new in changes]
        # Read all old values before writing: windows may overlap.
        self._written = [(offsets, rows.gather(1, offsets), new) for offsets, new in flat]
        for offsets, new in flat:
            rows.scatter_(1, offsets, new)
        return candidate


class _Linf(_InPlace):
    """Proposes windows in which each channel is x + ε or x − ε, clipped (Andriushchenko et al., 2020, algorithm 2)."""

    odd = False

    def __init__(self, state: AttackState) -> None:
        super().__init__(state)
        # Every coordinate always has one of these two values.
        far = torch.full_like(state.x, min(state.upper - state.lower, torch.finfo(state.x.dtype).max))
        self.tensors = [state.place(far), state.place(-far)]
        self.start_numbers = self.grid.channels * self.grid.width
        self.query_numbers = 2 + self.grid.channels

    def start(self, u: Tensor) -> Tensor:
        """Start from vertical stripes, one pixel wide."""
        shape = (len(u), self.grid.channels, 1, self.grid.width) if self.state.x.dim() == 4 else self.state.x.shape
        high, low = self.tensors
        return torch.where(u.reshape(shape) > 0, high, low)

    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        window = self.grid.window(sides, *self._corner(sides, u))
        high, low = (_read(bound, window) for bound in self.tensors)
        return self._write(best, (window, torch.where(u[:, 2:, None] > 0, high, low)))


class _L2(_InPlace):
    """Moves the norm of the changes in two windows into one of them (Andriushchenko et al., 2020, algorithm 3).

    If clipping shortens the change in this window, the norm that it removes is spent in the same window and query. The
    original does not do this.
    """

    odd = True

    def __init__(self, state: AttackState) -> None:
        super().__init__(state)
        self._spent = torch.zeros_like(state.epsilon)
        self.start_numbers, self.query_numbers = _numbers(self.grid)

    def start(self, u: Tensor) -> Tensor:
        x_adv = self.state.place(_tiles(self.grid, u, "l2", self.state.x, self.state.epsilon))
        self.tensors = [self.state.norm.distance(x_adv, self.state.x).square_()]
        return x_adv

    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        state, grid = self.state, self.grid
        [spent] = self.tensors  # ‖best - x‖², float64
        corner, other = self._corner(sides, u), self._corner(sides, u[:, 2:])
        window, emptied = grid.window(sides, *corner), grid.window(sides, *other)
        x, x_emptied = _read(state.x, window), _read(state.x, emptied)
        delta = (_read(best, window) - x).double()
        moved = (_read(best, emptied) - x_emptied).double()
        moved.masked_fill_(_overlap(corner, other, sides).unsqueeze(1), 0)
        squares = delta.square().sum(-1, keepdim=True)
        budget = squares + moved.square().sum(-1, keepdim=True)
        unspent = ((state.epsilon * _shrink(state.x)).square() - spent).clamp_(min=0) / grid.channels
        new = _patterns(sides, "l2", u[:, 4:]).add_(delta.div_(squares.sqrt() + _tiny(squares)))
        budget_left = budget + unspent[:, None, None]
        new.mul_(budget_left.sqrt() / (new.square().sum(-1, keepdim=True).sqrt() + _tiny(new)))
        new = _fill(new, budget_left, state.lower - x.double(), state.upper - x.double())
        value = add_perturbation(x, new.to(x.dtype), state.lower, state.upper)
        self._spent = spent - budget.sum((1, 2)) + (value - x).double().square().sum((1, 2))
        return self._write(best, (emptied, x_emptied), (window, value))

    def settle(self, best: Tensor, accepted: Tensor) -> Tensor:
        self.tensors = [torch.where(accepted, self._spent, self.tensors[0])]
        return super().settle(best, accepted)


class _L1(Proposals):
    """Projects the l2 proposal onto the l1 ball and the clip range (Croce and Hein, 2021)."""

    odd = True

    def __init__(self, state: AttackState) -> None:
        super().__init__(state)
        self._candidate = state.x
        self.start_numbers, self.query_numbers = _numbers(self.grid)

    def start(self, u: Tensor) -> Tensor:
        return self.state.place(_tiles(self.grid, u, self.state.norm.name, self.state.x, self.state.epsilon))

    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        state, grid = self.state, self.grid
        window = grid.window(sides, *self._corner(sides, u))
        emptied = grid.window(sides, *self._corner(sides, u[:, 2:]))
        change = best - state.x
        rows = Grid.rows(change)
        unspent = (state.epsilon - rows.abs().sum(1, dtype=torch.float64)).clamp_(min=0)
        delta = _read(change, window)
        norm = delta.abs().sum(-1, keepdim=True)
        emptied = emptied.flatten(1)
        rows.scatter_(1, window.flatten(1), 0)
        moved = rows.gather(1, emptied)
        rows.scatter_(1, emptied, 0)
        budget = norm + moved.view_as(delta).abs().sum(-1, keepdim=True)
        new = _patterns(sides, "l1", u[:, 4:]).to(delta.dtype).add_(delta.div_(norm + _tiny(norm)))
        # May exceed the budget: the projection takes the excess from the rest of the image.
        length = (budget * grid.channels).add_(per_example(unspent, budget))
        new.mul_(length / (new.abs().sum(-1, keepdim=True) + _tiny(new)))
        rows.scatter_(1, window.flatten(1), new.flatten(1))
        self._candidate = state.place(change)
        return self._candidate

    def settle(self, best: Tensor, accepted: Tensor) -> Tensor:
        return torch.where(accepted.view(-1, *[1] * (best.dim() - 1)), self._candidate, best)


class _OnGpu(_L1):
    """Makes the proposals of ``_L2`` and ``_L1`` in one kernel launch."""

    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        state, norm = self.state, self.state.norm.name
        radius = state.epsilon * _shrink(state.x) if norm == "l2" else state.epsilon
        (patterns,) = read_here(pattern(sides, norm, u.device))
        proposal = square_window(
            best, state.x, u, patterns, radius=radius, sides=sides, norm=norm, lower=state.lower, upper=state.upper
        )
        self._candidate = proposal if norm == "l2" else state.place(proposal)
        return self._candidate


def proposals(state: AttackState) -> Proposals:
    """Make the ``Proposals`` for the norm of the attack."""
    if state.norm.name == "linf":
        return _Linf(state)
    if state.x.is_cuda:
        return _OnGpu(state)
    return _L2(state) if state.norm.name == "l2" else _L1(state)


def _shrink(x: Tensor) -> float:
    """Return the share of the l2 radius to use; the rest allows for rounding errors, which add up over many queries."""
    return 1 - max(4 * torch.finfo(x.dtype).eps, 1e-11)


def _read(x: Tensor, offsets: Tensor) -> Tensor:
    """Gather x [B, ...] at offsets [B, C, n]."""
    return Grid.rows(x).gather(1, offsets.flatten(1)).view(offsets.shape)


def _numbers(grid: Grid) -> tuple[int, int]:
    """Return how many random numbers a start takes, and how many a query takes."""
    tiles, _ = grid.tiles()
    return len(tiles) * (1 + grid.channels), 5 + grid.channels


def _patterns(sides: tuple[int, int], norm: str, u: Tensor) -> Tensor:
    """Make patterns [..., C, h·w], float64; u [..., 1 + C] selects one of two patterns and its sign per channel."""
    (both,) = read_here(pattern(sides, norm, u.device))
    chosen = torch.where(u[..., :1] > 0, both[0], both[1])
    return chosen.unsqueeze(-2) * torch.where(u[..., 1:, None] > 0, 1.0, -1.0).double()


def _fill(delta: Tensor, budget: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Clip delta [B, C, n] to [low, high]; scale the unclipped elements up until the squared length is ``budget``."""
    clipped = torch.minimum(torch.maximum(delta, low), high)
    square, cut = clipped.square(), clipped != delta
    outside = square.masked_fill(cut, 0).sum(-1, keepdim=True)
    scale = (budget - square.mul_(cut).sum(-1, keepdim=True)).clamp_(min=0).div_(outside + _tiny(outside)).sqrt_()
    return torch.where(cut, clipped, clipped * scale)


def _tiles(grid: Grid, u: Tensor, norm: str, x: Tensor, epsilon: Tensor) -> Tensor:
    """Make a perturbation of length at least epsilon [B] from patterns in square tiles that cover the image."""
    offsets, side = grid.tiles()
    values = _patterns((side, side), norm, u.view(len(u), len(offsets), -1)).flatten(1)
    length = values.norm(2 if norm == "l2" else 1, dim=1)
    # In l1 the projection of a longer perturbation keeps only the tips of the patterns.
    scale = epsilon / length if norm == "l2" else (epsilon / length).clamp_(min=1)
    values.mul_(scale.unsqueeze(1))
    delta = torch.zeros_like(x)
    Grid.rows(delta).scatter_(1, offsets.to(u.device).flatten().expand(len(u), -1), values.to(x.dtype))
    return delta


def _overlap(corner: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], sides: tuple[int, int]) -> Tensor:
    """Return which pixels of the windows at ``other`` also belong to the windows at ``corner``, bool [B, h·w]."""
    inside = []
    for first, second, side in zip(corner, other, sides, strict=True):
        position = second.unsqueeze(1) + torch.arange(side, device=first.device) - first.unsqueeze(1)
        inside.append((position >= 0) & (position < side))
    return (inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).flatten(1)

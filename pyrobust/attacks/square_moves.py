"""The moves of the Square attack: how a start and a query change the image, in each norm."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from pyrobust.ops.perturbation import add_perturbation

from .job import Job
from .norms import per_example
from .square_windows import Grid, pattern


def _tiny(like: Tensor) -> float:
    """What keeps a quotient finite: 1e-12, or the least normal number of the dtype."""
    return max(1e-12, torch.finfo(like.dtype).smallest_normal)


class Moves(abc.ABC):
    """Proposes changes of the best images so far, and takes back those that are not accepted.

    Random numbers u are uniform in [-1, 1]. Whatever is kept for each example is in ``state`` and goes through
    ``Job.retire`` with the images.

    Attributes:
        odd: whether windows have odd sides of at least 3.
        grid: the pixels of the images.
        state: tensors [B, ...].
        start_numbers: how many random numbers a start takes.
        query_numbers: how many random numbers a query takes.
    """

    odd: bool
    start_numbers: int
    query_numbers: int

    def __init__(self, job: Job) -> None:
        self.job = job
        self.grid = Grid.of(job.x)
        self.state: list[Tensor] = []

    @abc.abstractmethod
    def start(self, u: Tensor) -> Tensor:
        """The first images [B, ...], from u [B, start_numbers]."""

    @abc.abstractmethod
    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        """Images with one window changed, from u [B, query_numbers]; on the CPU best itself may be changed."""

    @abc.abstractmethod
    def settle(self, best: Tensor, accepted: Tensor) -> Tensor:
        """The best images after the last proposal, of which the rows accepted [B] stand."""

    def _corner(self, sides: tuple[int, int], u: Tensor) -> tuple[Tensor, Tensor]:
        """Upper left corners, top [B] and left [B], from u [B, 2]: uniform among those that leave the window inside."""
        corners = []
        for k, room in enumerate((self.grid.height - sides[0], self.grid.width - sides[1])):
            corners.append(((u[:, k] + 1) * (0.5 * (room + 1))).long().clamp_(0, room))
        return corners[0], corners[1]


class _InPlace(Moves):
    """Moves that touch windows alone, so that a query costs no pass over the images."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._written: list[tuple[Tensor, Tensor, Tensor]] = []

    def settle(self, best: Tensor, accepted: Tensor) -> Tensor:
        rows = Grid.rows(best)
        for offsets, old, new in self._written:
            rows.scatter_(1, offsets, torch.where(accepted.unsqueeze(1), new, old))
        return best

    def _write(self, best: Tensor, *changes: tuple[Tensor, Tensor]) -> Tensor:
        """Writes new values [B, C, n] at offsets [B, C, n], one change after the other."""
        # On a GPU the job looks at the images again some queries later.
        candidate = best.clone() if best.is_cuda else best
        rows = Grid.rows(candidate)
        flat = [(offsets.flatten(1), new.flatten(1)) for offsets, new in changes]
        # What was there is read before anything is written: windows overlap.
        self._written = [(offsets, rows.gather(1, offsets), new) for offsets, new in flat]
        for offsets, new in flat:
            rows.scatter_(1, offsets, new)
        return candidate


class _Linf(_InPlace):
    """Windows of one colour at a corner of the ball (Andriushchenko et al., 2020, algorithm 2)."""

    odd = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        # Every coordinate is at one of two values, always.
        far = torch.full_like(job.x, job.upper - job.lower)
        self.state = [job.place(far), job.place(-far)]
        self.start_numbers = self.grid.channels * self.grid.width
        self.query_numbers = 2 + self.grid.channels

    def start(self, u: Tensor) -> Tensor:
        """Vertical stripes of one pixel."""
        shape = (len(u), self.grid.channels, 1, self.grid.width) if self.job.x.dim() == 4 else self.job.x.shape
        high, low = self.state
        return torch.where(u.reshape(shape) > 0, high, low)

    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        window = self.grid.window(sides, *self._corner(sides, u))
        high, low = (_read(bound, window) for bound in self.state)
        return self._write(best, (window, torch.where(u[:, 2:, None] > 0, high, low)))


class _L2(_InPlace):
    """Moves the budget of two windows into one of them, a pattern added (Andriushchenko et al., 2020, algorithm 3).

    Unlike there, the window's budget that the clip range cuts off is spent in the same window and query.
    """

    odd = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._spent = torch.zeros_like(job.epsilon)
        self.start_numbers, self.query_numbers = _numbers(self.grid)

    def start(self, u: Tensor) -> Tensor:
        x_adv = self.job.place(_tiles(self.grid, u, "l2", self.job.x, self.job.epsilon))
        self.state = [self.job.norm.distance(x_adv, self.job.x).square_()]
        return x_adv

    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        job, grid = self.job, self.grid
        [spent] = self.state  # ‖best - x‖², float64
        corner, other = self._corner(sides, u), self._corner(sides, u[:, 2:])
        window, emptied = grid.window(sides, *corner), grid.window(sides, *other)
        x, x_emptied = _read(job.x, window), _read(job.x, emptied)
        delta = (_read(best, window) - x).double()
        moved = (_read(best, emptied) - x_emptied).double()
        moved.masked_fill_(_overlap(corner, other, sides).unsqueeze(1), 0)
        own = delta.square().sum(-1, keepdim=True)
        budget = own + moved.square().sum(-1, keepdim=True)
        # For what is rounded below: elements to x's dtype, and the sums of thousands of queries.
        slack = 1 - max(4 * torch.finfo(job.x.dtype).eps, 1e-11)
        unspent = ((job.epsilon * slack).square() - spent).clamp_(min=0) / grid.channels
        new = _patterns(sides, "l2", u[:, 4:]).add_(delta.div_(own.sqrt() + _tiny(own)))
        budget_left = budget + unspent[:, None, None]
        new.mul_(budget_left.sqrt() / (new.square().sum(-1, keepdim=True).sqrt() + _tiny(new)))
        new = _fill(new, budget_left, job.lower - x.double(), job.upper - x.double())
        value = add_perturbation(x, new.to(x.dtype), job.lower, job.upper)
        self._spent = spent - budget.sum((1, 2)) + (value - x).double().square().sum((1, 2))
        return self._write(best, (emptied, x_emptied), (window, value))

    def settle(self, best: Tensor, accepted: Tensor) -> Tensor:
        self.state = [torch.where(accepted, self._spent, self.state[0])]
        return super().settle(best, accepted)


class _L1(Moves):
    """As in l2, followed by the projection on the l1 ball and the clip range (Croce and Hein, 2021)."""

    odd = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._candidate = job.x
        self.start_numbers, self.query_numbers = _numbers(self.grid)

    def start(self, u: Tensor) -> Tensor:
        return self.job.place(_tiles(self.grid, u, "l1", self.job.x, self.job.epsilon))

    def propose(self, best: Tensor, sides: tuple[int, int], u: Tensor) -> Tensor:
        job, grid = self.job, self.grid
        window = grid.window(sides, *self._corner(sides, u))
        emptied = grid.window(sides, *self._corner(sides, u[:, 2:]))
        change = best - job.x
        rows = Grid.rows(change)
        unspent = (job.epsilon - rows.abs().sum(1, dtype=torch.float64)).clamp_(min=0)
        delta = _read(change, window)
        own = delta.abs().sum(-1, keepdim=True)
        emptied = emptied.flatten(1)
        rows.scatter_(1, window.flatten(1), 0)
        moved = rows.gather(1, emptied)
        rows.scatter_(1, emptied, 0)
        budget = own + moved.view_as(delta).abs().sum(-1, keepdim=True)
        new = _patterns(sides, "l1", u[:, 4:]).to(delta.dtype).add_(delta.div_(own + _tiny(own)))
        # More than is left over: the projection takes it from the rest of the image.
        length = (budget * grid.channels).add_(per_example(unspent, budget))
        new.mul_(length / (new.abs().sum(-1, keepdim=True) + _tiny(new)))
        rows.scatter_(1, window.flatten(1), new.flatten(1))
        self._candidate = job.place(change)
        return self._candidate

    def settle(self, best: Tensor, accepted: Tensor) -> Tensor:
        return torch.where(accepted.view(-1, *[1] * (best.dim() - 1)), self._candidate, best)


#: The moves by norm.
MOVES: dict[str, type[Moves]] = {"linf": _Linf, "l2": _L2, "l1": _L1}


def _read(x: Tensor, offsets: Tensor) -> Tensor:
    """The values of x [B, ...] at offsets [B, C, n]."""
    return Grid.rows(x).gather(1, offsets.flatten(1)).view(offsets.shape)


def _numbers(grid: Grid) -> tuple[int, int]:
    """Of a start: an orientation and a sign a channel for each tile; of a query: two corners, and the same."""
    tiles, _ = grid.tiles()
    return len(tiles) * (1 + grid.channels), 5 + grid.channels


def _patterns(sides: tuple[int, int], norm: str, u: Tensor) -> Tensor:
    """[..., C, h·w], float64: u [..., 1 + C] chooses one of the two patterns, and its sign in each channel."""
    both = pattern(sides, norm, u.device)
    chosen = torch.where(u[..., :1] > 0, both[0], both[1])
    return chosen.unsqueeze(-2) * torch.where(u[..., 1:, None] > 0, 1.0, -1.0).double()


def _fill(delta: Tensor, budget: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """What [low, high] cuts off a part of delta [B, C, n] is given to the rest, up to the squared length budget."""
    clipped = torch.minimum(torch.maximum(delta, low), high)
    square, cut = clipped.square(), clipped != delta
    rest = square.masked_fill(cut, 0).sum(-1, keepdim=True)
    scale = (budget - square.mul_(cut).sum(-1, keepdim=True)).clamp_(min=0).div_(rest + _tiny(rest)).sqrt_()
    return torch.where(cut, clipped, clipped * scale)


def _tiles(grid: Grid, u: Tensor, norm: str, x: Tensor, epsilon: Tensor) -> Tensor:
    """A perturbation of patterns in squares that cover the image, epsilon [B] long at least."""
    offsets, side = grid.tiles()
    values = _patterns((side, side), norm, u.view(len(u), len(offsets), -1)).flatten(1)
    length = values.norm(2 if norm == "l2" else 1, dim=1)
    # In l1 a longer one keeps, once projected, the tips of the patterns alone.
    scale = epsilon / length if norm == "l2" else (epsilon / length).clamp_(min=1)
    values.mul_(scale.unsqueeze(1))
    delta = torch.zeros_like(x)
    Grid.rows(delta).scatter_(1, offsets.to(u.device).flatten().expand(len(u), -1), values.to(x.dtype))
    return delta


def _overlap(corner: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], sides: tuple[int, int]) -> Tensor:
    """[B, h·w], which pixels of the windows at ``other`` are also in those at ``corner``."""
    inside = []
    for at, there, side in zip(corner, other, sides, strict=True):
        place = there.unsqueeze(1) + torch.arange(side, device=at.device) - at.unsqueeze(1)
        inside.append((place >= 0) & (place < side))
    return (inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).flatten(1)

"""A smoother with noise of your own: triangular noise, with l1 radii that are checked in exact arithmetic.

The proof of the radius is in docs/extending/noise-family.md. Prints how far exact probabilities stay above 1/2 within
the radius, how closely the drawn noise follows the distribution function of the formula, and certified accuracy.
"""

import itertools
import math
import random
from fractions import Fraction

import torch
from torch import Tensor, nn

from pyrobust import ABSTAIN, compute_certified_accuracy
from pyrobust.ops import count_votes
from pyrobust.stats import clopper_pearson_lower
from pyrobust.zoo import load_digits, load_model


def triangular_radius(p_lower: float, sigma: float) -> float:
    """λ·(1 − √(2(1 − p))) with λ = √6·sigma, rounded down; 0 where p ≤ 1/2."""
    if not p_lower > 0.5:  # also NaN
        return 0.0
    width = math.sqrt(6) * sigma
    radius = width * (1 - math.sqrt(2 * (1 - p_lower)))  # 1 − p is exact; four roundings of numbers up to λ follow
    return max(0.0, math.nextafter(radius - width * 2.0**-48, -math.inf))


def triangular_noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw from the density 1 − |z| on [−1, 1]."""
    return torch.rand(shape, generator=generator) + torch.rand(shape, generator=generator) - 1


class TriangularSmoothing:
    """Certify by triangular noise; every call draws fresh noise."""

    def __init__(self, model: nn.Module, num_classes: int, sigma: float, seed: int = 0) -> None:
        self.model, self.num_classes, self.sigma, self.seed = model, num_classes, sigma, seed
        self.calls = 0

    def certify(self, x: Tensor, *, n: int = 10_000, alpha: float = 0.001, n0: int = 100) -> tuple[int, float]:
        self.calls += 1
        selected = int(self._votes(x, n0, stage=0)[:-1].argmax())
        votes = int(self._votes(x, n, stage=1)[selected])  # from other samples than those that selected the class
        radius = triangular_radius(clopper_pearson_lower(votes, n, alpha), self.sigma)
        return (selected, radius) if radius > 0 else (ABSTAIN, 0.0)

    @torch.no_grad()
    def _votes(self, x: Tensor, n: int, stage: int) -> Tensor:
        generator = torch.Generator().manual_seed((self.seed << 40) + (self.calls << 1) + stage)
        counts = torch.zeros(1, self.num_classes + 1, dtype=torch.int64)  # the last column: logits with NaN
        for begin in range(0, n, 1000):
            noise = triangular_noise((min(1000, n - begin), *x.shape), generator)
            logits = self.model(x + math.sqrt(6) * self.sigma * noise)
            count_votes(logits, torch.zeros(len(logits), dtype=torch.int64), counts)
        return counts[0]


def mass(begin: Fraction, end: Fraction) -> Fraction:
    """Return the exact probability of [begin, end] for λ = 1."""

    def below(z: Fraction) -> Fraction:
        z = min(max(z, Fraction(-1)), Fraction(1))
        return (1 + z) ** 2 / 2 if z <= 0 else 1 - (1 - z) ** 2 / 2

    return below(end) - below(begin)


def probability(cells: list[tuple[int, int]], shift: tuple[Fraction, Fraction]) -> Fraction:
    """Return the exact probability of a union of cells of width 1/4 in two dimensions, after a shift."""
    width, total = Fraction(1, 4), Fraction(0)
    for i, j in cells:
        column = mass(i * width - shift[0], (i + 1) * width - shift[0])
        total += column * mass(j * width - shift[1], (j + 1) * width - shift[1])
    return total


# The formula: within its radius, no event of probability p falls below 1/2. A wrong formula fails: try sigma * 1.01.
draw = random.Random(0)
plane = [(i, j) for i in range(-6, 6) for j in range(-6, 6)]
half_planes = [[cell for cell in plane if cell[0] >= k] for k in range(-5, 0)]  # the events that attain the radius
others = [[(i, j) for i, j in plane if draw.uniform(-1, 1) * i + j + draw.uniform(-1, 1) > -1] for _ in range(20)]
lowest = Fraction(1)
for event in half_planes + others:
    p = probability(event, (Fraction(0), Fraction(0)))
    rounded = float(p) if Fraction(float(p)) <= p else math.nextafter(float(p), 0)
    radius = Fraction(triangular_radius(rounded, 1 / math.sqrt(6)))
    if radius > 0:
        for share, first, second in itertools.product((Fraction(1), Fraction(0), Fraction(1, 3)), (1, -1), (1, -1)):
            lowest = min(lowest, probability(event, (first * radius * share, second * radius * (1 - share))))
print(f"lowest probability within the radius: 1/2 {float(lowest - Fraction(1, 2)):+.0e}")

# The sampler: noise narrower than the formula assumes would make every radius false.
z = triangular_noise((10**6,), torch.Generator().manual_seed(0)).double().sort().values
cumulative = torch.where(z <= 0, (1 + z) ** 2 / 2, 1 - (1 - z) ** 2 / 2)
distance = float((cumulative - torch.arange(1, 10**6 + 1) / 10**6).abs().max())
print(f"distance of the drawn distribution: {distance:.4f}, expected below 0.0020")

digits = load_digits()
smoother = TriangularSmoothing(load_model("zoo:digits-smooth-0.25"), num_classes=10, sigma=0.25)
rates = compute_certified_accuracy(smoother, digits.x[:20], digits.y[:20], radii=[0.0, 0.25, 0.5], n=2000)
for r in (0.0, 0.25, 0.5):
    print(f"certified accuracy at l1 radius {r}: {rates[f'certified_r={r}']:.0%}")

"""Search for inputs at which a smoothed classifier predicts another class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from pyrobust.attacks import DDN, FMN, MinimumNormAttack
from pyrobust.attacks.engine.levels import Levels
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.runner import evaluation_mode, logits_of
from pyrobust.smoothing import RandomizedSmoothing

# Multiples of the perturbation found for the averaged probabilities, tried until the votes change.
_OVERSHOOTS = (1.0, 1.25, 1.6, 2.0, 2.5)
_BISECTIONS = 6
# Number of votes to judge one multiple.
_VOTES = 1000
# Standard deviations by which the test at the point found is expected to exceed its critical value.
_RESERVE = 3.0


class AveragedClassifier(nn.Module):
    """Model that returns the logarithms of class probabilities averaged over fixed samples of a smoother's noise.

    The output ``log((1/m)·Σₖ softmax(f(x + δₖ)))`` is a differentiable surrogate of the smoothed classifier, for
    attacks (Salman et al., 2019). All inputs share the m samples, which are reserved for attacks.

    >>> smoother = RandomizedSmoothing(nn.Linear(2, 3), num_classes=3, sigma=0.5)
    >>> averaged = AveragedClassifier(smoother, 8, (2,))
    >>> bool(torch.allclose(averaged(torch.zeros(5, 2)).exp().sum(1), torch.ones(5)))
    True
    """

    def __init__(self, smoother: RandomizedSmoothing, draws: int, shape: Sequence[int]) -> None:
        super().__init__()
        runner = smoother.runner
        self.model, self.normalize = runner.model, smoother.normalize
        zero = torch.zeros((1, *shape), dtype=runner.dtype, device=runner.device)
        sampler = smoother.sampler
        self.noise = sample_noise(
            zero, [(0, 0, 0, draws)], sigma=sampler.sigma, noise=sampler.noise, stage="attack", seed=sampler.seed
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithms of the averaged probabilities [N, K] of inputs [N, ...]."""
        noisy = (x.unsqueeze(1) + self.noise.to(x.dtype)).flatten(0, 1)
        if self.normalize is not None:
            mean, std = (statistic.to(x).view(-1, *[1] * (x.dim() - 2)) for statistic in self.normalize)
            noisy = (noisy - mean) / std
        logits = logits_of(self.model(noisy))
        return logits.log_softmax(1).view(len(x), len(self.noise), -1).logsumexp(1) - math.log(len(self.noise))


class SmoothedAttack:
    """Searches for the nearest input at which a smoothed classifier predicts a class other than the label.

    A minimum-norm attack (DDN in l2, FMN in l1) on the averaged probabilities gives a direction. Along this direction,
    the search looks for the nearest point at which a test with ``n_attack`` samples will probably reject the label. It
    judges each point by votes on the attack's own noise samples. A separate test on other noise decides whether the
    attack succeeds.

    Args:
        smoother: the smoothed classifier; its grid of pixel values must already be chosen.
        clip: range of valid pixels; None for no limit.
        shape: shape of one image.
        steps: steps of the attack.
        draws: noise samples over which the attack's gradients are averaged.
        n_attack: samples of the test.
        alpha_attack: error probability of the test.
    """

    def __init__(
        self,
        smoother: RandomizedSmoothing,
        clip: tuple[float, float] | None,
        shape: Sequence[int],
        *,
        steps: int,
        draws: int,
        n_attack: int,
        alpha_attack: float,
    ) -> None:
        self.smoother, self.steps, self.draws = smoother, steps, draws
        self.grid = smoother.sampler.grid
        runner = smoother.runner
        batch = runner.given_batch_size
        options: dict[str, Any] = {
            "norm": smoother.norm,
            "clip": clip,
            "steps": steps,
            "seed": smoother.seed,
            "grid": self.grid,
            "device": runner.device,
            "dtype": runner.dtype,
            "batch_size": None if batch is None else max(1, batch // draws),
        }
        averaged = AveragedClassifier(smoother, draws, shape)
        with evaluation_mode(averaged):
            self.attack: MinimumNormAttack = (DDN if smoother.norm == "l2" else FMN)(averaged, **options)
        self.clip = clip
        # Two-sided, for the standardized lead (p - q)/√(p + q)·√n of one class over another.
        self.needed = (-float(special.ndtri(alpha_attack / 2)) + _RESERVE) / math.sqrt(n_attack)

    def find(self, x: Tensor, y: Tensor, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the nearest points whose votes reject the labels, [B, ...], and whether one was found, bool [B].

        Where none was found, the point is x.

        Args:
            x: [B, C, H, W], float32, in the clip range and on the smoother's grid.
            y: [B], int64, the labels.
            indices: [B], the data-set indices of the images, which determine the noise.
        """
        nearest = self.attack.minimum(x, y, indices=indices, margin=False)
        delta = nearest.x_adv.cpu().double() - x.double()
        far = torch.zeros(len(x), dtype=torch.float64)  # smallest multiple that changed the votes
        near = torch.zeros(len(x), dtype=torch.float64)  # largest multiple that did not
        candidates = nearest.success.cpu().nonzero()[:, 0]
        for multiple in _OVERSHOOTS:
            trial = torch.full((len(candidates),), multiple, dtype=torch.float64)
            candidate_indices = [indices[i] for i in candidates.tolist()]
            rejected = self._rejects(
                self._points(x[candidates], delta[candidates], trial), y[candidates], candidate_indices
            )
            far[candidates[rejected]] = multiple
            near[candidates[~rejected]] = multiple
            candidates = candidates[~rejected]
        chosen = (far > 0).nonzero()[:, 0]
        candidate_indices = [indices[i] for i in chosen.tolist()]
        for _ in range(_BISECTIONS):
            trial = (near[chosen] + far[chosen]) / 2
            rejected = self._rejects(self._points(x[chosen], delta[chosen], trial), y[chosen], candidate_indices)
            far[chosen] = torch.where(rejected, trial, far[chosen])
            near[chosen] = torch.where(rejected, near[chosen], trial)
        return self._points(x, delta, far), far > 0

    def _points(self, x: Tensor, delta: Tensor, multiple: Tensor) -> Tensor:
        """Return x + multiple · delta, clipped to the range and, if the smoother has a grid, moved onto it."""
        scale = multiple.view(-1, *[1] * (x.dim() - 1))
        points = x.double() + scale * delta
        if self.clip is None:
            return points.float()
        points = points.clamp(*self.clip).float()
        if isinstance(self.grid, Fraction):
            points = Levels(self.grid, *self.clip).images(points)
        return points

    def _rejects(self, points: Tensor, y: Tensor, indices: Sequence[int]) -> Tensor:
        """Whether the votes suggest that the test will reject the labels, bool [B]."""
        if not len(points):
            return torch.zeros(0, dtype=torch.bool)
        examples, noise = self.smoother.examples(points, list(indices))
        counts = torch.zeros((len(points), self.smoother.num_classes + 1), dtype=torch.int64, device=examples.device)
        # The gradients have used the first samples.
        runs = [(row, index, self.draws, _VOTES) for row, index in enumerate(noise.words)]
        self.smoother.sampler.count(examples, runs, "attack", counts, lambda done: None)
        votes = counts.cpu().numpy().astype(np.float64)
        rows = np.arange(len(votes))
        label_votes = votes[rows, y.numpy()] + votes[:, -1]  # a vote without a class counts as one for the label
        votes[rows, y.numpy()] = -1.0
        rival = votes[:, :-1].max(axis=1)
        lead = (rival - label_votes) / np.sqrt(np.maximum(rival + label_votes, 1.0) * _VOTES)
        return torch.from_numpy(lead > self.needed)

"""Recipe of the bundled base classifiers for smoothing: the digits convnet trained with Gaussian noise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from pyrobust.checks import positive
from pyrobust.errors import InputError
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.scale import warn_of_wide_noise
from pyrobust.training.digits_common import Trained, check_seed_and_epochs, single_thread_with_gradients, warp
from pyrobust.zoo import ImageSet, digits_convnet, load_digits

_BATCH = 128
_PEAK_RATE = 6e-3
_WEIGHT_DECAY = 1e-2
# Standard deviation of each entry of the random affine maps.
_WARP = 0.1
_COPIES = 100
# With more noise, nothing can be learned from pixels in [0, 1].
_MAX_SIGMA = 100.0


@dataclass(frozen=True)
class TrainResult(Trained):
    """A trained net with its accuracies on the test split of the digits.

    Args:
        model: the net, in eval mode.
        sigma: standard deviation of the noise.
        seed: random seed of initial weights, image order, warps and noise.
        epochs: passes over the train split.
        clean_accuracy: share of the test images that the net classifies correctly without noise, in [0, 1].
        noisy_accuracy: share of the noisy copies (100 of each test image) that the net classifies correctly.
        smoothed_accuracy: share of the test images for which the correct class has the most votes of the noisy copies;
            this estimates the accuracy of the smoothed classifier.
        seconds: training time.
    """

    model: nn.Module = field(repr=False)
    sigma: float
    seed: int
    epochs: int
    clean_accuracy: float
    noisy_accuracy: float
    smoothed_accuracy: float
    seconds: float


def train_digits_smooth(
    sigma: float, *, seed: int = 0, epochs: int = 300, progress: Callable[[int, int, float], None] | None = None
) -> TrainResult:
    """Train the digits net with Gaussian noise, as Cohen, Rosenfeld and Kolter (2019) train base classifiers.

    In every epoch, each image of the train split is warped by a random affine map close to the identity, and fresh
    Gaussian noise is added. The image is then used in one AdamW step on the cross-entropy. The learning rate rises and
    falls once. The same seed gives the same weights on the same machine with the same version of torch. Global random
    states are not touched.

    Args:
        sigma: standard deviation of the noise for pixels in [0, 1]; above 0, at most 100.
        seed: random seed in [0, 2**63).
        epochs: passes over the train split, at least 1. 300 passes take about twenty seconds.
        progress: called after every epoch with its number (from 1), the number of epochs and the mean loss.

    Returns:
        The net with its accuracies on the test split.

    Raises:
        InputError: sigma, seed or epochs is out of range.

    >>> result = train_digits_smooth(0.25, epochs=1)
    >>> result.epochs, result.noisy_accuracy > 0.15
    (1, True)
    """
    sigma = positive("train_digits_smooth: sigma", sigma)
    if sigma > _MAX_SIGMA:
        raise InputError("train_digits_smooth: sigma", f"at most {_MAX_SIGMA:g}, for pixels in [0, 1]", f"{sigma:g}")
    warn_of_wide_noise(sigma, 0.0, 1.0)
    check_seed_and_epochs("train_digits_smooth", seed, epochs)
    start = time.perf_counter()
    with single_thread_with_gradients():
        net = _fit(sigma, seed, epochs, progress)
    seconds = time.perf_counter() - start
    clean, noisy, smoothed = _accuracies(net, load_digits("test"), sigma, seed)
    return TrainResult(
        net,
        sigma,
        seed,
        epochs,
        clean_accuracy=clean,
        noisy_accuracy=noisy,
        smoothed_accuracy=smoothed,
        seconds=seconds,
    )


def _fit(sigma: float, seed: int, epochs: int, progress: Callable[[int, int, float], None] | None) -> nn.Module:
    data = load_digits("train")
    generator = torch.Generator().manual_seed(seed)
    net = digits_convnet(seed)
    steps = epochs * math.ceil(len(data) / _BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=_PEAK_RATE, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_RATE, total_steps=steps, pct_start=0.2)
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=generator)
        # The epoch is the sample index, so every epoch has fresh noise.
        runs = [(i, i, epoch, 1) for i in range(len(data))]
        noisy = sample_noise(warp(data.x, _WARP, generator), runs, sigma=sigma, stage="train", seed=seed)
        total = 0.0
        for rows in torch.split(order, _BATCH):
            loss = F.cross_entropy(net(noisy[rows]), data.y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(rows)
        if progress is not None:
            progress(epoch + 1, epochs, total / len(data))
    return net.eval()


@torch.inference_mode()
def _accuracies(net: nn.Module, data: ImageSet, sigma: float, seed: int) -> tuple[float, float, float]:
    """Return clean, noisy and smoothed accuracy."""
    clean = (net(data.x).argmax(1) == data.y).double().mean()
    # Training used the sample indices below 2**20 of this stage.
    runs = [(i, i, 1 << 20, _COPIES) for i in range(len(data))]
    votes = net(sample_noise(data.x, runs, sigma=sigma, stage="train", seed=seed)).argmax(1).view(len(data), _COPIES)
    counts = F.one_hot(votes, 10).sum(1)
    noisy = (votes == data.y[:, None]).double().mean()
    smoothed = (counts.argmax(1) == data.y).double().mean()
    return float(clean), float(noisy), float(smoothed)

"""Randomized smoothing: noisy batches, votes, and whole certificates.

Making a noisy batch takes at least as long as one pass over its memory, and counting votes takes at least as long as
reading all logits once. Certifying takes at least as long as the forward passes alone, for the same number of samples
in batches of the same size.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor, nn

from pyrobust.microbench.timing import Case, compare
from pyrobust.ops import count_votes, sample_grid_noise, sample_noise
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_digits, load_model

_SIGMA = 0.25
_BYTE = Fraction(1, 255)
_N0, _N, _ALPHA = 100, 1000, 0.001
_LOOP_BATCH = 1000


def cases(device: torch.device) -> Iterator[Case]:
    """Yield the cases."""
    for shape in ((1, 3, 32, 32), (1000, 3, 32, 32), (64, 3, 224, 224)):
        yield _noise(shape, device)
    yield _grid_noise((1000, 3, 32, 32), device)
    for sizes in ((1000, 10, 1), (20_000, 1000, 8)):
        yield votes(*sizes, device)
    for images in (1, 4):
        yield _certify(images, device)


def noisy_copies(x: Tensor, n: int) -> Tensor:
    """Return n noisy copies of an image [1, ...], as common scripts do."""
    batch: Tensor = x.repeat((n, *[1] * (x.dim() - 1)))
    return torch.randn_like(batch) * _SIGMA + batch


def _noise(shape: tuple[int, ...], device: torch.device) -> Case:
    n, x, out = shape[0], torch.rand((1, *shape[1:]), device=device), torch.empty(shape, device=device)
    return compare(
        f"sample_noise {'x'.join(map(str, shape))}",
        partial(sample_noise, x, [(0, 7, 0, n)], sigma=_SIGMA),
        ("x.repeat + randn_like * sigma", partial(noisy_copies, x, n)),
        ("clone", out.clone),
        bytes_written=4 * out.numel(),
    )


def _grid_noise(shape: tuple[int, ...], device: torch.device) -> Case:
    n, out = shape[0], torch.empty(shape, device=device)
    k = torch.randint(256, (1, *shape[1:]), dtype=torch.int32, device=device)
    return compare(
        f"sample_grid_noise {'x'.join(map(str, shape))}",
        partial(sample_grid_noise, k, [(0, 7, 0, n)], sigma=_SIGMA, step=_BYTE),
        ("the same, rounded to the grid", lambda: (noisy_copies(k / 255, n) * 255).round() / 255),
        ("clone", out.clone),
        bytes_written=4 * out.numel(),
    )


def votes(rows: int, classes: int, images: int, device: torch.device) -> Case:
    """Compare ways to count the votes of several images; each way adds votes to its own tensor of counts."""
    logits = torch.randn(rows, classes, device=device)
    image = torch.arange(rows, device=device) * images // rows
    counted = torch.zeros(images, classes + 1, dtype=torch.int64, device=device)
    added = torch.zeros_like(counted)

    def native() -> Tensor:
        count_votes(logits, image, counted)
        return counted

    def by_bincount() -> Tensor:
        counts = torch.bincount(image * (classes + 1) + logits.argmax(1), minlength=added.numel())
        return added.add_(counts.view_as(added))

    return compare(
        f"count_votes {rows}x{classes}, {images} image{'s' * (images > 1)}",
        native,
        ("argmax + bincount", by_bincount),
        ("sum of the same bytes", logits.sum),
        bytes_read=4 * logits.numel(),
    )


def _certify(images: int, device: torch.device) -> Case:
    net = load_model("zoo:digits-smooth-0.25").to(device)
    x = load_digits("test").x[:images].to(device)
    smoother = RandomizedSmoothing(net, 10, _SIGMA, grid=None)
    samples = images * (_N0 + _N)
    size = min(samples, smoother.runner.batch_size(tuple(x.shape[1:])))
    return compare(
        f"certify_batch, digits, {images} image{'s' * (images > 1)}",
        partial(smoother.certify_batch, x, n0=_N0, n=_N, alpha=_ALPHA),
        (f"loop in batches of {_LOOP_BATCH}", partial(certify_in_a_loop, net, x)),
        (f"forward passes, batch {size}", partial(forward_passes, net, x, samples, size)),
    )


@torch.no_grad()
def certify_in_a_loop(
    model: nn.Module, x: Tensor, n0: int = _N0, n: int = _N, batch: int = _LOOP_BATCH
) -> list[tuple[int, float]]:
    """Select a class and certify it, image by image, as common scripts do (Cohen, Rosenfeld and Kolter, 2019)."""
    from scipy.stats import beta, norm

    def count(image: Tensor, remaining: int) -> Tensor:
        counts = torch.zeros(10, dtype=torch.int64)
        while remaining > 0:
            size = min(batch, remaining)
            remaining -= size
            counts += torch.bincount(model(noisy_copies(image, size)).argmax(1), minlength=10).cpu()
        return counts

    results = []
    for image in x.split(1):
        top = int(count(image, n0).argmax())
        hits = int(count(image, n)[top])
        p_lower = float(beta.ppf(_ALPHA, hits, n - hits + 1)) if hits else 0.0
        results.append((top, _SIGMA * float(norm.ppf(p_lower))) if p_lower > 0.5 else (-1, 0.0))
    return results


@torch.inference_mode()
def forward_passes(model: nn.Module, x: Tensor, samples: int, size: int) -> None:
    """Classify the first image repeatedly, in batches of ``size``."""
    batch = x[:1].repeat((size, *[1] * (x.dim() - 1)))
    for begin in range(0, samples, size):
        model(batch[: min(size, samples - begin)])

"""The noise that docs/decisions/noise-contract.md defines, computed line by line as in the contract."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from .philox import MASK, philox4x32
from .rounding import constant, fma, horner, sqrt

#: Purposes for which noise is drawn; part of the counter, so that no two stages share a draw.
STAGES: dict[str, int] = {"select": 0, "estimate": 1, "predict": 2, "attack": 3, "train": 4}
#: Noise distributions, each with per-coordinate standard deviation sigma.
FAMILIES: dict[str, int] = {"gaussian": 0, "uniform": 1, "laplace": 2}

_LOG = (
    -2.0,
    0.999999762,
    -0.666683733,
    0.500041485,
    -0.399136662,
    0.331247807,
    -0.299045414,
    0.287337214,
    -0.174447373,
)
_SIN = (0.785398185, -0.0807454363, 0.00249000709, -3.59545083e-05)
_COS = (1.0, -0.308424264, 0.0158499144, -0.000318880513)


def sample_noise(
    x: Tensor,
    runs: Sequence[tuple[int, int, int, int]],
    *,
    sigma: float,
    noise: str = "gaussian",
    stage: str = "estimate",
    seed: int = 0,
    keys: Sequence[int] | None = None,
    normalize: tuple[Tensor | Sequence[float], Tensor | Sequence[float]] | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    out: Tensor | None = None,
) -> Tensor:
    """Pack noisy copies of images, one run after another: reference of ``pyrobust.ops.sample_noise``, bit for bit.

    The copies are v = fma(sigma, z, x), where z is the noise that ``unit_noise`` returns. If ``normalize`` is given,
    channel c is then normalized to (v - mean[c]) / std[c]. The copies are computed in float64 for a float64 result and
    in float32 otherwise, then rounded to the dtype of the result.

    Args:
        x: [M, ...], float32 or float64 (float16 and bfloat16 are widened).
        runs: tuples (row, image, first, count). Each tuple stands for samples first … first + count - 1 of the image
            ``x[row]``; ``image`` is this image's index in the noise contract.
        sigma: standard deviation of every coordinate, positive.
        noise: "gaussian", "uniform" or "laplace".
        stage: "select", "estimate", "predict", "attack" or "train".
        seed: in [0, 2**64).
        keys: Philox key of each run, used in place of the seed.
        normalize: (mean, std), each of length C = x.shape[1].
        dtype: dtype of the result: float32, float64, bfloat16 or float16. By default, it is the dtype of x.
        memory_format: torch.contiguous_format, or torch.channels_last for a result of four dimensions.
        out: a batch [N, ...] to write to; it decides dtype and memory format.

    Returns:
        [N, ...], where N is the sum of the counts.

    >>> x = torch.zeros(1, 2)
    >>> sample_noise(x, [(0, 7, 0, 3)], sigma=1.0, noise="uniform")
    tensor([[ 0.8716,  0.2002],
            [-1.7217,  0.2509],
            [-0.7290,  0.9471]])
    """
    total = sum(count for _, _, _, count in runs)
    if out is None:
        shape = (total, *x.shape[1:])
        out = torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=memory_format)
    real = torch.float64 if out.dtype == torch.float64 else torch.float32
    images = x.detach().to(real)
    scale = constant(sigma, images)
    start = 0
    for run, (row, image, first, count) in enumerate(runs):
        key = seed if keys is None else keys[run]
        z = unit_noise(
            image, first, count, images[row].numel(), noise=noise, stage=stage, seed=key, device=x.device
        ).reshape(count, *x.shape[1:])
        y = fma(scale, z, images[row])
        if normalize is not None:
            mean, std = (
                torch.as_tensor(values, dtype=real, device=x.device).reshape(-1, *[1] * (x.dim() - 2))
                for values in normalize
            )
            y = (y - mean) / std
        out[start : start + count] = y.to(out.dtype)
        start += count
    return out


def value_key(seed: int, x: Tensor, step: Fraction | None = None) -> int:
    """Return the Philox key for an image that has no index: a hash of seed, grid step, shape and values.

    The hash is BLAKE2b (RFC 7693). BLAKE2b takes a key of its own, which is the seed in little-endian order. The digest
    of 8 bytes is read as a little-endian integer. The hashed bytes are a line of text and then the elements in
    contiguous order. The text is the sizes joined by commas, then "values" or, on a grid, the step as p/q. The elements
    are little-endian float64 (with 0 in place of -0) or, on a grid, little-endian int32.

    Args:
        seed: in [0, 2**64).
        x: one image [...], float. If there is a grid, x holds the integers k instead, and the image is step·k.
        step: spacing of the grid; None if there is no grid.

    Returns:
        The key, in [0, 2**64).

    >>> value_key(0, torch.tensor([0.5, -0.0])) == value_key(0, torch.tensor([0.5, 0.0]).double())
    True
    """
    kind = "values" if step is None else f"{step.numerator}/{step.denominator}"
    text = ",".join(str(size) for size in x.shape) + " " + kind + "\n"
    numbers = x.flatten().tolist()
    body = struct.pack(f"<{len(numbers)}d", *(value or 0.0 for value in numbers))
    if step is not None:
        body = struct.pack(f"<{len(numbers)}i", *numbers)
    digest = hashlib.blake2b(text.encode() + body, digest_size=8, key=struct.pack("<Q", seed)).digest()
    return int(struct.unpack("<Q", digest)[0])


def unit_noise(
    image: int,
    first: int,
    count: int,
    elements: int,
    *,
    noise: str = "gaussian",
    stage: str = "estimate",
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the noise that the noise contract calls z; it has zero mean and unit variance.

    Gaussian noise follows Box and Muller, "A note on the generation of random normal deviates" (1958); the other
    families use their inverse distribution functions.

    Args:
        image: index of the image in the noise contract, in [0, 2**32).
        first: first sample index; first + count is at most 2**32.
        count: number of samples.
        elements: number of elements of the image; the elements are in contiguous (C, H, W) order.
        noise: "gaussian", "uniform" or "laplace".
        stage: "select", "estimate", "predict", "attack" or "train".
        seed: in [0, 2**64).
        device: where to compute.

    Returns:
        [count, elements], float32.

    >>> unit_noise(0, 0, 2, 3).shape
    torch.Size([2, 3])
    """
    # Whole blocks of four words: a normal variate also needs its neighbour's word.
    blocks = -(-elements // 4)
    words = noise_words(image, first, count, 4 * blocks, noise=noise, stage=stage, seed=seed, device=device)
    if noise == "uniform":
        signed = _signed(words).float()
        z = fma(signed, constant(8.06548994e-10, signed), constant(4.03274497e-10, signed))
    elif noise == "laplace":
        magnitude = minus_two_log(words & 0x7FFFFFFF)
        z = _set_sign(magnitude * constant(0.353553385, magnitude), words)
    else:  # gaussian: noise_words knows no other family
        radius_words, angle_words = words.reshape(count, 2 * blocks, 2).unbind(-1)
        z = torch.stack(_box_muller(radius_words, angle_words), dim=-1).reshape(count, 4 * blocks)
    return z[:, :elements]


def noise_words(
    image: int,
    first: int,
    count: int,
    elements: int,
    *,
    noise: str = "gaussian",
    stage: str = "estimate",
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the random 32-bit words from which ``unit_noise`` is computed, for the same arguments.

    For element e of sample s, Philox gets the counter (⌊e / 4⌋, s, image, stage · 256 + family), with the seed as key,
    and returns four words. The result for this element is word e mod 4.

    Returns:
        [count, elements], int64, words in [0, 2**32).

    >>> [f"{word:08x}" for word in noise_words(0, 0, 1, 5, stage="select")[0].tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8', 'f8e4cca4']
    """
    blocks = -(-elements // 4)
    block = torch.arange(blocks, device=device).expand(count, blocks)
    sample = torch.arange(first, first + count, device=device)[:, None].expand(count, blocks)
    domain = STAGES[stage] * 256 + FAMILIES[noise]
    counter = torch.stack(
        [block, sample, torch.full_like(block, image), torch.full_like(block, domain)],
        dim=-1,
    )
    key = torch.tensor([seed & MASK, seed >> 32], device=device)
    return philox4x32(key, counter).reshape(count, 4 * blocks)[:, :elements]


def minus_two_log(words: Tensor) -> Tensor:
    """Compute -2·ln((w + ½) / 2³¹) in float32 for 31-bit words w; the result is never negative.

    Apart from the rounding of w + ½ to float32, the relative error is at most 1.7e-7.

    >>> minus_two_log(torch.tensor([0, 2**30, 2**31 - 1]))
    tensor([44.3614,  1.3863,  0.0000])
    """
    v = words.float() + 0.5
    shifted = v.view(torch.int32) - 0x3F3504F3  # 0x3f3504f3 is √½: the mantissa is between √½ and √2
    mantissa = ((shifted & 0x007FFFFF) + 0x3F3504F3).view(torch.float32)
    exponent = shifted >> 23
    c = (31 - exponent).float() * constant(1.38629436, v)
    t = mantissa - 1.0
    return fma(t, horner(t, _LOG), c)


def _box_muller(a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Return two normal variates made from a word for the radius and a word for the angle.

    In the word for the angle, the top bit negates both variates, and the next bit swaps them. The other thirty bits
    give the angle, which is at most an eighth of a turn to either side of the axis. Sine and cosine are within 1e-7 of
    their exact values.
    """
    radius = _set_sign(sqrt(minus_two_log(a >> 1)), d)
    x = _signed((d << 2) & MASK).float() * 2.0**-31
    q = x * x
    sine = horner(q, _SIN) * x
    cosine = horner(q, _COS)
    swap = (d >> 30) & 1 == 1
    return radius * torch.where(swap, sine, cosine), radius * torch.where(swap, cosine, sine)


def _signed(words: Tensor) -> Tensor:
    """Reinterpret words as signed 32-bit integers."""
    return words - ((words >> 31) << 32)


def _set_sign(magnitude: Tensor, words: Tensor) -> Tensor:
    """Negate the magnitudes where bit 31 of the word is set."""
    return torch.where(words >> 31 == 1, -magnitude, magnitude)

"""Option texts as values: numbers, ranges, shards, normalisations."""

from __future__ import annotations

import math
import re
from pathlib import Path

import typer

from pyrobust.errors import InputError

# Means and standard deviations of torchvision's weights, and of the reference implementation's CIFAR-10 nets.
_NORMALIZE = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
}


def whole_number(text: str | int) -> int:
    """Parse the integer of an option; a default passes.

    >>> whole_number("7")
    7
    """
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"expected a whole number such as 1000, got {text!r}") from None


def positive_number(text: str | int) -> int:
    """Parse an integer of at least 1.

    >>> positive_number("7")
    7
    """
    value = whole_number(text)
    if value < 1:
        raise typer.BadParameter(f"expected at least 1, got {value}")
    return value


def real_number(text: str | float) -> float:
    """Parse the number of an option, which may be a fraction, NaN or an infinity; a default passes.

    >>> real_number("1/4"), real_number("nan")
    (0.25, nan)
    """
    numerator, slash, denominator = str(text).partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"expected a number such as 0.25 or 1/4, got {text!r}") from None


def parse_number(option: str, text: str) -> float:
    """Parse a finite number, which may be a fraction.

    >>> parse_number("--epsilon", "8/255") == 8 / 255
    True
    """
    numerator, slash, denominator = text.partition("/")
    try:
        value = float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{option}: expected a finite number such as 0.1 or 8/255, got {text!r}")
    return value


def parse_epsilon(option: str, text: str) -> float:
    """Parse a number of at least 0.

    >>> parse_epsilon("--epsilon", "0.1")
    0.1
    """
    value = parse_number(option, text)
    if value < 0:
        raise InputError(f"{option}: expected at least 0, got {text!r}")
    return value


def parse_epsilons(option: str, text: str) -> list[float]:
    """Parse numbers of at least 0, separated by commas.

    >>> parse_epsilons("--epsilon", "0.1,51/255")
    [0.1, 0.2]
    """
    return [parse_epsilon(option, part) for part in text.split(",")]


def parse_clip(text: str) -> tuple[float, float]:
    """Parse the ends of a range.

    >>> parse_clip("-1:1")
    (-1.0, 1.0)
    """
    parts = text.split(":")
    if len(parts) != 2:
        raise InputError(f"--clip: expected LOW:HIGH, such as 0:1, got {text!r}")
    low, high = (parse_number("--clip", part) for part in parts)
    if not low < high:
        raise InputError(f"--clip: expected LOW:HIGH with LOW below HIGH, got {text!r}")
    return low, high


def input_paths(data: str, weights: Path | None) -> list[Path]:
    """Return the files and folders that ``--data`` and ``--weights`` name.

    >>> [str(path) for path in input_paths("npz:cifar10.npz", Path("best.pt"))]
    ['cifar10.npz', 'best.pt']
    >>> input_paths("mnist:images:train", None)
    [PosixPath('images')]
    """
    form, _, rest = data.partition(":")
    if form == "mnist":
        rest = re.sub(":(train|test)$", "", rest)
    paths = [Path(rest)] if form in ("npz", "folder", "mnist") and rest else []
    return paths + ([] if weights is None else [weights])


def images_to_read(skip: int, most: int | None) -> int | None:
    """Return how many images of a data set ``--skip`` and ``--max`` reach; None for all.

    >>> images_to_read(10, 3)
    21
    """
    return None if most is None else skip * (most - 1) + 1


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """Parse I/K.

    >>> parse_shard("2/3")
    (2, 3)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shard: expected I/K with I from 1 to K, such as 1/4, got {text!r}")
    return int(match[1]), int(match[2])


def parse_normalize(text: str | None) -> tuple[list[float], list[float]] | None:
    """Parse the mean and standard deviation of each channel.

    >>> parse_normalize("0.5/0.25")
    ([0.5], [0.25])
    """
    if text is None:
        return None
    if text in _NORMALIZE:
        return _NORMALIZE[text]
    try:
        mean, std = ([float(number) for number in part.split(",")] for part in text.split("/"))
    except ValueError:
        mean, std = [], []
    if not mean or len(mean) != len(std) or not all(map(math.isfinite, mean)) or not all(0 < s < math.inf for s in std):
        raise InputError(
            "--normalize: expected MEAN/STD with one number per channel each and positive STD, such as "
            f"0.5,0.4,0.4/0.2,0.2,0.2, or one of {', '.join(_NORMALIZE)}, got {text!r}"
        )
    return mean, std

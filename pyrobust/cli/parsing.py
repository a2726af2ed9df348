"""Option texts as values: numbers, ranges, shards, normalisations."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import typer

from pyrobust.errors import InputError
from pyrobust.grid import read_grid

#: Forms of ``--data`` that name a file or folder after a colon.
PATH_FORMS = ("npz", "folder", "mnist", "parquet", "hf", "tar")
# Means and standard deviations of torchvision's weights, and of the reference implementation's CIFAR-10 nets.
_NORMALIZE = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
}


def whole_number(text: str | int) -> int:
    """Parse the integer of an option; return a default, which is already a number, unchanged.

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
    """Parse the number of an option, which may be a fraction, NaN or infinite; return a default unchanged.

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
        hint = "an epsilon for each feature is taken in Python only" if text.endswith((".npy", ".npz", ".csv")) else ""
        raise InputError(option, "a finite number such as 0.1 or 8/255", repr(text), hint)
    return value


def parse_epsilon(option: str, text: str) -> float:
    """Parse a number of at least 0.

    >>> parse_epsilon("--epsilon", "0.1")
    0.1
    """
    value = parse_number(option, text)
    if value < 0:
        raise InputError(option, "at least 0", repr(text))
    return value


def parse_epsilons(option: str, text: str) -> list[float]:
    """Parse numbers of at least 0, separated by commas.

    >>> parse_epsilons("--epsilon", "0.1,51/255")
    [0.1, 0.2]
    """
    return [parse_epsilon(option, piece) for piece in text.split(",")]


def parse_counts(option: str, text: str) -> list[int]:
    """Parse integers of at least 1, separated by commas.

    >>> parse_counts("--workers", "1,8")
    [1, 8]
    """
    counts = [int(piece) if piece.strip().isdecimal() else 0 for piece in text.split(",")]
    if not all(counts):
        raise InputError(option, "integers of at least 1, such as 8 or 1,8,64", repr(text))
    return counts


def parse_clip(option: str, text: str) -> tuple[float, float]:
    """Parse the ends of a range.

    >>> parse_clip("--clip", "-1:1")
    (-1.0, 1.0)
    """
    parts = text.split(":")
    if len(parts) != 2:
        raise InputError(option, "LOW:HIGH, such as 0:1", repr(text))
    low, high = (parse_number(option, piece) for piece in parts)
    if not low < high:
        raise InputError(option, "LOW:HIGH with LOW below HIGH", repr(text))
    return low, high


def parse_grid(option: str, text: str) -> Fraction | str:
    """Parse the step of a grid, or "auto".

    >>> parse_grid("--grid", "1/255")
    Fraction(1, 255)
    """
    try:
        return read_grid(text) or text
    except InputError:
        raise InputError(
            option, "a positive fraction of integers below 2**24, such as 1/255, or auto or none", repr(text[:40])
        ) from None


def input_paths(data: str, weights: Path | None) -> list[Path]:
    """Return the files and folders that ``--data`` and ``--weights`` name.

    >>> [str(path) for path in input_paths("npz:cifar10.npz", Path("best.pt"))]
    ['cifar10.npz', 'best.pt']
    >>> input_paths("mnist:images:train", None), input_paths("npz:cifar10.npz:x_test,y_test", None)
    ([PosixPath('images')], [PosixPath('cifar10.npz')])
    >>> input_paths(f"tar:{__file__}:seg.png", None) == [Path(__file__)]
    True
    """
    form, _, location = data.partition(":")
    if form == "mnist":
        location = re.sub(":(train|test)$", "", location)
    if form == "npz" and not Path(location).exists():
        location = re.sub(":[^/:,]+,[^/:,]+$", "", location)
    if form == "tar":
        location = re.sub(r":([^/:]+\.)?(png|jpe?g)$", "", location, flags=re.IGNORECASE)
    if form == "hf" and not Path(location).exists():
        location = location.rpartition(":")[0] or location
    paths = [Path(location)] if form in PATH_FORMS and location else []
    if form in ("parquet", "hf", "tar") and paths and not paths[0].exists():
        from pyrobust.zoo.lazy.source import find_files

        paths = list(find_files(location, ".arrow" if form == "hf" else f".{form}"))
    return paths + ([] if weights is None else [weights])


def images_to_read(skip: int, limit: int | None) -> int | None:
    """Return how many images of a data set have to be read for ``--skip`` and ``--max``; None for all.

    >>> images_to_read(10, 3)
    21
    """
    return None if limit is None else skip * (limit - 1) + 1


def parse_shard(text: str | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Parse I/K, for shard I of K; "auto" takes I and K from the variables of a Slurm job array or of torchrun.

    ``auto/K`` takes only I from the variables. ``auto`` accepts a Slurm array only if its indices are 1-K, with K at
    least 2. An array with other indices, such as 3,5, may resubmit only some tasks, and its size is then not the number
    of shards. An array 1-2 may also be the resubmitted part of a larger array; only the folder of the run shows whether
    it is (`pyrobust.runs.shards.check_siblings`).

    >>> parse_shard("2/3")
    (2, 3)
    >>> parse_shard("auto/8", {"SLURM_ARRAY_TASK_ID": "3"})
    (3, 8)
    >>> parse_shard("auto", {"RANK": "2", "WORLD_SIZE": "8"})
    (3, 8)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(?:(\d{1,9})/|auto/)(\d{1,9})|auto", text)
    if match is not None and match[1] is None and match[2] != "0":
        return _find_shard(text, None if match[2] is None else int(match[2]), environment)
    if match is None or not 1 <= int(match[1] or 0) <= int(match[2]):
        raise InputError(
            "--shard",
            "I/K with I from 1 to K, such as 1/4, or in a job array auto/K or auto, such as auto/4",
            repr(text),
        )
    return int(match[1]), int(match[2])


def _find_shard(text: str, count: int | None, environment: Mapping[str, str]) -> tuple[int, int]:
    """Find the shard of this process in the environment variables of Slurm and torchrun."""
    candidates = {
        "SLURM_ARRAY_TASK_ID": _slurm_shard(text, count, environment),
        "RANK and WORLD_SIZE": _torchrun_shard(text, count, environment),
    }
    shards = {names: shard for names, shard in candidates.items() if shard is not None}
    if not shards:
        raise InputError(
            f"--shard {text}",
            "SLURM_ARRAY_TASK_ID, which Slurm sets in job arrays (sbatch --array=1-K), or RANK and WORLD_SIZE, which "
            "torchrun sets",
            "neither",
            "elsewhere pass I/K, such as 1/4",
        )
    if len(set(shards.values())) > 1:
        said = " and ".join("{1}/{2} by {0}".format(names, *shard) for names, shard in shards.items())
        raise InputError(f"--shard {text}", "one shard", said, "unset the variables of one, or pass I/K")
    return next(iter(shards.values()))


def _slurm_shard(text: str, count: int | None, environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the shard of this task of a job array; None outside a job array."""
    if "SLURM_ARRAY_TASK_ID" not in environment:
        return None
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "COUNT", "STEP")]
    values = [_variable(text, name, environment) for name in names]
    number, low, high, tasks, step = values
    assert number is not None
    if count is None:
        if tasks is None or (low, high, step) != (1, tasks, 1) or tasks < 2:
            said = ", ".join(f"{name}={environment.get(name, 'unset')}" for name in names[1:])
            raise InputError(
                "--shard auto",
                "a whole job array of at least two tasks, submitted with --array=1-K",
                said,
                "where part of an array is submitted again, pass --shard auto/K",
            )
        count = tasks
    if not min(number, number if low is None else low) >= 1 or max(number, high or number) > count:
        said = ", ".join(f"{name}={environment[name]}" for name in names[:3] if name in environment)
        raise InputError(
            f"--shard {text}",
            f"task numbers from 1 to {count}",
            said,
            f"submit with --array=1-{count}, or a part of it",
        )
    return number, count


def _torchrun_shard(text: str, count: int | None, environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the shard of this process of torchrun; None outside torchrun."""
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    rank, size = (_variable(text, name, environment) for name in ("RANK", "WORLD_SIZE"))
    if rank is None or size is None or rank >= size or count not in (None, size):
        wanted = "both, RANK below WORLD_SIZE" if count is None else f"WORLD_SIZE={count} and RANK below it"
        said = ", ".join(f"{name}={environment.get(name, 'unset')}" for name in ("RANK", "WORLD_SIZE"))
        raise InputError(f"--shard {text}", f"{wanted}, as torchrun sets them", said, "pass I/K elsewhere")
    return rank + 1, size


def _variable(text: str, name: str, environment: Mapping[str, str]) -> int | None:
    value = environment.get(name)
    if value is not None and not re.fullmatch(r"[0-9]{1,9}", value):
        raise InputError(
            f"--shard {text}", f"a whole number in the variable {name}", repr(value), "unset it, or pass I/K"
        )
    return None if value is None else int(value)


def parse_normalize(option: str, text: str) -> tuple[list[float], list[float]]:
    """Parse the mean and standard deviation of each channel.

    >>> parse_normalize("--normalize", "0.5/0.25")
    ([0.5], [0.25])
    """
    if text in _NORMALIZE:
        return _NORMALIZE[text]
    try:
        mean, std = ([float(number) for number in piece.split(",")] for piece in text.split("/"))
    except ValueError:
        mean, std = [], []
    if not mean or len(mean) != len(std) or not all(map(math.isfinite, mean)) or not all(0 < s < math.inf for s in std):
        raise InputError(
            option,
            "MEAN/STD with one number per channel each and positive STD, such as 0.5,0.4,0.4/0.2,0.2,0.2, or one of "
            f"{', '.join(_NORMALIZE)}",
            repr(text),
        )
    return mean, std

"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyrobust.cli.shell import note
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from pyrobust.smoothing import RandomizedSmoothing
    from pyrobust.zoo import ImageSet


class Noise(str, Enum):
    """Noise distributions."""

    gaussian = "gaussian"
    uniform = "uniform"
    laplace = "laplace"


class DType(str, Enum):
    """Number formats that a model can run in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


_MODEL, _RUN, _WORK = "Model and method", "Images", "How it runs"
_SEQUENTIAL = "With --method sequential"
# File systems take 255 bytes, SQLite adds "-journal".
_LONGEST_NAME = 160

Model = Annotated[
    str, typer.Option(metavar="SPEC", help="zoo:NAME, or module:callable for your own.", rich_help_panel=_MODEL)
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="State dict (.pt or .safetensors) to load into the model.", rich_help_panel=_MODEL
    ),
]
Data = Annotated[
    str,
    typer.Option(
        metavar="SPEC",
        help="digits, mnist:DIR, npz:FILE (x, y), folder:DIR, or module:callable.",
        rich_help_panel=_MODEL,
    ),
]
NumClasses = Annotated[
    int | None,
    typer.Option(metavar="K", min=1, help="Default: what the model returns for one image.", rich_help_panel=_MODEL),
]
Normalize = Annotated[
    str | None,
    typer.Option(
        metavar="MEAN/STD",
        help="Per channel, applied after the noise: 0.5,0.4,0.4/0.2,0.2,0.2, or imagenet or cifar10.",
        rich_help_panel=_MODEL,
    ),
]
_SIGMA = typer.Option(
    metavar="S", help="Standard deviation of the noise in every pixel, in the input's unit.", rich_help_panel=_MODEL
)
Sigma = Annotated[float, _SIGMA]
OptionalSigma = Annotated[float | None, _SIGMA]
NoiseName = Annotated[
    Noise, typer.Option("--noise", help="Gaussian gives l2 radii, the others l1.", rich_help_panel=_MODEL)
]
Grid = Annotated[
    str,
    typer.Option(
        metavar="STEP",
        help="Step that pixels are multiples of, such as 1/255: certificates then hold in floating point. auto: found, "
        "for Gaussian noise. none: certificates idealise the noise as real-valued.",
        rich_help_panel=_MODEL,
    ),
]
Samples = Annotated[
    int,
    typer.Option(
        "--n",
        metavar="N",
        help="Samples an image for the bound; with --method sequential, at most.",
        rich_help_panel=_MODEL,
    ),
]
Votes = Annotated[int, typer.Option("--n", metavar="N", help="Samples an image.", rich_help_panel=_MODEL)]
Selection = Annotated[
    int, typer.Option("--n0", metavar="N", help="Samples an image to select the class.", rich_help_panel=_MODEL)
]
Alpha = Annotated[
    float, typer.Option(metavar="A", help="Probability that one result is wrong, at most.", rich_help_panel=_MODEL)
]
Radii = Annotated[
    str | None,
    typer.Option(metavar="R[,R...]", help="Radii to be decided: 0.25,0.5.", rich_help_panel=_SEQUENTIAL),
]
Hybrid = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Share of alpha for one Clopper-Pearson bound at n samples; default 0.01.",
        rich_help_panel=_SEQUENTIAL,
    ),
]
TwoClass = Annotated[
    bool, typer.Option("--two-class", help="Bound the other classes too.", rich_help_panel=_SEQUENTIAL)
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of all random numbers.", rich_help_panel=_MODEL)]
Skip = Annotated[int, typer.Option(metavar="N", min=1, help="Every N-th image.", rich_help_panel=_RUN)]
Max = Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many of those.", rich_help_panel=_RUN)]
Shard = Annotated[
    str | None,
    typer.Option(metavar="I/K", help="Of those every K-th from the I-th on: one of K runs.", rich_help_panel=_RUN),
]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Rows a forward pass. Default: what fits.", rich_help_panel=_WORK)
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1 …", rich_help_panel=_WORK)]
DTypeName = Annotated[
    DType | None, typer.Option("--dtype", help="Number format of the forward pass.", rich_help_panel=_WORK)
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="File of the run; one that is there is gone on with. Default: named after the arguments.",
        rich_help_panel=_WORK,
    ),
]

# Means and standard deviations of torchvision's weights, and of the reference implementation's CIFAR-10 nets.
_NORMALIZE = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
}


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """I/K as numbers.

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
    """Mean and standard deviation of each channel.

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
            f"--normalize: expected MEAN/STD with as many numbers each as there are channels, std positive, such as "
            f"0.5,0.4,0.4/0.2,0.2,0.2, or one of {', '.join(_NORMALIZE)}; got {text!r}"
        )
    return mean, std


def default_out(
    kind: str,
    model: str,
    data: str,
    sigma: float,
    n: int,
    shard: tuple[int, int] | None,
    method: Sequence[str] = (),
) -> Path:
    """A readable name for a run in the working folder; the same arguments give the same name.

    >>> default_out("certify", "zoo:digits-smooth-0.25", "npz:/data/cifar.npz", 0.25, 1000, (1, 2))
    PosixPath('certify-digits-smooth-0.25-cifar-sigma0.25-n1000-shard1of2.db')
    """
    return run_name([kind, model], data, [f"sigma{sigma:g}", *method, f"n{n}"], shard)


def run_name(begin: Sequence[str], data: str, end: Sequence[str], shard: tuple[int, int] | None) -> Path:
    """A file name that tells what a run is of.

    >>> run_name(["attack", "zoo:net"], "digits", ["eps0.1"], None)
    PosixPath('attack-net-digits-eps0.1.db')
    >>> run_name(["certify"], "digits", ["r" * 200, "n1000"], None).name[-20:]
    'rrrr-13d5d5e2f137.db'
    """
    names = [*(part.removeprefix("zoo:") for part in begin), data, *end]
    form, _, rest = data.partition(":")
    if form in ("npz", "folder", "mnist") and rest:
        names[len(begin)] = Path(rest).stem
    if shard is not None:
        names.append("shard{}of{}".format(*shard))
    name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "x" for name in names)
    if len(name) > _LONGEST_NAME:  # many radii
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return Path(f"{name}.db")


def load(
    *,
    model: str,
    weights: Path | None,
    data: str,
    num_classes: int | None,
    normalize: str | None,
    sigma: float,
    noise: Noise,
    grid: str,
    seed: int,
    device: str | None,
    dtype: DType | None,
) -> tuple[RandomizedSmoothing, ImageSet]:
    """The smoother and the images that the options name.

    Raises:
        PyrobustError: an option has a wrong value, or a file cannot be read.
    """
    channels = parse_normalize(normalize)
    import torch

    from pyrobust.evaluation.resume import probing
    from pyrobust.machine import prepare_cublas
    from pyrobust.runner import Runner
    from pyrobust.smoothing import RandomizedSmoothing
    from pyrobust.zoo import load_data, load_model

    images = load_data(data)
    if channels is not None and len(channels[0]) != images.x.shape[1]:
        raise InputError(
            f"--normalize: expected a mean and a std for each channel of the images, {images.x.shape[1]}, got "
            f"{len(channels[0])}"
        )
    step = _grid_of(images, grid, noise)
    if step is not None:
        prepare_cublas()
    net = load_model(model, weights)
    number_format = None if dtype is None else getattr(torch, dtype.value)
    runner = Runner(net, device=device, dtype=number_format)
    with probing(images.x.shape[1:]), runner.session():
        returned = runner.logits(images.x[:1].to(device=runner.device, dtype=runner.dtype)).shape[1]
    if num_classes not in (None, returned):
        raise InputError(f"--num-classes: expected what the model returns, {returned}, got {num_classes}")
    smoother = RandomizedSmoothing(
        net,
        returned,
        sigma,
        noise=noise.value,
        norm="l2" if noise is Noise.gaussian else "l1",
        normalize=channels,
        seed=seed,
        grid=step,
        device=device,
        dtype=number_format,
    )
    return smoother, images


def _grid_of(images: ImageSet, grid: str, noise: Noise) -> Fraction | str | None:
    """The step that --grid names or finds; None for none."""
    if grid not in ("auto", "none"):
        from pyrobust.smoothing.grid import read_grid

        if noise is not Noise.gaussian:
            raise InputError(f"--grid: expected none with --noise {noise.value}, which has no certificate on a grid")
        try:
            return read_grid(grid)
        except InputError:
            raise InputError(
                f"--grid: expected a positive fraction of integers below 2**24, such as 1/255, or auto or none, "
                f"got {grid[:40]!r}"
            ) from None
    if grid == "none":
        return None
    if noise is not Noise.gaussian:
        return None
    from pyrobust.smoothing.grid import find_grid

    step = find_grid(images.x)
    if step is None:
        note("the images are on no usual grid: guarantee real, which idealises the noise; --grid names their step")
    return step

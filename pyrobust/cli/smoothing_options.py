"""Options of ``certify`` and ``predict``, and the smoother and images that they describe."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyrobust.cli.options import MODEL_PANEL, DType
from pyrobust.cli.parsing import parse_normalize, positive_number, real_number, whole_number
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from fractions import Fraction

    from pyrobust.smoothing import RandomizedSmoothing
    from pyrobust.zoo import LabelledImages


class Noise(str, Enum):
    """Noise distributions."""

    gaussian = "gaussian"
    uniform = "uniform"
    laplace = "laplace"


class SamplingName(str, Enum):
    """Ways to sample votes."""

    fixed = "fixed"
    sequential = "sequential"


_PANEL = "Smoothing"
_SEQUENTIAL_PANEL = "Smoothing with --method sequential"

NumClasses = Annotated[
    int | None,
    typer.Option(
        parser=positive_number,
        metavar="K",
        help="Number of classes. Default: length of the model's output.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Normalize = Annotated[
    str | None,
    typer.Option(
        metavar="MEAN/STD",
        help="Mean and standard deviation per channel, applied after the noise: 0.5,0.4,0.4/0.2,0.2,0.2, or imagenet "
        "or cifar10.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Sigma = Annotated[
    float,
    typer.Option(
        parser=real_number,
        metavar="S",
        help="Standard deviation of the noise in every pixel, in the unit of the pixels.",
        rich_help_panel=_PANEL,
    ),
]
NoiseName = Annotated[
    Noise,
    typer.Option(
        "--noise", help="Noise distribution: gaussian for l2 radii, uniform or laplace for l1.", rich_help_panel=_PANEL
    ),
]
Grid = Annotated[
    str,
    typer.Option(
        metavar="STEP",
        help="Step of the pixel values, such as 1/255, for certificates that hold in floating point. auto: detect it, "
        "for Gaussian noise. none: idealise the noise as real-valued.",
        rich_help_panel=_PANEL,
    ),
]
Sampling = Annotated[
    SamplingName,
    typer.Option(
        "--method",
        help="Sampling method: fixed draws --n samples per image; sequential stops once --radii are decided.",
        rich_help_panel=_PANEL,
    ),
]
Samples = Annotated[
    int,
    typer.Option(
        "--n",
        parser=whole_number,
        metavar="N",
        help="Samples per image for the bound; with --method sequential, their maximum.",
        rich_help_panel=_PANEL,
    ),
]
Votes = Annotated[
    int, typer.Option("--n", parser=whole_number, metavar="N", help="Samples per image.", rich_help_panel=_PANEL)
]
Selection = Annotated[
    int,
    typer.Option(
        "--n0", parser=whole_number, metavar="N", help="Samples per image to select the class.", rich_help_panel=_PANEL
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        parser=real_number, metavar="A", help="Highest probability that a result is wrong.", rich_help_panel=_PANEL
    ),
]
Radii = Annotated[
    str | None,
    typer.Option(metavar="R[,R...]", help="Radii to decide, such as 0.25,0.5.", rich_help_panel=_SEQUENTIAL_PANEL),
]
Hybrid = Annotated[
    float | None,
    typer.Option(
        parser=real_number,
        metavar="SHARE",
        help="Share of alpha for one Clopper-Pearson bound at n samples. Default: 0.01.",
        rich_help_panel=_SEQUENTIAL_PANEL,
    ),
]
TwoClass = Annotated[
    bool,
    typer.Option(
        "--two-class", help="Bound the probabilities of the other classes too.", rich_help_panel=_SEQUENTIAL_PANEL
    ),
]


def load_smoother(
    *,
    model: str,
    weights: Path | None,
    data: str,
    most: int | None,
    num_classes: int | None,
    normalize: str | None,
    sigma: float,
    noise: Noise,
    grid: str,
    seed: int,
    device: str | None,
    dtype: DType | None,
) -> tuple[RandomizedSmoothing, LabelledImages]:
    """Load the smoother and the images that the options describe, ``most`` of a data set without a length."""
    channels = parse_normalize(normalize)
    import torch

    from pyrobust.evaluation.sweep import probing
    from pyrobust.runner import Runner
    from pyrobust.smoothing import RandomizedSmoothing
    from pyrobust.zoo import load_data, load_model

    images = load_data(data, most)
    if channels is not None and len(channels[0]) != images.shape[0]:
        raise InputError(
            f"--normalize: expected a mean and a std for each channel of the images, {images.shape[0]}, got "
            f"{len(channels[0])}"
        )
    step = _grid_step(grid, noise)
    net = load_model(model, weights)
    number_format = None if dtype is None else getattr(torch, dtype.value)
    runner = Runner(net, device=device, dtype=number_format)
    with probing(images.shape), runner.session():
        outputs = runner.logits(images.read([0])[0].to(device=runner.device, dtype=runner.dtype)).shape[1]
    if num_classes not in (None, outputs):
        raise InputError(f"--num-classes: expected the number of the model's outputs, {outputs}, got {num_classes}")
    smoother = RandomizedSmoothing(
        net,
        outputs,
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


def _grid_step(grid: str, noise: Noise) -> Fraction | str | None:
    """Return the step that --grid names, or "auto"; None without a grid."""
    if grid not in ("auto", "none"):
        from pyrobust.grid import read_grid

        if noise is not Noise.gaussian:
            raise InputError(
                f"--grid: expected none with --noise {noise.value}, got {grid[:40]!r}; certificates on a grid need "
                "Gaussian noise"
            )
        try:
            return read_grid(grid)
        except InputError:
            raise InputError(
                "--grid: expected a positive fraction of integers below 2**24, such as 1/255, or auto or none, "
                f"got {grid[:40]!r}"
            ) from None
    return None if grid == "none" or noise is not Noise.gaussian else "auto"

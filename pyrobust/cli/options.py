"""Options that several commands share, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from pyrobust.cli.parsing import PATH_FORMS, positive_number, whole_number
from pyrobust.errors import InputError


def completing(*values: str) -> Callable[[str], list[str]]:
    """Return the function by which a shell completes an option of these values.

    >>> completing("linf", "l2")("li")
    ['linf']
    """

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of a bundled model from its weight file, without torch.

    >>> complete_model("zoo:digits-i")
    ['zoo:digits-ibp-0.10']
    """
    files = (Path(__file__).parent.parent / "zoo" / "data").glob("*.pt")
    return completing(*sorted(f"zoo:{file.stem}" for file in files))(incomplete)


class DType(str, Enum):
    """Number formats that a model can run in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


class NormName(str, Enum):
    """Norms of a perturbation."""

    linf = "linf"
    l2 = "l2"
    l1 = "l1"


class OrderName(str, Enum):
    """Orders in which a sweep takes its images."""

    data = "data"
    random = "random"


MODEL_PANEL = "Model and data"
PERTURBATION_PANEL = "Perturbation"
_IMAGES_PANEL = "Images"
RUN_PANEL = "Run"

Model = Annotated[
    str,
    typer.Option(
        autocompletion=complete_model,
        metavar="SPEC",
        help="Model: a bundled net (zoo:NAME), one of RobustBench (robustbench:NAME), or your own (module:callable).",
        rich_help_panel=MODEL_PANEL,
    ),
]
Data = Annotated[
    str,
    typer.Option(
        autocompletion=completing("digits", *(f"{form}:" for form in PATH_FORMS)),
        metavar="SPEC",
        help="Data set: digits, mnist:DIR, npz:FILE (arrays x and y), folder:DIR, parquet:PATH, hf:DIR[:SPLIT] (of "
        "save_to_disk), tar:PATTERN[:EXTENSION] (WebDataset shards) or your own (module:callable).",
        rich_help_panel=MODEL_PANEL,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="State dict to load into the model (.pt or .safetensors).", rich_help_panel=MODEL_PANEL
    ),
]
Norm = Annotated[
    NormName,
    typer.Option("--norm", help="Norm of the perturbation.", case_sensitive=False, rich_help_panel=PERTURBATION_PANEL),
]
Skip = Annotated[
    int,
    typer.Option(
        parser=positive_number, metavar="N", help="Stride: take every N-th image.", rich_help_panel=_IMAGES_PANEL
    ),
]
Max = Annotated[
    int | None,
    typer.Option(parser=positive_number, metavar="N", help="Stop after N images.", rich_help_panel=_IMAGES_PANEL),
]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="I/K",
        help="Process the I-th of K parts: every K-th of the chosen images, beginning with the I-th. In a Slurm job "
        "array or under torchrun, auto/K finds I, and auto also K.",
        rich_help_panel=_IMAGES_PANEL,
    ),
]
Order = Annotated[
    OrderName,
    typer.Option(
        "--order",
        help="Order of the images: the data's, or random, for which pyrobust watch bounds the final rates at any time.",
        rich_help_panel=_IMAGES_PANEL,
    ),
]
Seed = Annotated[int, typer.Option(parser=whole_number, metavar="N", help="Random seed.", rich_help_panel=RUN_PANEL)]
BatchSize = Annotated[
    int | None,
    typer.Option(
        parser=positive_number,
        metavar="N",
        help="Rows per forward pass. Default: chosen by the memory.",
        rich_help_panel=RUN_PANEL,
    ),
]
ChunkSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        parser=positive_number,
        metavar="N",
        help="Images per chunk. Default: 32.",
        rich_help_panel=RUN_PANEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Device: cpu, cuda or cuda:N. Default: the model's own.", rich_help_panel=RUN_PANEL
    ),
]
DTypeName = Annotated[
    DType | None,
    typer.Option(
        "--dtype", help="Number format of the forward passes. Default: the model's own.", rich_help_panel=RUN_PANEL
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="CLUSTER",
        help="Compute on a Ray cluster: ray (that of RAY_ADDRESS, or one started here) or ray://HOST:PORT.",
        rich_help_panel=RUN_PANEL,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Compute in a process for each device: all or 0,1,3 for GPUs, cpu:N for N processes.",
        rich_help_panel=RUN_PANEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        parser=positive_number,
        metavar="N",
        help="CPU threads of a forward pass, recorded in the run. Default: torch's, or each worker's share.",
        rich_help_panel=RUN_PANEL,
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Overwrite existing files; inputs are never overwritten.")]
AllowChangedCode = Annotated[
    bool,
    typer.Option(
        "--allow-changed-code",
        help="Resume although the model's code has changed, where its outputs are the same; recorded in the run.",
        rich_help_panel=RUN_PANEL,
    ),
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write a summary as JSON: parameters and rates with their intervals; - for standard output.",
        rich_help_panel=RUN_PANEL,
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Run file, or folder (ending in / where it is new) for the file of the default name; an existing run is "
        "resumed. Default: named after the arguments.",
        rich_help_panel=RUN_PANEL,
    ),
]


LogReader = Annotated[
    str | None,
    typer.Option(
        "--reader",
        metavar="MODULE:NAME",
        help="Your own function that reads text logs of another format: path to a dictionary of text for each row.",
    ),
]


def load_reader(spec: str | None) -> Callable[..., Any] | None:
    """Import the reader of a spec; None without one.

    >>> load_reader("csv:DictReader").__name__
    'DictReader'
    """
    from pyrobust.zoo.user_code import find_object, working_directory_importable

    if spec is None:
        return None
    with working_directory_importable():
        found = find_object(spec, "--reader")
    if not callable(found):
        raise InputError(f"--reader: {spec}: expected a function (path) -> rows, got {type(found).__name__}")
    reader: Callable[..., Any] = found
    return reader

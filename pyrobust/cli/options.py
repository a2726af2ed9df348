"""Options that several commands share, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pyrobust.cli.offered import completing
from pyrobust.cli.parsing import PATH_FORMS
from pyrobust.errors import InputError
from pyrobust.option import MODEL_PANEL, Option


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of a bundled model from its weight file, without torch.

    >>> complete_model("zoo:digits-i")
    ['zoo:digits-ibp-0.10']
    """
    files = (Path(__file__).parent.parent / "zoo" / "data").glob("*.pt")
    return completing(*sorted(f"zoo:{file.stem}" for file in files))(incomplete)


MODEL = Option(
    "Model: a bundled net (zoo:NAME), one of RobustBench (robustbench:NAME), or your own (module:callable).",
    "SPEC",
    panel=MODEL_PANEL,
    required=True,
    complete=complete_model,
)
DATA = Option(
    "Data set: digits, mnist:DIR, npz:FILE (arrays x and y), folder:DIR, parquet:PATH, hf:DIR[:SPLIT] (of "
    "save_to_disk), tar:PATTERN[:EXTENSION] (WebDataset shards) or your own (module:callable).",
    "SPEC",
    panel=MODEL_PANEL,
    required=True,
    complete=completing("digits", *(f"{form}:" for form in PATH_FORMS)),
)
WEIGHTS = Option("State dict to load into the model (.pt or .safetensors).", "FILE", "file", MODEL_PANEL)

Replace = Annotated[bool, typer.Option("--replace", help="Overwrite existing files; inputs are never overwritten.")]

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
        raise InputError("--reader", "a function (path) -> rows", type(found).__name__, where=spec)
    reader: Callable[..., Any] = found
    return reader

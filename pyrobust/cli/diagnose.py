"""``pyrobust diagnose``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from pyrobust.cli.options import DATA, MODEL, WEIGHTS, offering
from pyrobust.cli.parsing import images_to_read, input_paths
from pyrobust.cli.shell import show_progress
from pyrobust.cli.sweep import check_json, model_name, write_json
from pyrobust.errors import InputError, ModelError, PyrobustError
from pyrobust.option import DTYPE, SEED, Option
from pyrobust.runs.kinds.attack import Attack
from pyrobust.runs.kinds.verify import Verify
from pyrobust.runs.settings import OPTIONS

if TYPE_CHECKING:
    from rich.console import Console

    from pyrobust.attacks import Diagnosis

# The JSON of one diagnosis may be overwritten by that of another.
_JSON_BEGINS = b'{\n "verdict": '
_STYLES = {
    "nothing found": "green",
    "note": "dim",
    "undecided": "yellow",
    "suspicious": "yellow",
    "masked": "bold red",
}

_OPTIONS = {
    "model": MODEL,
    "data": DATA,
    "epsilon": replace(Attack.options["epsilon"], required=True),
    "weights": WEIGHTS,
    "norm": Verify.options["norm"],
    "clip": replace(Attack.options["clip"], help="Range of valid pixel values.", none=None),
    "json": Option("Write verdict and findings as JSON; - for standard output.", "FILE"),
    "replace": Option("Overwrite existing files; inputs are never overwritten.", form="flag", panel="", default=False),
    "skip": OPTIONS["skip"],
    "max": replace(OPTIONS["max"], default=100),
    "seed": SEED,
    "batch_size": OPTIONS["batch_size"],
    "device": OPTIONS["device"],
    "dtype": DTYPE,
}


@offering(_OPTIONS)
def diagnose(values: dict[str, Any]) -> None:
    """Tell a robust classifier from one whose gradients mislead attacks.

    Looks at the forward pass, the gradient, and attacks of different kinds on the first 100 images (--max). Prints
    every finding that speaks against the result of gradient-based attacks, with its evidence, meaning and remedy.

    Exit status: 0 if nothing is found; 1 if the model is suspicious, if its gradients are masked, or if too little
    could be examined to tell; 2 with an error.

    Example: pyrobust diagnose --model zoo:digits-smooth-0.25 --data digits --epsilon 0.1
    """
    model, data, weights, json_file = (values[name] for name in ("model", "data", "weights", "json"))
    skip, limit, seed = (values[name] for name in ("skip", "max", "seed"))
    if values["replace"] and json_file in (None, "-"):
        raise InputError("--replace", "none without --json FILE", hint="leave it out")
    check_json(json_file, input_paths(data, weights), values["replace"], json_begins=_JSON_BEGINS)
    import torch
    from rich.console import Console

    from pyrobust.attacks import diagnose as examine
    from pyrobust.zoo import load_data, load_model

    images, net = load_data(data, images_to_read(skip, limit)), load_model(model, weights)
    running = {name: values[name] for name in ("clip", "seed", "batch_size", "device")}
    if values["dtype"] is not None:
        running["dtype"] = getattr(torch, values["dtype"])
    x, y = images.read(range(len(images))[::skip][:limit])
    try:
        diagnosis = examine(net, x, y, values["epsilon"], values["norm"], **running, progress=show_progress())
    except PyrobustError:
        raise
    except Exception as error:
        raise ModelError(
            f"model: failed: {type(error).__name__}: {error}; pyrobust --debug shows the traceback"
        ) from error
    _show(Console(stderr=json_file == "-"), diagnosis)
    status = 0 if diagnosis.verdict == "nothing found" else 1
    if json_file is not None:
        about = {"model": model_name(model, weights), "data": images.name, "data_sha256": images.sha256}
        selection = {"skip": skip, "max": limit, "seed": seed}
        content = {"verdict": diagnosis.verdict, "exit_status": status, **about, **selection}
        write_json(content | diagnosis.to_dict(), json_file)
    if status:
        raise typer.Exit(status)


def _show(console: Console, diagnosis: Diagnosis) -> None:
    """Print the verdict, the findings, the questions left undecided, and how many images each attack fooled."""
    from rich.table import Table
    from rich.text import Text

    from pyrobust.checks import number_text
    from pyrobust.report.formats import plain_text

    console.print(
        Text.assemble(
            "verdict: ",
            (diagnosis.verdict, _STYLES[diagnosis.verdict]),
            f" ({diagnosis.norm}, epsilon {number_text(diagnosis.epsilon)}; {diagnosis.correct} of "
            f"{diagnosis.examples} images classified correctly)",
        )
    )
    for finding in diagnosis.findings:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        heading = Text.assemble((finding.name, "bold"), ": ", (finding.severity, _STYLES[finding.severity]))
        for label, text in (
            ("evidence", finding.observation),
            ("meaning", finding.meaning),
            ("remedy", finding.remedy),
            ("source", finding.source),
        ):
            table.add_row(label, Text(plain_text(text)))
        console.print()
        console.print(heading)
        console.print(table)
    if diagnosis.verdict == "undecided":
        console.print(
            "too little could be examined to tell a robust model from one whose gradients mislead", highlight=False
        )
    if diagnosis.undecided:
        console.print("\nnot decided", style="bold", highlight=False)
        for name, reason in diagnosis.undecided.items():
            console.print(Text(plain_text(f"  {name}: {reason}")))
    if diagnosis.fooled:
        table = Table("attack", title=None)
        table.add_column(f"fooled of {diagnosis.correct}", justify="right")
        for name, count in diagnosis.fooled.items():
            table.add_row(name, str(count))
        console.print()
        console.print(table)

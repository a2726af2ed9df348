"""The application: all commands and the options before them."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from pyrobust.cli.attack import attack
from pyrobust.cli.audit import audit
from pyrobust.cli.bench import bench
from pyrobust.cli.certify import certify
from pyrobust.cli.curve import curve
from pyrobust.cli.diagnose import diagnose
from pyrobust.cli.info import info
from pyrobust.cli.plan import plan
from pyrobust.cli.predict import predict
from pyrobust.cli.quickstart import quickstart
from pyrobust.cli.report import report
from pyrobust.cli.sandwich import sandwich
from pyrobust.cli.shards import log, merge, missing
from pyrobust.cli.shell import DEBUG_VARIABLE, reports_errors, set_debug
from pyrobust.cli.train import train_app
from pyrobust.cli.verify import verify
from pyrobust.cli.watch import watch
from pyrobust.errors import InputError

app = typer.Typer(
    help="Certified and empirical robustness of PyTorch classifiers.",
    epilog="Start with: pyrobust quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        import pyrobust

        typer.echo(f"pyrobust {pyrobust.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar=DEBUG_VARIABLE, help="Show tracebacks of errors and log progress."),
    ] = False,
) -> None:
    set_debug(debug)
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.INFO if debug else logging.WARNING)


app.command(rich_help_panel="Start here")(quickstart)
app.command(rich_help_panel="Start here")(info)
app.command(rich_help_panel="Start here")(bench)
app.command(rich_help_panel="Certificates")(certify)
app.command(rich_help_panel="Certificates")(predict)
app.command(rich_help_panel="Certificates")(verify)
app.command(rich_help_panel="Certificates")(plan)
app.command(rich_help_panel="Attacks")(attack)
app.command(rich_help_panel="Attacks")(curve)
app.command(rich_help_panel="Attacks")(diagnose)
app.command(rich_help_panel="Both sides")(sandwich)
app.command(rich_help_panel="Runs")(watch)
app.command(rich_help_panel="Runs")(missing)
app.command(rich_help_panel="Runs")(merge)
app.command(rich_help_panel="Runs")(log)
app.command(rich_help_panel="Runs")(audit)
app.command(rich_help_panel="Runs")(report)
app.add_typer(train_app, name="train", rich_help_panel="Models")


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@reports_errors
def threat() -> None:
    """Say what replaces the command of earlier versions, whose runs were resumed by it."""
    raise InputError(
        "threat: expected another command, since inspect-ai runs language models (inspect eval, with a threat_task of "
        "pyrobust.threats); pyrobust report reads run files of earlier versions, which nothing resumes"
    )

"""``pyrobust train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pyrobust.cli.options import Replace, completing
from pyrobust.cli.parsing import real_number, whole_number
from pyrobust.cli.shell import check_outputs, describe_path, note, reports_errors, show_progress

train = typer.Typer(help="Train the bundled nets.", no_args_is_help=True, add_completion=False)


@train.callback()
def _train() -> None:
    """Train the bundled nets."""


@train.command("digits-smooth")
@reports_errors
def digits_smooth(
    sigma: Annotated[
        float,
        typer.Option(
            parser=real_number, metavar="S", help="Standard deviation of the noise in every pixel, pixels in [0, 1]."
        ),
    ] = 0.25,
    seed: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Random seed of weights, order, warps and noise.")
    ] = 0,
    epochs: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Passes over the training images.")
    ] = 300,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of the weights. Default: digits-smooth-SIGMA.pt in this folder."),
    ] = None,
    replace: Replace = False,
) -> None:
    """Train the digits net on noisy images.

    Use the result with: pyrobust certify --model zoo:digits-smooth-0.25 --weights FILE …
    """
    from pyrobust.training import train_digits_smooth

    out = out or Path(f"digits-smooth-{sigma:.2f}.pt")
    check_outputs([("--out", out)], replace=replace)
    with _progress(epochs) as progress:
        result = train_digits_smooth(sigma, seed=seed, epochs=epochs, progress=progress)
    result.save(out)
    typer.echo(f"test accuracy without noise        {100 * result.clean_accuracy:.1f} %")
    typer.echo(f"test accuracy under noise {sigma:<8g} {100 * result.noisy_accuracy:.1f} %")
    typer.echo(f"test accuracy, smoothed (estimate) {100 * result.smoothed_accuracy:.1f} %")
    note(f"trained in {result.seconds:.0f} s; weights: {describe_path(out)}")


@train.command("digits-ibp")
@reports_errors
def digits_ibp(
    epsilon: Annotated[
        float, typer.Option(parser=real_number, metavar="E", help="Radius of the l-infinity balls, pixels in [0, 1].")
    ] = 0.1,
    method: Annotated[
        str,
        typer.Option(
            autocompletion=completing("ibp", "crown-ibp"),
            metavar="NAME",
            help="Bounds in the loss: ibp or crown-ibp.",
        ),
    ] = "ibp",
    seed: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Random seed of weights, order and warps.")
    ] = 0,
    epochs: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Passes over the training images.")
    ] = 200,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of the weights. Default: digits-ibp-EPSILON.pt in this folder."),
    ] = None,
    replace: Replace = False,
) -> None:
    """Train the digits net for certificates by bound propagation.

    Use the result with: pyrobust verify --model zoo:digits-ibp-0.10 --weights FILE …
    """
    from pyrobust.training import train_digits_ibp

    out = out or Path(f"digits-ibp-{epsilon:.2f}.pt")
    check_outputs([("--out", out)], replace=replace)
    with _progress(epochs) as progress:
        result = train_digits_ibp(epsilon, method=method, seed=seed, epochs=epochs, progress=progress)
    result.save(out)
    typer.echo(f"test accuracy                       {100 * result.clean_accuracy:.1f} %")
    typer.echo(f"certified at l-infinity {epsilon:<11g} {100 * result.certified_accuracy:.1f} %")
    note(f"trained in {result.seconds:.0f} s; weights: {describe_path(out)}")


@contextmanager
def _progress(epochs: int) -> Iterator[Callable[[int, int, float], None]]:
    """Show a progress bar on a terminal; yield a function of (epochs done, epochs, loss) that advances the bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs, loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not show_progress()) as bar:
        task = bar.add_task("", total=epochs, loss=float("nan"))
        yield lambda done, total, loss: bar.update(task, completed=done, loss=loss)

"""``pyrobust quickstart``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pyrobust.cli.shell import describe_path, note, reports_errors
from pyrobust.cli.sweep import resumable, show_run
from pyrobust.errors import InputError, MissingExtraError, StoreError

_MODEL, _DATA, _CLASSES, _SIGMA = "zoo:digits-smooth-0.25", "digits", 10, 0.25
# A third of the test images, with six thousand samples each: this takes six seconds on two cores.
_SKIP, _SAMPLES = 3, 6_000
_RADIUS = 0.5

#: The text printed at the end. Tests run the indented lines as they stand.
NEXT = """
Next, your own model and data. Write mymodel.py in this folder, with a function that returns your model:

    from torch import nn

    def make():  # images [N, C, H, W] to logits [N, classes]
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

and, in Python, a file of your images (bytes, or floats in [0, 1]) and their labels:

    numpy.savez("mydata.npz", x=images, y=labels)

Then certify 20 of the images under noise, bound what the model can answer near them, and attack them:

    pyrobust certify --model mymodel:make --data npz:mydata.npz --sigma 0.25 --n 1000 --max 20
    pyrobust verify --model mymodel:make --data npz:mydata.npz --epsilon 1/255 --max 20
    pyrobust attack --model mymodel:make --data npz:mydata.npz --epsilon 1/255 --max 20

Trained weights: --weights best.pt. Pictures in one folder per class: --data folder:DIR. All options: --help.
certify takes the sigma of the noise that the model was trained with; a model trained without noise, a small one."""


@reports_errors
def quickstart(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the run, its log, a plot and a page.")] = Path(
        "pyrobust-quickstart"
    ),
) -> None:
    """Certify the bundled net on handwritten digits.

    Prints the distribution of p_A, certified accuracy at several radii, and how to certify your own model; writes the
    run, its log, a plot and a page for a browser. Takes about ten seconds on two cores.
    """
    path, log, plot, page = (out / name for name in ("run.db", "log.tsv", "certified_accuracy.png", "page.html"))
    for file in (log, plot, page):
        # Files beside a run were written by an earlier quickstart.
        if os.path.lexists(file) and not path.exists():
            raise InputError(
                "--out",
                "a new folder or one of an earlier quickstart",
                f"{str(out)!r}, which has a {file.name}",
                "name another",
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"--out: expected a folder that exists or can be created, got {str(out)!r} ({error.strerror}); name another"
        ) from error
    from pyrobust.auditing.certification_log import log_of_run
    from pyrobust.auditing.votes import survival_of
    from pyrobust.evaluation import certify_dataset, write_log
    from pyrobust.report import plot_certified_accuracy
    from pyrobust.report.page import write_page
    from pyrobust.smoothing import RandomizedSmoothing
    from pyrobust.zoo import load_data, load_model

    images, smoother = load_data(_DATA), RandomizedSmoothing(load_model(_MODEL), _CLASSES, _SIGMA)
    with resumable(path) as progress:
        run = certify_dataset(smoother, images, out=path, n=_SAMPLES, skip=_SKIP, model_name=_MODEL, progress=progress)
    show_run(run)
    curve = survival_of(log_of_run(run))
    assert curve is not None  # n is fixed, so there is a curve
    share, median = 100 * run.certified_accuracy([_RADIUS])[0], 100 * curve.quantiles([0.5])[0]
    typer.echo(
        f"In words: half of the images get the correct class for at least {median:.1f} % of their\n"
        f"noisy copies (median p_A). {share:.1f} % of the images are classified correctly, and certified to\n"
        f"stay so under every change of their pixels of l2 norm up to {_RADIUS}."
    )
    write_log(run, log, replace=True)
    note(f"log: {describe_path(log)}")
    try:
        plot_certified_accuracy(run, plot)
        note(f"plot: {describe_path(plot)}")
    except MissingExtraError as error:
        note(f"no plot: {error}")
    try:
        write_page(page, run, replace=True)
        note(f"page: {describe_path(page)}; open it in a browser: {page.absolute().as_uri()}")
    except MissingExtraError as error:
        note(f"no page: {error}")
    note(NEXT)

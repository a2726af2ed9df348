"""``pyrobust sandwich``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from pyrobust.cli.sweep_command import Call, sweep_command
from pyrobust.cli.sweeps.certify import load_smoother
from pyrobust.runs.kinds.sandwich import Sandwich, SmoothedSandwich

if TYPE_CHECKING:
    from pyrobust.evaluation import Sandwich as BothSides
    from pyrobust.runs.run import Run

_BOUNDING = ("norm", "epsilons", "method", "semantics")
_SAMPLING = ("n0", "n", "alpha", "n_attack", "alpha_attack", "steps", "draws")


@sweep_command(Sandwich, SmoothedSandwich)
def sandwich(call: Call) -> Run:
    """Bound each image's distance to misclassification, from below by a certificate and from above by an attack.

    No attack can succeed within the certified distance. Whether an attack can succeed at a distance between the
    certified and the attacked one is not known. A crossing is an adversarial example inside a certified ball. Without
    --sigma, it shows that a certificate is false. With --sigma, chance may explain a few crossings. The command names
    crossings, and fails with status 1 if there are more than chance explains. Results are saved as they come: after a
    crash or Ctrl-C, run the same command again to resume.

    Example: pyrobust sandwich --model zoo:digits-ibp-0.10 --data digits

    Example: pyrobust sandwich --model zoo:digits-smooth-0.25 --data digits --sigma 0.25
    """
    sigma = call["sigma"]
    if sigma is None:
        call.refuse(*_SAMPLING, "noise", "grid", "num_classes", "normalize", "dtype", why="without --sigma")
    else:
        call.refuse(*_BOUNDING, why="with --sigma")
    from pyrobust.evaluation import sandwich_dataset

    classifier: Any
    if sigma is None:
        images, classifier = call.images, call.load_model()
        arguments = {**call.chosen(*_BOUNDING, "seed"), "device": call.device}
    else:
        images, classifier = call.images, load_smoother(call)
        arguments = call.chosen(*_SAMPLING)
    with call.running(call["norm"] or "linf" if sigma is None else f"sigma{sigma:g}") as settings:
        both = sandwich_dataset(classifier, images, clip=call["clip"], **arguments, settings=settings)
    call.afterwards.append(lambda: _check(both))
    return both.run


def _check(both: BothSides) -> None:
    """End the command with status 1 if bounds cross more often than chance explains."""
    from pyrobust.errors import CrossingError

    try:
        both.check()
    except CrossingError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None

"""``pyrobust attack``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyrobust.checks import number_text
from pyrobust.cli.attack_options import (
    ATTACK,
    ATTACK_PANEL,
    CERTIFY_FIRST,
    REPLACE,
    SETTINGS,
    check_plot,
    chosen_attack,
    load_attacked,
    work_settings,
)
from pyrobust.cli.shell import describe_path, note, show_progress
from pyrobust.cli.sweep_command import Call, sweep_command
from pyrobust.errors import InputError
from pyrobust.option import DTYPE, Option
from pyrobust.runs.kinds.attack import Attack, CertifiedFirst, Minimum

if TYPE_CHECKING:
    from pyrobust.runs.run import Run

_MINIMUM_PANEL = "Accuracy curve, in place of --epsilon"
_OPTIONS = {
    "attack": replace(ATTACK, help=f"{ATTACK.help[:-1]}; with --minimum, an ensemble for the norm."),
    **SETTINGS,
    "certify_first": replace(CERTIFY_FIRST, help=f"{CERTIFY_FIRST.help} With --minimum, for --confirm."),
    "no_examples": Option(
        "Leave the adversarial examples out of the run.", form="flag", panel=ATTACK_PANEL, default=False
    ),
    "minimum": Option(
        "Find the nearest adversarial examples: robust accuracy at every epsilon from one run.",
        form="flag",
        panel=_MINIMUM_PANEL,
        default=False,
    ),
    "confirm": Option(
        "With --minimum: epsilons at which AutoAttack tries what the run left unbroken.",
        "E[,E...]",
        "numbers",
        _MINIMUM_PANEL,
    ),
    "plot": Option("Draw the curve (.png, .pdf or .svg).", "FILE", "file", _MINIMUM_PANEL),
    "save_images": Option(
        "Save the attacked images as PNG files in a folder with a table, as they come, or at the end in a file that "
        "ends in .npz; needs --grid 1/255.",
        "DIR",
        "file",
    ),
    "dtype": DTYPE,
    "replace": REPLACE,
}
_ADVICE = "run pyrobust curve --epsilons START:STOP:POINTS"
_CURVE = {name: (Option(""), "curve", _ADVICE) for name in ("curve", "epsilons")}


@sweep_command(Attack, CertifiedFirst, Minimum, options=_OPTIONS, elsewhere=_CURVE)
def attack(call: Call) -> Run:
    """Attack a classifier on a data set.

    Prints clean and robust accuracy. Results are saved as they come: after a crash or Ctrl-C, run the same command
    again to resume.

    With --minimum it finds the nearest adversarial examples instead, and prints robust accuracy at several epsilons and
    the quartiles of the distance.

    Example: pyrobust attack --model zoo:digits-smooth-0.25 --data digits --norm l2 --epsilon 0.5
    """
    minimum, epsilon, step, saved = (call[name] for name in ("minimum", "epsilon", "grid", "save_images"))
    if (epsilon is None) != minimum:
        raise InputError(
            "--epsilon",
            "either --epsilon or --minimum",
            "both" if minimum else "neither",
            "for a curve run pyrobust curve",
        )
    attack_class, settings = chosen_attack(call, minimum=minimum)
    confirmed = _confirmed(call)
    check_plot(call)
    images, model = call.images, load_attacked(call)
    if saved is not None:
        _check_save_images(call)
    work = work_settings(call)
    from pyrobust.attacks import AutoAttack
    from pyrobust.evaluation import attack_dataset, confirm_curve, minimum_norm_curve
    from pyrobust.report import describe_run, plot_curve

    # A search for the nearest example ignores epsilon.
    attacker = attack_class(model, 8 / 255 if epsilon is None else epsilon, **settings, **work)
    first: dict[str, Any] = {"certify_first": True} if call["certify_first"] else {}
    confirming = [AutoAttack(model, radius, call["norm"], **work, **first) for radius in confirmed]
    name = call["attack"] or ("ensemble" if minimum else "autoattack")
    names = [call["norm"], "minimum" if minimum else f"eps{epsilon:g}", *([] if step is None else [f"grid-{step}"])]
    with call.running(*names, method=name) as sweep:
        run = attack_dataset(
            attacker,
            images,
            minimum=minimum,
            keep_examples=not call["no_examples"],
            save_images=saved,
            settings=sweep,
        )
        if minimum and len(run):
            call.curve = minimum_norm_curve(run)
            x, y = images.read(run.table["index"].tolist())
            for another in confirming:
                call.curve = confirm_curve(call.curve, another, x, y, progress=show_progress())

    def draw() -> None:
        if call["plot"] is not None and call.curve is not None:
            plot_curve(call.curve, call["plot"], describe_run(run))
            note(f"plot: {describe_path(call['plot'])}")
        if saved is not None and len(run):
            note(f"images: {describe_path(saved)}")

    call.afterwards.append(draw)
    return run


def _confirmed(call: Call) -> list[float]:
    """Return the epsilons of ``--confirm``, in rising order; raise InputError for options without effect."""
    minimum, epsilons = call["minimum"], call["confirm"]
    if not minimum:
        call.refuse("plot", "confirm", why="without --minimum")
        return []
    if call.shard is not None:
        call.refuse("confirm", why="with --shard, since the run does not store what it confirms")
    if call["grid"] == "auto":
        call.refuse("confirm", why="with --grid auto, whose step it would have to know")
    if epsilons is None:
        call.refuse("certify_first", why="with --minimum but without --confirm")
        return []
    text = ",".join(map(number_text, epsilons))
    if not min(epsilons) > 0:
        raise InputError("--confirm", "epsilons above 0", repr(text), "at 0 the clean accuracy is known")
    if call["norm"] == "l0":
        raise InputError(
            "--confirm",
            "none with --norm l0, which AutoAttack does not have",
            text,
            "leave it out, or run pyrobust attack --attack pgd --norm l0 --epsilon E beside it",
        )
    return sorted(set(epsilons))


def _check_save_images(call: Call) -> None:
    """Check, before any work is done, that the attacked images can be saved; else raise InputError."""
    from pyrobust.evaluation.run_images import BYTES
    from pyrobust.zoo.saved_images import check_image_path

    path, step, images = call["save_images"], call["grid"], call.images
    if call["no_examples"]:
        raise InputError("--save-images", "none with --no-examples, which leaves out the images", hint="leave one out")
    detected = images.grid if step == "auto" else step
    if detected != BYTES:
        raise InputError(
            "--save-images",
            "--grid 1/255, the grid of image files",
            detected or "none",
            "other images would change when they are saved",
        )
    for read in call.inputs:
        if read.resolve() in (path.resolve(), *path.resolve().parents):
            raise InputError("--save-images", "a place outside the inputs", repr(str(path)), "name another")
    check_image_path(path, images.shape, "--save-images")

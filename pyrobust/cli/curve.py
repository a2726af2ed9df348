"""``pyrobust curve``."""

from __future__ import annotations

from pyrobust.cli.attack_options import (
    ATTACK,
    CERTIFY_FIRST,
    REPLACE,
    SETTINGS,
    check_plot,
    chosen_attack,
    load_attacked,
    work_settings,
)
from pyrobust.cli.parsing import parse_epsilon
from pyrobust.cli.shell import describe_path, note, show_progress
from pyrobust.cli.sweep import curve_values, write_json
from pyrobust.cli.sweep_command import Call, sweep_command
from pyrobust.errors import InputError
from pyrobust.option import DTYPE, PERTURBATION_PANEL, Option
from pyrobust.runs.kinds.attack import Attack

_OPTIONS = {
    **{name: option for name, option in Attack.options.items() if name != "epsilon"},
    "epsilons": Option(
        "Evenly spaced perturbation radii, in the unit of the pixels, such as 0:8/255:9.",
        "START:STOP:POINTS",
        panel=PERTURBATION_PANEL,
        required=True,
    ),
    "attack": ATTACK,
    **SETTINGS,
    "certify_first": CERTIFY_FIRST,
    "dtype": DTYPE,
    "json": Option("Write the curve as JSON; - for standard output.", "FILE"),
    "plot": Option("Draw the curve (.png, .pdf or .svg).", "FILE", "file"),
    "replace": REPLACE,
}
_MOST_POINTS = 10_000


@sweep_command(options=_OPTIONS, shared=("skip", "max", "batch_size", "device"), json_begins=b'{\n "model": ')
def curve(call: Call) -> None:
    """Attack a classifier at many epsilons.

    Prints robust accuracy at each epsilon; --json also writes the smallest epsilon that broke each image. No run is
    saved. A run of pyrobust attack --minimum, in contrast, can be resumed, and gives robust accuracy at every epsilon.

    Example: pyrobust curve --model zoo:digits-smooth-0.25 --data digits --epsilons 0:0.2:5 --attack pgd
    """
    points = parse_points("--epsilons", call["epsilons"])
    attack_class, settings = chosen_attack(call)
    check_plot(call)
    images, model = call.images, load_attacked(call)
    arguments = {**settings, **work_settings(call)}
    from rich.console import Console

    from pyrobust.evaluation.attack import attack_settings
    from pyrobust.evaluation.robustness_curve import robustness_curve
    from pyrobust.report import caption as caption_of
    from pyrobust.report import curve_table, plot_curve
    from pyrobust.runs.kinds import words
    from pyrobust.runs.kinds.attack import certified_first
    from pyrobust.zoo import model_hash

    attacker = attack_class(model, points[-1], **arguments)
    # The model is hashed before its first forward pass, which may change its buffers.
    sha256 = model_hash(model)
    x, y = images.read(range(len(images))[:: call["skip"]][: call["max"]])
    result = robustness_curve(attack_class, model, x, y, points, progress=show_progress(), **arguments)
    own_seed, attack_parameters = attack_settings(attacker)
    selection = {"images": len(images), **call.chosen("skip", "max"), "shard": None}
    caption = [
        words.describe_attack(result.attack, result.norm, call["clip"], attack_parameters, own_seed)
        + ("" if call["grid"] is None else f"; grid {call['grid']}"),
        caption_of.describe_model(call["model"], sha256, str(attacker.runner.dtype).removeprefix("torch.")),
        caption_of.describe_data(images.name, images.sha256, selection, len(x)),
        *([certified_first()] if call["certify_first"] else []),
    ]
    json_file, plot = call["json"], call["plot"]
    Console(stderr=json_file == "-").print(curve_table(result, caption))
    if json_file is not None:
        about = {"model": call["model"], "model_sha256": sha256, "data": images.name, "data_sha256": images.sha256}
        write_json(about | {"about": caption} | selection | curve_values(result), json_file)
    if plot is not None:
        plot_curve(result, plot, caption)
        note(f"plot: {describe_path(plot)}")


def parse_points(option: str, text: str) -> list[float]:
    """Parse evenly spaced epsilons, both ends included.

    >>> parse_points("--epsilons", "0:0.5:3")
    [0.0, 0.25, 0.5]
    """
    import numpy as np

    parts = text.split(":")
    points = int(parts[2]) if len(parts) == 3 and parts[2].isascii() and parts[2].isdigit() else 0
    if not 2 <= points <= _MOST_POINTS:
        raise InputError(option, f"START:STOP:POINTS with 2 to {_MOST_POINTS} points, such as 0:0.1:20", repr(text))
    start, stop = (parse_epsilon(option, piece) for piece in parts[:2])
    if not start < stop:
        raise InputError(option, "START:STOP:POINTS with START below STOP", repr(text))
    return [float(epsilon) for epsilon in np.linspace(start, stop, points)]

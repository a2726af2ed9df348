"""``pyrobust attack``."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from pyrobust.cli import attack_options, options
from pyrobust.cli.attack_options import AttackName, NormName
from pyrobust.cli.shell import describe_path, note, reports_errors, show_progress
from pyrobust.cli.sweep import resumable, show_run
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from pyrobust.evaluation.robustness_curve import RobustnessCurve

_PLOTS = (".png", ".pdf", ".svg")


@reports_errors
def attack(
    model: options.Model,
    data: options.Data,
    weights: options.Weights = None,
    attack: attack_options.Attack = AttackName.autoattack,
    norm: attack_options.Norm = NormName.linf,
    epsilon: attack_options.Epsilon = None,
    steps: attack_options.Steps = None,
    restarts: attack_options.Restarts = None,
    version: attack_options.Version = None,
    clip: attack_options.Clip = "0:1",
    no_examples: attack_options.NoExamples = False,
    curve: attack_options.Curve = None,
    plot: attack_options.Plot = None,
    json_file: attack_options.Json = None,
    seed: options.Seed = 0,
    skip: options.Skip = 1,
    max: options.Max = None,
    shard: options.Shard = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    dtype: options.DTypeName = None,
    out: options.Out = None,
) -> None:
    """Attack a classifier on a data set.

    Prints clean and robust accuracy. Results are kept as they come; the same command goes on after a crash or Ctrl-C.

    Example: pyrobust attack --model zoo:digits-smooth-0.25 --data digits --norm l2 --epsilon 0.5
    """
    low, high = attack_options.parse_clip(clip)
    part = options.parse_shard(shard)
    chosen, settings = attack_options.choose_attack(attack, norm, steps, restarts, version)
    if (epsilon is None) == (curve is None):
        raise InputError("--epsilon: expected either --epsilon or --curve")
    size = None if epsilon is None else attack_options.parse_epsilon("--epsilon", epsilon)
    points = [] if curve is None else attack_options.parse_curve(curve)
    unused: dict[str, object] = {"--plot": plot, "--json": json_file}
    if curve is not None:
        unused = {"--out": out, "--shard": part, "--no-examples": no_examples or None}
    for name, value in unused.items():
        if value is not None:
            which = "without --curve" if curve is None else "with --curve, which is not kept in a run"
            raise InputError(f"{name}: expected none {which}")
    if plot is not None and plot.suffix.lower() not in _PLOTS:
        raise InputError(f"--plot: expected a name that ends in {', '.join(_PLOTS)}, got {str(plot)!r}")
    for option, file in (("--plot", plot), ("--json", json_file)):
        if file is not None and not os.access(file.parent, os.W_OK):
            raise InputError(f"{option}: expected a file in a folder that can be written, got {str(file)!r}")
    net, images, work = attack_options.load(
        model=model, weights=weights, data=data, device=device, dtype=dtype, version=version
    )
    arguments = {**settings, **work, "clip_min": low, "clip_max": high, "seed": seed, "batch_size": batch_size}
    if size is not None:
        from pyrobust.evaluation import attack_dataset

        made = chosen(net, size, **arguments)
        names = [norm.value, f"eps{size:g}"]
        out = out or options.run_name(["attack", attack.value, model], data, names, part)
        with resumable(out):
            run = attack_dataset(
                made,
                images,
                out=out,
                skip=skip,
                max_images=max,
                shard=part,
                keep_examples=not no_examples,
                batch_size=batch_size,
                model_name=model,
                progress=show_progress(),
            )
        show_run(run)
        return

    from rich.console import Console

    from pyrobust.evaluation.attack import attack_settings
    from pyrobust.evaluation.robustness_curve import robustness_curve
    from pyrobust.report import caption as caption_of
    from pyrobust.report import curve_table, plot_curve
    from pyrobust.zoo import model_hash
    from pyrobust.zoo.files import write_atomically

    made = chosen(net, points[-1], **arguments)
    # Before the model runs for the first time, which may leave something behind in it.
    sha256 = model_hash(net)
    x, y = images.x[::skip][:max], images.y[::skip][:max]
    found = robustness_curve(chosen, net, x, y, points, progress=show_progress(), **arguments)
    own_seed, own = attack_settings(made)
    selection = {"images": len(images), "skip": skip, "max": max, "shard": None}
    caption = [
        caption_of.describe_attack(found.attack, found.norm, (low, high), own, own_seed),
        caption_of.describe_model(model, sha256, str(made.runner.dtype).removeprefix("torch.")),
        caption_of.describe_data(images.name, images.sha256, selection, len(x)),
    ]
    Console().print(curve_table(found, caption))
    if json_file is not None:
        about = {"model": model, "model_sha256": sha256, "data": images.name, "data_sha256": images.sha256}
        write_atomically(json_file, _json(found, about | {"about": caption} | selection))
        note(f"json: {describe_path(json_file)}")
    if plot is not None:
        plot_curve(found, plot, caption)
        note(f"plot: {describe_path(plot)}")


def _json(curve: RobustnessCurve, about: dict[str, Any]) -> bytes:
    """A curve as JSON, which knows no infinity: the epsilon that broke an image is null where none did."""
    values = curve.to_dict()
    values["broken_epsilon"] = [value if math.isfinite(value) else None for value in values["broken_epsilon"]]
    return (json.dumps(about | values, allow_nan=False, indent=1) + "\n").encode()

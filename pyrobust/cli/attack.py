"""``pyrobust attack``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyrobust.cli import attack_options, options
from pyrobust.cli.attack_options import AttackName
from pyrobust.cli.options import NormName
from pyrobust.cli.parsing import images_to_read, input_paths, parse_clip, parse_epsilon, parse_shard
from pyrobust.cli.shell import describe_path, note, reports_errors, show_progress
from pyrobust.cli.sweep import check_json, model_name, note_guessing, resumable, run_name, show_run, write_json
from pyrobust.errors import InputError

if TYPE_CHECKING:
    from pyrobust.evaluation.robustness_curve import RobustnessCurve

_PLOTS = (".png", ".pdf", ".svg")


@reports_errors
def attack(
    model: options.Model,
    data: options.Data,
    weights: options.Weights = None,
    norm: options.Norm = NormName.linf,
    epsilon: attack_options.Epsilon = None,
    clip: attack_options.Clip = "0:1",
    grid: attack_options.Grid = None,
    attack: attack_options.Attack = AttackName.autoattack,
    steps: attack_options.Steps = None,
    restarts: attack_options.Restarts = None,
    version: attack_options.Version = None,
    no_examples: attack_options.NoExamples = False,
    save_images: attack_options.SaveImages = None,
    curve: attack_options.Curve = None,
    plot: attack_options.Plot = None,
    json_file: attack_options.Json = None,
    replace: attack_options.Replace = False,
    skip: options.Skip = 1,
    max: options.Max = None,
    shard: options.Shard = None,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    dtype: options.DTypeName = None,
    allow_changed_code: options.AllowChangedCode = False,
    out: options.Out = None,
) -> None:
    """Attack a classifier on a data set.

    Prints clean and robust accuracy. Results are saved as they come: after a crash or Ctrl-C, run the same command
    again to resume.

    Example: pyrobust attack --model zoo:digits-smooth-0.25 --data digits --norm l2 --epsilon 0.5
    """
    low, high = parse_clip(clip)
    part = parse_shard(shard)
    attack_class, settings = attack_options.choose_attack(attack, norm, steps, restarts, version)
    if (epsilon is None) == (curve is None):
        raise InputError(f"--epsilon: expected either --epsilon or --curve, got {'both' if curve else 'neither'}")
    size = None if epsilon is None else parse_epsilon("--epsilon", epsilon)
    points = [] if curve is None else attack_options.parse_curve(curve)
    step = attack_options.parse_grid(grid)
    unused: dict[str, object] = {"--plot": plot}
    if json_file in (None, "-"):
        unused["--replace"] = replace or None
    if curve is not None:
        unused = {"--out": out, "--shard": part, "--no-examples": no_examples or None, "--save-images": save_images}
    for name, value in unused.items():
        if value is not None:
            why = "without --curve" if curve is None else "with --curve, which saves no run"
            raise InputError(f"{name}: expected none {why}; leave it out")
    if plot is not None and plot.suffix.lower() not in _PLOTS:
        raise InputError(f"--plot: expected a file name that ends in {', '.join(_PLOTS)}, got {str(plot)!r}")
    check_json(json_file, [*input_paths(data, weights), *([] if out is None else [out])], replace, plot)
    net, images, work = attack_options.load_target(
        model=model,
        weights=weights,
        data=data,
        most=images_to_read(skip, max),
        device=device,
        dtype=dtype,
        version=version,
    )
    if save_images is not None:
        attack_options.check_save_images(save_images, step, images, no_examples, input_paths(data, weights))
    arguments = {**settings, **work, "clip_min": low, "clip_max": high, "seed": seed, "batch_size": batch_size}
    if step is not None:
        arguments["grid"] = step
    if size is not None:
        from pyrobust.evaluation import attack_dataset

        attacker = attack_class(net, size, **arguments)
        names = [norm.value, f"eps{size:g}", *([] if step is None else [f"grid-{step}"])]
        out = out or run_name(["attack", str(getattr(attack, "value", attack)), model], weights, data, names, part)
        with resumable(out) as progress:
            run = attack_dataset(
                attacker,
                images,
                out=out,
                skip=skip,
                max_images=max,
                shard=part,
                keep_examples=not no_examples,
                batch_size=batch_size,
                model_name=model_name(model, weights),
                allow_changed_code=allow_changed_code,
                progress=progress,
            )
        show_run(run, json_file)
        if save_images is not None and len(run):
            from pyrobust.evaluation import save_run_images

            save_run_images(run, save_images)
            note(f"images: {describe_path(save_images)}")
        note_guessing(run, model, weights)
        return

    from rich.console import Console

    from pyrobust.evaluation.attack import attack_settings
    from pyrobust.evaluation.robustness_curve import robustness_curve
    from pyrobust.report import caption as caption_of
    from pyrobust.report import curve_table, plot_curve
    from pyrobust.zoo import model_hash

    attacker = attack_class(net, points[-1], **arguments)
    # Hashed before its first forward pass, which may change its buffers.
    sha256 = model_hash(net)
    x, y = images.x[::skip][:max], images.y[::skip][:max]
    result = robustness_curve(attack_class, net, x, y, points, progress=show_progress(), **arguments)
    own_seed, own = attack_settings(attacker)
    selection = {"images": len(images), "skip": skip, "max": max, "shard": None}
    caption = [
        caption_of.describe_attack(result.attack, result.norm, (low, high), own, own_seed)
        + ("" if step is None else f"; grid {step}"),
        caption_of.describe_model(model, sha256, str(attacker.runner.dtype).removeprefix("torch.")),
        caption_of.describe_data(images.name, images.sha256, selection, len(x)),
    ]
    Console(stderr=json_file == "-").print(curve_table(result, caption))
    if json_file is not None:
        about = {"model": model, "model_sha256": sha256, "data": images.name, "data_sha256": images.sha256}
        write_json(about | {"about": caption} | selection | _values(result), json_file)
    if plot is not None:
        plot_curve(result, plot, caption)
        note(f"plot: {describe_path(plot)}")


def _values(curve: RobustnessCurve) -> dict[str, Any]:
    """Return a curve for JSON; the epsilon that broke an image is null, for infinity, where none did."""
    values = curve.to_dict()
    values["broken_epsilon"] = [value if math.isfinite(value) else None for value in values["broken_epsilon"]]
    return values

"""``pyrobust attack``."""

from __future__ import annotations

from typing import Any

from pyrobust.cli import attack_options, options
from pyrobust.cli.attack_options import AttackName, AttackNormName
from pyrobust.cli.parsing import images_to_read, input_paths, parse_clip, parse_epsilon, parse_shard
from pyrobust.cli.shell import describe_path, note, reports_errors, show_progress
from pyrobust.cli.sweep import (
    check_json,
    curve_values,
    executor_of,
    model_name,
    named_file,
    note_guessing,
    resumable,
    run_file,
    run_name,
    show_run,
    write_json,
)
from pyrobust.errors import InputError

_PLOTS = (".png", ".pdf", ".svg")


@reports_errors
def attack(
    model: options.Model,
    data: options.Data,
    weights: options.Weights = None,
    norm: attack_options.Norm = AttackNormName.linf,
    epsilon: attack_options.Epsilon = None,
    clip: attack_options.Clip = "0:1",
    grid: attack_options.Grid = None,
    attack: attack_options.Attack = None,
    steps: attack_options.Steps = None,
    restarts: attack_options.Restarts = None,
    version: attack_options.Version = None,
    certify_first: attack_options.CertifyFirst = False,
    no_examples: attack_options.NoExamples = False,
    save_images: attack_options.SaveImages = None,
    curve: attack_options.Curve = None,
    minimum: attack_options.Minimum = False,
    confirm: attack_options.Confirm = None,
    plot: attack_options.Plot = None,
    json_file: attack_options.Json = None,
    replace: attack_options.Replace = False,
    skip: options.Skip = 1,
    max: options.Max = None,
    shard: options.Shard = None,
    order: options.Order = options.OrderName.data,
    seed: options.Seed = 0,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    on: options.On = None,
    devices: options.Devices = None,
    threads: options.Threads = None,
    dtype: options.DTypeName = None,
    allow_changed_code: options.AllowChangedCode = False,
    out: options.Out = None,
) -> None:
    """Attack a classifier on a data set.

    Prints clean and robust accuracy. Results are saved as they come: after a crash or Ctrl-C, run the same command
    again to resume.

    With --minimum it finds the nearest adversarial examples instead, and prints robust accuracy at several epsilons and
    the quartiles of the distance.

    Example: pyrobust attack --model zoo:digits-smooth-0.25 --data digits --norm l2 --epsilon 0.5
    """
    low, high = parse_clip(clip)
    executor, device = executor_of(on, devices, device)
    part = parse_shard(shard)
    modes = {"--epsilon": epsilon, "--curve": curve, "--minimum": minimum or None}
    given = [mode for mode, value in modes.items() if value is not None]
    if len(given) != 1:
        raise InputError(
            f"--epsilon: expected one of --epsilon, --curve and --minimum, got {' and '.join(given) or 'none'}"
        )
    attack_class, settings = (
        attack_options.choose_minimum(attack, norm, steps, restarts, version)
        if minimum
        else attack_options.choose_attack(attack or AttackName.autoattack, norm, steps, restarts, version)
    )
    size = None if epsilon is None else parse_epsilon("--epsilon", epsilon)
    points = [] if curve is None else attack_options.parse_curve(curve)
    step = attack_options.parse_grid(grid)
    chosen = attack_options.parse_confirm(confirm)
    if chosen and norm is AttackNormName.l0:
        raise InputError(
            "--confirm: expected none with --norm l0, which AutoAttack does not have, got "
            f"{confirm}; leave it out, or run pyrobust attack --attack pgd --norm l0 --epsilon E beside it"
        )
    unused: dict[str, tuple[object, str]] = {}
    if curve is None and plot is None and json_file in (None, "-"):
        unused["--replace"] = replace or None, "without --plot or --json"
    if epsilon is not None:
        unused["--plot"] = plot, "without --curve or --minimum"
    if not minimum:
        unused["--confirm"] = confirm, "without --minimum"
    elif part is not None:
        unused["--confirm"] = confirm, "with --shard, since the run does not store what it confirms"
    elif step == "auto":
        unused["--confirm"] = confirm, "with --grid auto, whose step it would have to know"
    if curve is not None:
        why = "with --curve, which saves no run"
        unused |= {"--out": (out, why), "--shard": (part, why), "--no-examples": (no_examples or None, why)}
        unused["--save-images"] = save_images, why
        unused |= {"--on": (on, why), "--devices": (devices, why), "--threads": (threads, why)}
        unused["--order"] = None if order is options.OrderName.data else order.value, why
    if minimum and confirm is None:
        unused["--certify-first"] = certify_first or None, "with --minimum but without --confirm"
    elif not minimum and attack not in (None, AttackName.autoattack):
        unused["--certify-first"] = certify_first or None, "with another attack than autoattack"
    for name, (value, why) in unused.items():
        if value is not None:
            raise InputError(f"{name}: expected none {why}; leave it out")
    if plot is not None and plot.suffix.lower() not in _PLOTS:
        raise InputError(f"--plot: expected a file name that ends in {', '.join(_PLOTS)}, got {str(plot)!r}")
    check_json(json_file, [*input_paths(data, weights), named_file(out)], replace, plot)
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
    common = {**work, "clip_min": low, "clip_max": high, "seed": seed, "batch_size": batch_size}
    if step is not None:
        common["grid"] = step
    first: dict[str, Any] = {"certify_first": True} if certify_first else {}
    arguments = {**settings, **common, **({} if minimum else first)}
    if curve is None:
        from pyrobust.attacks import AutoAttack
        from pyrobust.evaluation import attack_dataset, confirm_curve, minimum_norm_curve
        from pyrobust.report import describe_run, plot_curve

        # A search for the nearest example ignores epsilon.
        attacker = attack_class(net, 8 / 255 if size is None else size, **arguments)
        confirming = [AutoAttack(net, radius, norm.value, **common, **first) for radius in chosen]
        default = "ensemble" if minimum else AttackName.autoattack.value
        attack_name = default if attack is None else str(getattr(attack, "value", attack))
        names = [norm.value, "minimum" if size is None else f"eps{size:g}"]
        names += [] if step is None else [f"grid-{step}"]
        path = run_file(out, run_name(["attack", attack_name, model], weights, data, names, part))
        found = None
        with resumable(path, shard, out) as progress:
            run = attack_dataset(
                attacker,
                images,
                minimum=minimum,
                out=path,
                skip=skip,
                max_images=max,
                shard=part,
                order=order.value,
                keep_examples=not no_examples,
                save_images=save_images,
                batch_size=batch_size,
                model_name=model_name(model, weights),
                allow_changed_code=allow_changed_code,
                executor=executor,
                threads=threads,
                progress=progress,
            )
            if minimum and len(run):
                found = minimum_norm_curve(run)
                x, y = images.read(run.table["index"].tolist())
                for another in confirming:
                    found = confirm_curve(found, another, x, y, progress=show_progress())
        show_run(run, json_file, found)
        if plot is not None and found is not None:
            plot_curve(found, plot, describe_run(run))
            note(f"plot: {describe_path(plot)}")
        if save_images is not None and len(run):
            note(f"images: {describe_path(save_images)}")
        note_guessing(run, model, weights)
        return

    from rich.console import Console

    from pyrobust.evaluation.attack import attack_settings
    from pyrobust.evaluation.robustness_curve import robustness_curve
    from pyrobust.report import caption as caption_of
    from pyrobust.report import curve_table, plot_curve
    from pyrobust.runs.kinds import words
    from pyrobust.runs.kinds.attack import CERTIFIED_FIRST
    from pyrobust.zoo import model_hash

    attacker = attack_class(net, points[-1], **arguments)
    # Hashed before its first forward pass, which may change its buffers.
    sha256 = model_hash(net)
    x, y = images.read(range(len(images))[::skip][:max])
    result = robustness_curve(attack_class, net, x, y, points, progress=show_progress(), **arguments)
    own_seed, own = attack_settings(attacker)
    selection = {"images": len(images), "skip": skip, "max": max, "shard": None}
    caption = [
        words.describe_attack(result.attack, result.norm, (low, high), own, own_seed)
        + ("" if step is None else f"; grid {step}"),
        caption_of.describe_model(model, sha256, str(attacker.runner.dtype).removeprefix("torch.")),
        caption_of.describe_data(images.name, images.sha256, selection, len(x)),
        *([CERTIFIED_FIRST] if certify_first else []),
    ]
    Console(stderr=json_file == "-").print(curve_table(result, caption))
    if json_file is not None:
        about = {"model": model, "model_sha256": sha256, "data": images.name, "data_sha256": images.sha256}
        write_json(about | {"about": caption} | selection | curve_values(result), json_file)
    if plot is not None:
        plot_curve(result, plot, caption)
        note(f"plot: {describe_path(plot)}")

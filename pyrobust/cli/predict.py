"""``pyrobust predict``."""

from __future__ import annotations

from pyrobust.cli import options, smoothing_options
from pyrobust.cli.parsing import images_to_read, input_paths, parse_shard
from pyrobust.cli.shell import reports_errors
from pyrobust.cli.smoothing_options import Noise
from pyrobust.cli.sweep import (
    check_json,
    executor_of,
    model_name,
    named_file,
    note_guessing,
    resumable,
    run_file,
    run_name,
    show_run,
)


@reports_errors
def predict(
    model: options.Model,
    data: options.Data,
    sigma: smoothing_options.Sigma,
    weights: options.Weights = None,
    num_classes: smoothing_options.NumClasses = None,
    normalize: smoothing_options.Normalize = None,
    noise: smoothing_options.NoiseName = Noise.gaussian,
    grid: smoothing_options.Grid = "auto",
    n: smoothing_options.Votes = 100_000,
    alpha: smoothing_options.Alpha = 0.001,
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
    json_file: options.Json = None,
    out: options.Out = None,
) -> None:
    """Predict a data set with a smoothed classifier.

    Abstains on images whose samples do not decide. Results are saved as they come: after a crash or Ctrl-C, run the
    same command again to resume.

    Example: pyrobust predict --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --n 1000
    """
    executor, device = executor_of(on, devices, device)
    part = parse_shard(shard)
    check_json(json_file, [*input_paths(data, weights), named_file(out)])
    smoother, images = smoothing_options.load_smoother(
        model=model,
        weights=weights,
        data=data,
        most=images_to_read(skip, max),
        num_classes=num_classes,
        normalize=normalize,
        sigma=sigma,
        noise=noise,
        grid=grid,
        seed=seed,
        device=device,
        dtype=dtype,
    )
    from pyrobust.evaluation import predict_dataset

    path = run_file(out, run_name(["predict", model], weights, data, [f"sigma{sigma:g}", f"n{n}"], part))
    with resumable(path, shard, out) as progress:
        run = predict_dataset(
            smoother,
            images,
            out=path,
            n=n,
            alpha=alpha,
            skip=skip,
            max_images=max,
            shard=part,
            order=order.value,
            batch_size=batch_size,
            model_name=model_name(model, weights),
            allow_changed_code=allow_changed_code,
            executor=executor,
            threads=threads,
            progress=progress,
        )
    show_run(run, json_file)
    note_guessing(run, model, weights)

"""``pyrobust predict``."""

from __future__ import annotations

from pyrobust.cli import options
from pyrobust.cli.shell import reports_errors, show_progress
from pyrobust.cli.sweep import resumable, show_run


@reports_errors
def predict(
    model: options.Model,
    data: options.Data,
    sigma: options.Sigma,
    weights: options.Weights = None,
    num_classes: options.NumClasses = None,
    normalize: options.Normalize = None,
    noise: options.NoiseName = options.Noise.gaussian,
    grid: options.Grid = "auto",
    n: options.Votes = 100_000,
    alpha: options.Alpha = 0.001,
    seed: options.Seed = 0,
    skip: options.Skip = 1,
    max: options.Max = None,
    shard: options.Shard = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    dtype: options.DTypeName = None,
    out: options.Out = None,
) -> None:
    """Predict a data set with the smoothed classifier.

    It abstains where the samples do not decide. Results are kept as they come; the same command goes on.

    Example: pyrobust predict --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --n 1000
    """
    part = options.parse_shard(shard)
    smoother, images = options.load(
        model=model,
        weights=weights,
        data=data,
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

    out = out or options.default_out("predict", model, data, sigma, n, part)
    with resumable(out):
        run = predict_dataset(
            smoother,
            images,
            out=out,
            n=n,
            alpha=alpha,
            skip=skip,
            max_images=max,
            shard=part,
            batch_size=batch_size,
            model_name=model,
            progress=show_progress(),
        )
    show_run(run)

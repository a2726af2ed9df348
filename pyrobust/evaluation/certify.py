"""Sweeps: a whole data set, one chunk of images after the other, kept in a run that can be gone on with."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import WORDS, count, probability
from pyrobust.errors import InputError
from pyrobust.evaluation.arguments import (
    Data,
    check_grid,
    check_images,
    check_selection,
    identify_model,
)
from pyrobust.evaluation.certify_sequential import fill_sequentially
from pyrobust.evaluation.progress import Report
from pyrobust.evaluation.resume import Advance, Step, fill_run, probing, software_versions, stored_parameters, write_run
from pyrobust.runs.parameters import RULE, chosen_indices
from pyrobust.runs.reader import Header
from pyrobust.runs.run import Run
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing
from pyrobust.smoothing.checks import certified_radii, samples
from pyrobust.smoothing.prediction import joint_delta
from pyrobust.stats import SHARE_AT_END
from pyrobust.zoo import ImageSet

# A chunk is about this many full batches: the partly filled ones at its end cost a few per cent, and a crash loses
# seconds of work.
_BATCHES = 16


def certify_dataset(
    smoother: RandomizedSmoothing,
    data: Data,
    *,
    out: str | os.PathLike[str] | None = None,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    method: str = "fixed",
    radii: Sequence[float] | None = None,
    hybrid: float | None = None,
    two_class: bool = False,
    skip: int = 1,
    max_images: int | None = None,
    shard: tuple[int, int] | None = None,
    batch_size: int | None = None,
    model_name: str | None = None,
    progress: bool | Report = False,
) -> Run:
    """Certifies a data set (Cohen, Rosenfeld and Kolter 2019), keeping every result as soon as its chunk is done.

    Called again with the same arguments after a crash, a kill or an exception, it goes on where it stopped, and ends
    with the same results as if it had not: the noise depends on the seed and the data-set index alone, and chunks and
    batches have fixed boundaries. (Where memory runs out on the way, batches are halved; then the model may round
    differently. With a grid, batches are part of what is certified, and the run ends instead.) That the model is the
    same is told by `pyrobust.zoo.model_hash`, before it runs; a model that changes its own attributes as it runs has to
    be loaded afresh.

    With method "sequential" an image takes as many samples as its radii need, n at most; images that are not decided
    share full batches, whatever their place in the data set. A result is kept when its image is done, and about every
    second the votes of images in work, so that these too go on where they stopped. Samples and decisions are then the
    same; batches are not, for they hold whoever is in work: results are too where the model rounds each row alike in
    any batch.

    Args:
        smoother: with its model, sigma, noise and seed.
        data: the images, or (x, y) with x float32 [N, C, H, W] and y int64 [N].
        out: the file of the run; default: in memory.
        n0: samples for the selection of the class.
        n: samples for the bound on its probability.
        alpha: probability that one certificate is wrong, in (0, 1).
        method: "fixed" or "sequential", as of ``RandomizedSmoothing.certify_batch``; and so the next three.
        radii: what "sequential" decides; none for "fixed", whose radii are as they come.
        hybrid: share of alpha for one bound at n samples; default 0.01.
        two_class: whether other classes are bounded too.
        skip: every skip-th image, from the first on; at least 1.
        max_images: at most so many of those; default all.
        shard: (I, K): of those every K-th from the I-th on, I from 1 to K.
        batch_size: rows a forward pass; default: the smoother's, or that of the run that is gone on with.
        model_name: what the model is called in the run; default its class. A callable that is no module has nothing
            else to be told apart by, and needs one where the run is kept in a file.
        progress: True for a bar on standard error, or a function of a `SweepProgress`.

    Returns:
        The run.

    Raises:
        InputError: a value out of range, labels that the smoother has no class for, another number of classes than
            the model's, or no ``model_name`` where one is needed.
        InputTypeError: an argument of another type.
        StoreError: the run cannot be written, is being written by another process, or has other parameters, each named.
        FileFormatError: ``out`` is not a run, or damaged.
        ModelError: the model failed on the first image. What it raises later passes unchanged; what was committed is
            kept.

    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, skip=100)
    >>> run.table["index"], bool((run.table["radius"] < 1).all())
    (array([  0, 100, 200, 300]), True)
    """
    n0, n, alpha = samples("n0", n0), samples("n", n), probability("alpha", alpha)
    images = check_images(smoother, data)
    smoother = smoother.on_grid_of(images.x)
    selection = {"skip": skip, "max": max_images, "shard": shard}
    special = {"n0": n0, "n": n, "alpha": alpha, "method": method}
    wanted = sorted(set(certified_radii(method, radii)))
    if method == "sequential":
        share = SHARE_AT_END if hybrid is None else hybrid
        special |= {"radii": wanted, "hybrid": share, "two_class": two_class}
        return _sweep("certify", None, smoother, images, out, special, selection, batch_size, model_name, progress)
    if wanted or hybrid is not None or two_class:
        raise InputError('radii, hybrid, two_class: expected none with method "fixed"; they are for "sequential"')

    def certify(x: Tensor, indices: range, report: Advance) -> dict[str, Any]:
        result = smoother.certify_batch(x, n0=n0, n=n, alpha=alpha, indices=indices, progress=report)
        return {
            **_predictions(result.prediction),
            "counts0": result.counts0,
            "counts": result.counts,
            "p_lower": result.p_lower,
            "radius": result.radius,
        }

    return _sweep("certify", certify, smoother, images, out, special, selection, batch_size, model_name, progress)


def predict_dataset(
    smoother: RandomizedSmoothing,
    data: Data,
    *,
    out: str | os.PathLike[str] | None = None,
    n: int = 100_000,
    alpha: float = 0.001,
    skip: int = 1,
    max_images: int | None = None,
    shard: tuple[int, int] | None = None,
    batch_size: int | None = None,
    model_name: str | None = None,
    progress: bool | Report = False,
) -> Run:
    """Predicts a data set with the smoothed classifier, abstaining where the two-sided binomial test does not decide.

    Otherwise as `certify_dataset`.

    Args:
        smoother: with its model, sigma, noise and seed.
        data: the images, or (x, y).
        out: the file of the run; default: in memory.
        n: samples an image.
        alpha: probability that one prediction is not the smoothed classifier's, in (0, 1).
        skip: every skip-th image.
        max_images: at most so many of those.
        shard: (I, K): of those every K-th from the I-th on.
        batch_size: rows a forward pass.
        model_name: what the model is called in the run.
        progress: True for a bar, or a function.

    Returns:
        The run.

    Raises:
        InputError: as `certify_dataset`, and so the others.
        InputTypeError: an argument of another type.
        StoreError: the run cannot be written or gone on with.
        FileFormatError: ``out`` is not a run, or damaged.
        ModelError: the model failed.

    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> predict_dataset(smoother, load_data("digits"), n=100, max_images=3).right
    array([ True,  True,  True])
    """
    n, alpha = samples("n", n), probability("alpha", alpha)
    images = check_images(smoother, data)
    smoother = smoother.on_grid_of(images.x)

    def predict(x: Tensor, indices: range, report: Advance) -> dict[str, Any]:
        result = smoother.predict_batch(x, n=n, alpha=alpha, indices=indices, progress=report)
        return {**_predictions(result.prediction), "counts": result.counts, "p_value": result.p_value}

    special = {"n": n, "alpha": alpha}
    selection = {"skip": skip, "max": max_images, "shard": shard}
    return _sweep("predict", predict, smoother, images, out, special, selection, batch_size, model_name, progress)


def _sweep(
    kind: str,
    step: Step | None,
    smoother: RandomizedSmoothing,
    images: ImageSet,
    out: str | os.PathLike[str] | None,
    special: dict[str, Any],
    selection: dict[str, Any],
    batch_size: int | None,
    model_name: str | None,
    progress: bool | Report,
) -> Run:
    """A sweep in chunks by a step; without one, a sequential one."""
    if step is None:
        # Says what is wrong with them before the model runs.
        smoother.rule(**{name: special[name] for name in RULE})
        special = special | {"hybrid": float(special["hybrid"])}
    selection = {"images": len(images), **check_selection(**selection)}
    check_grid(smoother, images, selection)
    batch_size = None if batch_size is None else count("batch_size", batch_size, WORDS)
    # Before the model runs for the first time, which may leave something behind in it.
    name, model_sha256 = identify_model(model_name, smoother.runner.model, out)
    stored = {} if out is None else stored_parameters(Path(out))
    given = smoother.runner.given_batch_size
    if batch_size is not None or "batch_size" in stored:
        smoother.runner.set_batch_size(stored["batch_size"] if batch_size is None else batch_size)
    try:
        # A model that does not fit the images or the classes shows before a file is made.
        with probing(images.x.shape[1:]):
            first = next(iter(chosen_indices(selection)), 0)  # on a grid the others need not lie on it
            smoother.predict_batch(images.x[first : first + 1], n=1)
            found = smoother.runner.batch_size(tuple(images.x.shape[1:]))
        batch = count("batch_size", smoother.runner.given_batch_size or found, WORDS)
        drawn = special["n"] + special.get("n0", 0)
        chunk = stored.get("chunk", min(WORDS, max(1, math.ceil(_BATCHES * batch / drawn))))
        header = Header(
            kind=kind,
            parameters={
                **_smoothing_parameters(smoother),
                **_grid_parameters(kind, smoother, images, special["n"]),
                **special,
                **selection,
                "batch_size": batch,
                **({} if step is None else {"chunk": chunk}),
            },
            model=name,
            model_sha256=model_sha256,
            data=images.name,
            data_sha256=images.sha256,
            guarantee=smoother.sampler.guarantee,
            versions=software_versions(),
        )
        if step is None:
            return fill_run(
                out, header, lambda writer, report: fill_sequentially(writer, smoother, images, report), progress
            )
        return write_run(out, header, step, images, progress)
    finally:
        smoother.runner.set_batch_size(given)


def _grid_parameters(kind: str, smoother: RandomizedSmoothing, images: ImageSet, n: int) -> dict[str, Any]:
    """The grid, and what its noise's inexactness takes from each p_lower or adds to each p-value."""
    if smoother.sampler.grid is None:
        return {}
    delta = smoother.sampler.delta(images.x.shape[1:])
    return {"grid": str(smoother.sampler.grid), "delta": delta if kind == "certify" else joint_delta(delta, n)}


def _predictions(prediction: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {"prediction": prediction, "status": ["abstain" if value == ABSTAIN else "ok" for value in prediction]}


def _smoothing_parameters(smoother: RandomizedSmoothing) -> dict[str, Any]:
    runner = smoother.runner
    return {
        "num_classes": smoother.num_classes,
        "sigma": smoother.sigma,
        "noise": smoother.noise,
        "norm": smoother.norm,
        "normalize": None if smoother.normalize is None else [part.tolist() for part in smoother.normalize],
        "seed": smoother.seed,
        "dtype": str(runner.dtype).removeprefix("torch."),
        "memory_format": str(runner.memory_format).removeprefix("torch."),
        "device": runner.device.type,
    }

"""Certify and predict whole data sets with a smoothed classifier, as resumable sweeps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobust.checks import WORDS, count, probability
from pyrobust.evaluation.arguments import (
    Data,
    check_grid,
    check_labels,
    check_smoother,
    identify_model,
    image_set,
    select,
)
from pyrobust.evaluation.identity import identify
from pyrobust.evaluation.resume import run_sweep
from pyrobust.evaluation.sweep import Advance, PartsStep, Prepared, Step, Sweep, probing
from pyrobust.runs.identity import software_versions
from pyrobust.runs.kinds.certify import Certify, Sequential
from pyrobust.runs.kinds.predict import Predict
from pyrobust.runs.reader import Header
from pyrobust.runs.run import Run
from pyrobust.runs.settings import SweepSettings, merge_settings
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing
from pyrobust.smoothing.checks import certified_radii, check_sampling, samples
from pyrobust.smoothing.prediction import joint_delta
from pyrobust.stats import SHARE_AT_END
from pyrobust.zoo import LabelledImages

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyrobust.runs.settings import SweepKeywords

# Full batches in a chunk: a partly filled last batch costs a few percent, and a crash loses seconds of work.
_BATCHES = 16
# A sequential chunk packs its images into shared batches: this many at least, or a tenth of the rows of a batch.
# On a grid, this costs a few percent more rows with one radius, less with several (study smoothing/sequential_chunks).
_LEAST_SEQUENTIAL = 48


def certify_dataset(
    smoother: RandomizedSmoothing,
    data: Data,
    *,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    method: str = "fixed",
    radii: Sequence[float] | None = None,
    hybrid: float | None = None,
    two_class: bool = False,
    settings: SweepSettings | None = None,
    **keywords: Unpack[SweepKeywords],
) -> Run:
    """Certify a data set by randomized smoothing (Cohen, Rosenfeld and Kolter, 2019), committing chunk by chunk.

    After a crash, a kill or an exception, a second call with the same arguments resumes the sweep. The results are the
    same as without the interruption: the noise depends on the seed and the data-set index alone, and chunks and batches
    have fixed boundaries. If memory runs out, batches are halved, and the model may round differently. If the smoother
    has a grid, the certificate depends on the batches, so the sweep stops instead of halving them.
    `pyrobust.zoo.model_hash` identifies the model before it runs. So a model that changes its own attributes while
    running must be reloaded before resuming.

    With method "sequential", each image gets only as many samples as its radii need, and at most n. The undecided
    images of a chunk share full batches. Results are committed when an image is finished; votes of unfinished images
    are committed about every second, so that these images can be resumed too. The batches depend on the chunk alone: a
    resumed run draws the same samples in the same batches. (A run started by an earlier version has no chunks; resuming
    it gives the same results if the model rounds a row in the same way in every batch.)

    Args:
        smoother: the smoothed classifier, with its model, sigma, noise and seed.
        data: images in a fixed order, as an ``ImageSet`` or ``LazyImages``; a pair (x, y) with x float32 [N, C, H, W]
            or [N, D] and y int64 [N]; or a ``DataLoader``, ``Dataset`` or iterable of such pairs, see
            `pyrobust.zoo.as_image_set`.
        n0: samples to select the class.
        n: samples to bound the probability of that class.
        alpha: probability that one certificate is wrong, in (0, 1).
        method: "fixed" or "sequential"; see ``RandomizedSmoothing.certify_batch`` for this and the next three
            arguments.
        radii: radii to be decided, that is, certified or given up, for each image; for "sequential" only.
        hybrid: for "sequential", the share of alpha that is reserved for a Clopper-Pearson bound at n samples. Default:
            0.01.
        two_class: for "sequential", whether the probability of the strongest other class is bounded, too.
        settings: settings of the sweep. Default: ``SweepSettings()``.
        keywords: fields of ``SweepSettings``, such as ``out="run.db", max_images=100``; they override ``settings``.

    Returns:
        The run.

    Raises:
        InputError: a value out of range, labels that are not classes, a number of classes other than the model's, or a
            missing ``model_name``.
        InputTypeError: an argument of the wrong type.
        StoreError: the run cannot be written, is being written by another process, or has parameters that differ from
            those of this call. The message lists the differences.
        FileFormatError: ``out`` is damaged, or not a run.
        WorkerError: workers cannot be started, die repeatedly, or differ from the first worker, for example in their
            software versions.
        ModelError: the model fails on the first image. Later exceptions of the model propagate unchanged; committed
            results are kept.

    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> run = certify_dataset(smoother, load_data("digits"), n=1000, skip=100)
    >>> run.table["index"], bool((run.table["radius"] < 1).all())
    (array([  0, 100, 200, 300]), True)
    """
    settings = merge_settings(certify_dataset, settings, keywords)
    check_smoother(smoother)
    n0, n, alpha = samples("n0", n0), samples("n", n), probability("alpha", alpha)
    images = image_set(data, settings, "refuse" if smoother.grid is None else "grid")
    smoother = smoother.on_grid_of(images)
    specific: dict[str, Any] = {"n0": n0, "n": n, "alpha": alpha, "method": method}
    check_sampling(method, radii=radii, hybrid=hybrid, two_class=two_class)
    if method == Sequential.layout:
        share = SHARE_AT_END if hybrid is None else hybrid
        specific |= {"radii": sorted(set(certified_radii(method, radii))), "hybrid": share, "two_class": two_class}
        # Raises for invalid arguments before the model runs.
        smoother.rule(**{name: specific[name] for name in Sequential.rule})
        specific["hybrid"] = float(share)
    step: SmoothedStep = CertifyStep
    if method == Sequential.layout:
        from pyrobust.evaluation.certify_sequential import SequentialStep

        step = SequentialStep
    return run_sweep(smoothed_sweep(Certify.name, step, smoother, images, specific, settings))


def predict_dataset(
    smoother: RandomizedSmoothing,
    data: Data,
    *,
    n: int = 100_000,
    alpha: float = 0.001,
    settings: SweepSettings | None = None,
    **keywords: Unpack[SweepKeywords],
) -> Run:
    """Predict a data set with the smoothed classifier, abstaining where the two-sided binomial test is inconclusive.

    Chunks, resuming and errors are as in `certify_dataset`.

    Args:
        smoother: the smoothed classifier, with its model, sigma, noise and seed.
        data: images in a fixed order, as an ``ImageSet`` or ``LazyImages``; a pair (x, y) with x float32 [N, C, H, W]
            or [N, D] and y int64 [N]; or a ``DataLoader``, ``Dataset`` or iterable of such pairs, see
            `pyrobust.zoo.as_image_set`.
        n: samples for each image.
        alpha: probability that one prediction differs from the smoothed classifier's, in (0, 1).
        settings: settings of the sweep. Default: ``SweepSettings()``.
        keywords: fields of ``SweepSettings``, such as ``out="run.db", max_images=100``; they override ``settings``.

    Returns:
        The run.

    Raises:
        InputError: a value out of range, labels that are not classes, or a missing ``model_name``.
        InputTypeError: an argument of the wrong type.
        StoreError: the run cannot be written or resumed.
        FileFormatError: ``out`` is damaged, or not a run.
        WorkerError: workers cannot be started, die repeatedly, or differ from the first worker, for example in their
            software versions.
        ModelError: the model fails on the first image.

    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> predict_dataset(smoother, load_data("digits"), n=100, max_images=3).correct
    array([ True,  True,  True])
    """
    settings = merge_settings(predict_dataset, settings, keywords)
    check_smoother(smoother)
    specific = {"n": samples("n", n), "alpha": probability("alpha", alpha)}
    images = image_set(data, settings, "refuse" if smoother.grid is None else "grid")
    smoother = smoother.on_grid_of(images)
    return run_sweep(smoothed_sweep(Predict.name, PredictStep, smoother, images, specific, settings))


@dataclass(frozen=True)
class CertifyStep:
    """The ``Step`` that certifies the images of a chunk with a fixed number of samples."""

    smoother: RandomizedSmoothing
    parameters: Mapping[str, Any]

    def __call__(self, x: Tensor, y: Tensor, indices: Sequence[int], report: Advance) -> dict[str, Any]:
        """Return the result columns of x [B, C, H, W] except idx, label and seconds; ``report`` gets sample counts."""
        chosen = {name: self.parameters[name] for name in ("n0", "n", "alpha")}
        result = self.smoother.certify_batch(x, **chosen, indices=indices, progress=report)
        return {
            **_predictions(result.prediction),
            "counts0": result.counts0,
            "counts": result.counts,
            "p_lower": result.p_lower,
            "radius": result.radius,
        }


@dataclass(frozen=True)
class PredictStep:
    """The ``Step`` that predicts the classes of the images of a chunk."""

    smoother: RandomizedSmoothing
    parameters: Mapping[str, Any]

    def __call__(self, x: Tensor, y: Tensor, indices: Sequence[int], report: Advance) -> dict[str, Any]:
        """Return the result columns of x [B, C, H, W] except idx, label and seconds; ``report`` gets sample counts."""
        chosen = {name: self.parameters[name] for name in ("n", "alpha")}
        result = self.smoother.predict_batch(x, **chosen, indices=indices, progress=report)
        return {**_predictions(result.prediction), "counts": result.counts, "p_value": result.p_value}


#: Makes the step of a smoothed classifier from the run's parameters.
SmoothedStep: TypeAlias = Callable[[RandomizedSmoothing, Mapping[str, Any]], Step | PartsStep]


@dataclass(frozen=True, kw_only=True)
class _SmoothedSweep(Sweep):
    kind: str
    make_step: SmoothedStep
    smoother: RandomizedSmoothing
    kind_parameters: dict[str, Any]
    least_chunk: int

    @contextlib.contextmanager
    def prepare(self, stored: Mapping[str, Any], device: str | None) -> Iterator[Prepared]:
        """Find the batch size of a new run, and have the runner use the run's batch size inside the context."""
        smoother, images, kind_parameters, selection = self.smoother, self.images, self.kind_parameters, self.selection
        runner = smoother.runner
        if device is not None:
            runner.to(device)
        # Hashed before the first forward pass, which may change the model's attributes.
        name, model_sha256 = identify_model(runner.model, self.settings)
        requested = runner.given_batch_size
        if requested is not None:
            count("batch_size", requested, WORDS)
        chosen = self.settings.batch_size or stored.get("batch_size")
        if chosen is not None:
            runner.set_batch_size(chosen)
        try:
            # A model that does not fit the images or the classes fails here, before a file is created.
            with probing(images.shape):
                # Images that are not selected may be off the grid.
                smoother.predict_batch(images.read([self.first])[0], n=1)
                fitting = runner.batch_size(images.shape)
            batch = count("batch_size", runner.given_batch_size or fitting, WORDS)
            drawn = (
                None
                if kind_parameters.get("method") == Sequential.layout
                else kind_parameters["n"] + kind_parameters.get("n0", 0)
            )
            # A run keeps its chunk; sequential runs of earlier versions have none.
            chunk = stored.get("chunk") if stored else default_chunk(batch, drawn, self.least_chunk)
            header = Header(
                kind=self.kind,
                parameters={
                    **_smoothing_parameters(smoother),
                    **_grid_parameters(self.kind, smoother, images, kind_parameters["n"]),
                    **kind_parameters,
                    **selection,
                    "batch_size": batch,
                    **({} if chunk is None else {"chunk": chunk}),
                },
                model=name,
                model_sha256=model_sha256,
                data=images.name,
                data_sha256=images.sha256,
                guarantee=smoother.sampler.guarantee,
                versions=software_versions(),
            )
            yield Prepared(
                header,
                self.make_step(smoother, header.parameters),
                partial(identify, runner, images.read([0])[0][0], pinned=smoother.sampler.grid is not None),
            )
        finally:
            runner.set_batch_size(requested)


def smoothed_sweep(
    kind: str,
    make_step: SmoothedStep,
    smoother: RandomizedSmoothing,
    images: LabelledImages,
    kind_parameters: dict[str, Any],
    settings: SweepSettings,
    *,
    least_chunk: int = 1,
) -> Sweep:
    """Return the sweep of a smoothed classifier, in chunks of at least ``least_chunk`` images."""
    check_labels(images, smoother.num_classes, "the smoother's")
    selection = select(images, settings, smoother.seed)
    check_grid(smoother, images, selection)
    identify_model(smoother.runner.model, settings)  # raises without a name
    return _SmoothedSweep(
        kind=kind,
        make_step=make_step,
        smoother=smoother,
        images=images,
        kind_parameters=kind_parameters,
        selection=selection,
        settings=settings,
        least_chunk=least_chunk,
    )


def default_chunk(batch: int, samples: int | None, least: int = 1) -> int:
    """Return the chunk size for a batch size and ``samples`` per image; ``samples`` is None for sequential sampling.

    >>> default_chunk(512, 1100), default_chunk(512, None)
    (8, 51)
    """
    if samples is None:
        return min(WORDS, max(_LEAST_SEQUENTIAL, batch // 10))
    return min(WORDS, max(least, math.ceil(_BATCHES * batch / samples)))


def _grid_parameters(kind: str, smoother: RandomizedSmoothing, images: LabelledImages, n: int) -> dict[str, Any]:
    """Return the noise's grid and delta, a bound on the error of the drawn noise; without a grid, return {}."""
    if smoother.sampler.grid is None:
        return {}
    delta = smoother.sampler.delta(images.shape)
    return {"grid": str(smoother.sampler.grid), "delta": joint_delta(delta, n) if kind == Predict.name else delta}


def _predictions(prediction: npt.NDArray[np.int64]) -> dict[str, Any]:
    return {"prediction": prediction, "status": ["abstain" if value == ABSTAIN else "ok" for value in prediction]}


def _smoothing_parameters(smoother: RandomizedSmoothing) -> dict[str, Any]:
    runner = smoother.runner
    return {
        "num_classes": smoother.num_classes,
        "sigma": smoother.sigma,
        "noise": smoother.noise,
        "norm": smoother.norm,
        "normalize": None if smoother.normalize is None else [statistic.tolist() for statistic in smoother.normalize],
        "seed": smoother.seed,
        "dtype": str(runner.dtype).removeprefix("torch."),
        "memory_format": str(runner.memory_format).removeprefix("torch."),
        "device": runner.device.type,
    }

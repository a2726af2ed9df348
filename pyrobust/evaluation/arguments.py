"""Checks of the arguments of sweeps."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.utils.data
from torch import Tensor, nn

from pyrobust.checks import first_wrong, integer
from pyrobust.errors import InputError, InputTypeError
from pyrobust.grid import to_grid
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.settings import SweepSettings
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet, LabelledImages, model_hash
from pyrobust.zoo.image_set import ROUNDED

logger = logging.getLogger(__name__)

#: Labelled images: an ImageSet or other LabelledImages, a pair (x, y), or what `pyrobust.zoo.as_image_set` reads.
Data: TypeAlias = LabelledImages | tuple[Any, Any] | Iterable[Any] | torch.utils.data.Dataset[Any]


def check_smoother(smoother: Any) -> None:
    """Raise InputTypeError unless the argument is a RandomizedSmoothing."""
    if not isinstance(smoother, RandomizedSmoothing):
        raise InputTypeError("smoother", "a RandomizedSmoothing", type(smoother).__name__)


def image_set(
    data: Data, settings: SweepSettings, rounding: Literal["warn", "refuse", "grid"] = "refuse"
) -> LabelledImages:
    """Return labelled images unchanged, and read data of any other form into memory.

    ``rounding`` is as for ``as_image_set``, except that "warn" replaces "keep". "warn" also rounds float64 values to
    float32, and logs a warning if this changes a value. From data without a length, such as a generator, only the
    images that the selection needs are read.
    """
    images = data if isinstance(data, LabelledImages) else _read(data, settings, rounding)
    if images.rounded != "no" and rounding == "warn":
        logger.warning(ROUNDED, images.name)
    elif images.rounded == "yes" or (images.rounded == "grid" and rounding == "refuse"):
        hint = 'a certificate at a rounded x does not cover x: save x.astype("float32") to certify the rounded x'
        raise InputError("data", "float32 values", "float64 values that float32 rounds", hint, where=images.name)
    return images


def _read(data: Any, settings: SweepSettings, rounding: Literal["warn", "refuse", "grid"]) -> ImageSet:
    """Read data of a form other than LabelledImages into memory."""
    pair = isinstance(data, tuple) and len(data) == 2 and all(isinstance(tensor, Tensor) for tensor in data)
    if isinstance(data, tuple) and pair and data[0].dtype != torch.float64:
        return ImageSet("tensors", data[0].detach().cpu(), data[1].detach().cpu())
    span = None if settings.max_images is None else settings.skip * (settings.max_images - 1) + 1
    iterable = hasattr(data, "__iter__") or hasattr(data, "__getitem__")
    if isinstance(data, str | Tensor | np.ndarray | dict) or not iterable:
        expected = "an ImageSet, a pair (x, y), or an iterable of pairs such as a DataLoader or Dataset"
        hint = "read it with load_data" if isinstance(data, str) else ""
        raise InputTypeError("data", expected, type(data).__name__, hint)
    source = getattr(data, "dataset", data)  # the data set of a DataLoader
    from pyrobust.zoo import as_image_set

    return as_image_set(
        data, "tensors" if pair else type(source).__name__, span, rounding="keep" if rounding == "warn" else rounding
    )


def select(images: LabelledImages, settings: SweepSettings, seed: int | None) -> dict[str, Any]:
    """Return the run parameters that select images and, if the order is random, define the order."""
    seed = integer("seed", seed or 0, 0, (1 << 64) - 1)
    return {
        "images": len(images),
        "skip": settings.skip,
        "max": settings.max_images,
        "shard": None if settings.shard is None else list(settings.shard),
        **({} if settings.order == "data" else {"order": settings.order, "order_seed": seed}),
    }


def identify_model(model: Any, settings: SweepSettings) -> tuple[str, str]:
    """Return the model's name and hash; a callable has the hash "" and needs a name if ``out`` is set."""
    kind = str(getattr(model, "__qualname__", type(model).__qualname__))
    if not settings.model_name and settings.out is not None and not isinstance(model, nn.Module):
        raise InputError(
            "model_name",
            "a name",
            "none",
            f"{kind} is not a torch.nn.Module, and a run in a file identifies such models by name alone: give each "
            "model its own name",
        )
    return settings.model_name or kind, model_hash(model) if isinstance(model, nn.Module) else ""


def check_labels(data: LabelledImages, classes: int, whose: str) -> None:
    """Raise InputError for labels that are not below the number of classes."""
    if data.num_classes > classes:
        highest = f"the highest is {data.num_classes - 1}"
        if isinstance(data, ImageSet):
            highest = f"image {int((data.y >= classes).nonzero()[0])} has {int(data.y[data.y >= classes][0])}"
        problem = f"expected labels of 0 to {classes - 1}, {whose} classes; {highest}"
        raise InputError("data", problem=problem, where=data.name)


def check_range(images: LabelledImages, selection: dict[str, Any], limits: Sequence[Any], what: str) -> None:
    """Raise InputError for selected images outside a clip range, before any work is done."""
    from pyrobust.clip import clip_ends

    lower, upper = clip_ends((limits[0], limits[1]), images.shape) if any(map(np.ndim, limits)) else limits
    if isinstance(lower, Tensor) and isinstance(upper, Tensor):
        for index in chosen_indices(selection):
            x = images.read([index])[0].double().flatten()
            outside = (x < lower) | (x > upper)
            if bool(outside.any()):
                problem = f"expected values in {what} of their elements; image {index} has {first_wrong(x, outside)}"
                raise InputError("data", problem=problem, where=images.name)
        return
    if limits[0] <= images.extremes[0] and images.extremes[1] <= limits[1]:
        return
    for index in chosen_indices(selection):
        low, high = (float(value) for value in images.read([index])[0].aminmax())
        if low < limits[0] or high > limits[1]:
            expected = f"expected pixels in [{limits[0]}, {limits[1]}], {what}"
            problem = f"{expected}; those of image {index} are {low} to {high}"
            raise InputError("data", problem=problem, where=images.name)


def ball_of(box: Tensor | None, epsilon: float) -> float | Tensor:
    """Return the radii of an attack's ball: epsilon times the box, rounded down; without a box, epsilon itself."""
    if box is None:
        return epsilon
    from pyrobust.metrics.distance import scaled_boxes

    return scaled_boxes(box, torch.tensor([epsilon], dtype=torch.float64), up=False)


def check_grid(smoother: RandomizedSmoothing, images: LabelledImages, selection: dict[str, Any]) -> None:
    """Raise InputError for selected images off the smoother's grid, before any work is done."""
    grid = smoother.sampler.grid
    if grid is None or grid == images.grid:
        return
    for index in chosen_indices(selection):
        try:
            to_grid(images.read([index])[0][0], grid)
        except InputError as error:
            error.argument, error.where = "data", f"{images.name}: image {index}: {error.argument}"
            raise

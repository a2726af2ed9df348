"""Attack whole data sets, as resumable sweeps."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust.attacks import (
    EOT,
    PGD,
    AdaptedAttack,
    AdversarialAttack,
    AutoAttack,
    BatchAttack,
    MinimumNormAttack,
    MinimumNormEnsemble,
)
from pyrobust.attacks.engine.base import describe_moved
from pyrobust.attacks.engine.levels import Levels
from pyrobust.attacks.engine.settings import stored_settings
from pyrobust.checks import flag
from pyrobust.clip import joined, stored_clip
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.arguments import Data, check_labels, check_range, identify_model, image_set, select
from pyrobust.evaluation.attack_chunk import AttackChunk, MinimumChunk, generators_from
from pyrobust.evaluation.identity import identify
from pyrobust.evaluation.resume import run_sweep
from pyrobust.evaluation.run_images import BYTES, save_run_images
from pyrobust.evaluation.sweep import Prepared, Sweep, network_header, probing
from pyrobust.runner import Runner
from pyrobust.runs.kinds.attack import Attack
from pyrobust.runs.parameters import chosen_indices
from pyrobust.runs.run import Run
from pyrobust.runs.settings import SweepSettings, merge_settings
from pyrobust.zoo import LabelledImages, model_hash
from pyrobust.zoo.saved_images import check_image_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyrobust.runs.settings import SweepKeywords

logger = logging.getLogger(__name__)

_ENSEMBLES = (AutoAttack, MinimumNormEnsemble)
# Images read at once to see whether they are on the grid.
_READ_ROWS = 4096


def attack_dataset(
    attack: AdversarialAttack,
    data: Data,
    *,
    minimum: bool = False,
    keep_examples: bool = True,
    save_images: str | os.PathLike[str] | None = None,
    settings: SweepSettings | None = None,
    **keywords: Unpack[SweepKeywords],
) -> Run:
    """Run an untargeted attack on a data set, committing results chunk by chunk (one batch each).

    After a crash, a kill or an exception, a second call with the same arguments resumes the sweep. The results are the
    same as without the interruption: random numbers depend on the seed and the data-set index, and chunk boundaries are
    fixed. torch's generators are reseeded for every chunk, so a randomised model's outputs depend on the batch size and
    the shards. A resumed attack must have the same attributes as before; in an ensemble, this holds for the attributes
    of every attack. If the attack has a ``callback``, the row that it receives is a position in the current chunk.

    An image counts as broken if the model misclassifies x_adv in a batch of one. Every x_adv is checked: its distance
    is computed in float64, and a point outside the ball or the clip range raises an error. With a grid, images off the
    grid are first moved to the nearest levels, with a warning. Every x_adv then has to be on the grid, and distances
    are computed exactly, from the levels. The grid "auto" is inferred from the whole data set.

    If the attack has an epsilon for each element, the run stores these epsilons as ``box``. The run's epsilon is then
    1, and the distance of an example is ``max |δᵢ| / boxᵢ``.

    With ``minimum``, the run holds the nearest adversarial example found for each image, at any distance. The distance
    is stored, rounded up. It is 0 if the image itself is misclassified, and inf if no adversarial example was found.
    ``Run.robust_accuracy`` then takes any epsilon, and ``minimum_norm_curve`` gives the curve over all epsilons.

    An ``AutoAttack`` with ``certify_first`` leaves out the images that are proved robust; the run records these images,
    and how many forward passes (of one image each) this made unnecessary.

    Args:
        attack: the attack, with its model, norm, epsilon and seed. ``generate(x, y)`` gets x and y on the model's
            device, and, if it has the parameter ``indices``, the data-set indices.
        minimum: search for the nearest adversarial examples, with ``attack.minimum``, regardless of the attack's
            epsilon.
        data: images in the attack's clip range, in a fixed order, given as an ``ImageSet``; a pair (x, y) with x
            float32 [N, C, H, W] or [N, D] and y int64 [N]; or a ``DataLoader``, ``Dataset`` or iterable of such pairs,
            see `pyrobust.zoo.as_image_set`.
        keep_examples: store every x_adv, for ``Run.examples``.
        save_images: folder or npz file for the adversarial examples of an attack with the grid 1/255, see
            ``save_run_images``. PNG files are written as each chunk is committed, and an npz file at the end. A resumed
            run adds the images that the folder lacks.
        settings: settings of the sweep. Default: ``SweepSettings()``.
        keywords: fields of ``SweepSettings``, such as ``out="run.db", max_images=100``; they override ``settings``.

    Returns:
        The run.

    Raises:
        InputError: a value out of range, an epsilon for each example, labels that are not classes, images outside the
            clip range, a missing ``model_name``; or an attack that returns a wrong shape, NaN, or points outside the
            ball or the clip range.
        InputTypeError: an argument of the wrong type; with ``minimum``, an attack that is not a ``MinimumNormAttack``.
        StoreError: the run cannot be written, is being written by another process, or has parameters that differ from
            those of this call. The message lists the differences.
        FileFormatError: ``out`` is damaged, or not a run.
        WorkerError: workers cannot be started, die repeatedly, or differ from the first worker, for example in their
            software versions.
        ModelError: the model fails on the first image, or has no gradient. Later exceptions of the model propagate
            unchanged; committed results are kept.

    >>> from pyrobust.attacks import PGD
    >>> from pyrobust.zoo import load_data, load_model
    >>> attack = PGD(load_model("zoo:digits-smooth-0.25"), epsilon=0.1, steps=5)
    >>> run = attack_dataset(attack, load_data("digits"), skip=20)
    >>> len(run), float(run.clean_accuracy()) > float(run.robust_accuracy())
    (20, True)
    >>> bool((run.table["distance"][~run.robust] <= 0.1).all()), tuple(run.examples().shape)
    (True, (20, 1, 8, 8))

    >>> from pyrobust.attacks import FAB
    >>> nearest = attack_dataset(FAB(attack.model, norm="l2", steps=5), load_data("digits"), minimum=True, skip=20)
    >>> float(nearest.robust_accuracy(epsilon=0.0)) == float(nearest.clean_accuracy())
    True
    """
    if not isinstance(attack, AdversarialAttack):
        raise InputTypeError("attack", "an AdversarialAttack", type(attack).__name__)
    if flag("minimum", minimum) and not isinstance(attack, MinimumNormAttack):
        raise InputTypeError("attack", "a MinimumNormAttack with minimum=True, such as FMN", type(attack).__name__)
    flag("keep_examples", keep_examples)
    settings = merge_settings(attack_dataset, settings, keywords)
    images = image_set(data, settings, "warn")
    seed, attributes = attack_settings(attack)
    selection = select(images, settings, seed)
    check_range(images, selection, (attack.clip_min, attack.clip_max), "the attack's clip range")
    step = _grid_step(attack, images, selection)
    if attack.grid == "auto":
        attack = copy.copy(attack)
        attack.grid = step
    folder = None if save_images is None else _check_images(save_images, step, keep_examples, images.shape)
    identify_model(attack.model, settings)  # raises without a name
    sweep = _AttackSweep(
        images=images,
        selection=selection,
        settings=settings,
        attack=attack,
        minimum=minimum,
        keep_examples=keep_examples,
        step=step,
        seed=seed,
        attributes=attributes,
    )
    save = None if folder is None or folder.suffix.lower() == ".npz" else partial(_save_chunk, folder)
    run = run_sweep(sweep, committed=save)
    if folder is not None and len(run):  # PNG files of chunks that were committed before this start
        save_run_images(run, folder)
    return run


@dataclass(frozen=True, kw_only=True)
class _AttackSweep(Sweep):
    attack: AdversarialAttack
    minimum: bool
    keep_examples: bool
    step: Fraction | None
    seed: int | None
    attributes: dict[str, Any]

    @contextlib.contextmanager
    def prepare(self, stored: Mapping[str, Any], device: str | None) -> Iterator[Prepared]:
        """Find the batch size of a new run; inside the context, the attack's runners use the run's batch size."""
        attack, images = self.attack, self.images
        runners = _runners(attack)
        if device is not None:
            for runner in runners:
                runner.to(device)
        # Hashed before the first forward pass, which may change the model's attributes.
        model = identify_model(attack.model, self.settings)
        requested = [runner.given_batch_size for runner in runners]
        x = images.read([0])[0]
        try:
            # A model that does not fit the images or the classes fails here, before a file is created.
            with probing(images.shape), generators_from("", attack.device):
                classes = attack.runner.count_classes(x)
                configured = next((size for size in requested if size), None)
                batch = self.settings.batch_size or stored.get("batch_size") or configured
                batch = batch or attack.runner.batch_size(images.shape, gradients=True)
            check_labels(images, classes, "the model's")
            for runner in runners:
                runner.set_batch_size(batch)
            first = isinstance(attack, AutoAttack) and attack.certify_first
            box = attack.box_of(x)
            specific = {
                "num_classes": classes,
                "attack": attack.name if isinstance(attack, AdaptedAttack) else type(attack).__name__,
                "norm": attack.norm,
                **({"minimum": True} if self.minimum else {"epsilon": attack.epsilon if box is None else 1.0}),
                **({} if box is None else {"box": box.tolist()}),
                "clip": stored_clip(joined(attack.clip_min, attack.clip_max)),
                "settings": self.attributes,
                "seed": self.seed,
                "targeted": False,
                "examples": self.keep_examples,
                **({"certify_first": True} if first else {}),
                **({} if self.step is None else {"grid": str(self.step)}),
            }
            header = network_header(
                Attack.name,
                specific,
                runner=attack.runner,
                model=model,
                images=images,
                selection=self.selection,
                batch=batch,
                stored=stored,
                guarantee="empirical",
            )
            chunk = MinimumChunk if self.minimum else AttackChunk
            step = chunk(attack, header.parameters, beside_proofs=False)
            yield Prepared(header, step, partial(identify, attack.runner, x[0]))
        finally:
            for runner, size in zip(runners, requested, strict=True):
                runner.set_batch_size(size)


def _grid_step(attack: AdversarialAttack, images: LabelledImages, selection: dict[str, Any]) -> Fraction | None:
    """Return the step of the attack's grid; warn if selected images are not on the grid."""
    step = images.grid if attack.grid == "auto" else attack.grid
    if step is None and attack.grid is None:
        return None
    if not isinstance(step, Fraction):
        raise InputError(
            "grid",
            'images on one of the grids that "auto" finds, of 1/255, 1/16 or 1/256',
            hint=f"{images.name} are on none; pass the step, as in 1/255, to move them to its nearest levels",
        )
    levels = Levels(step, attack.clip_min, attack.clip_max)
    # Images are in the clip range, as checked before, so those on the grid are at levels.
    chosen = range(0) if step == images.grid else chosen_indices(selection)
    for begin in range(0, len(chosen), _READ_ROWS):
        x = images.read(chosen[begin : begin + _READ_ROWS])[0]
        moved = levels.images(x)
        if not torch.equal(moved, x):
            logger.warning("%s: %s", images.name, describe_moved(moved, x, step))
            break
    return step


def _check_images(
    path: str | os.PathLike[str], step: Fraction | None, keep_examples: bool, shape: tuple[int, ...]
) -> Path:
    """Return the path; raise InputError unless the attacked images can be saved there."""
    if step != BYTES or not keep_examples:
        got = f"grid {step}" if step != BYTES else "keep_examples=False"
        raise InputError(
            "save_images",
            'an attack with grid="1/255" that keeps its examples',
            got,
            'pass grid="1/255" and keep_examples=True',
        )
    check_image_path(path, shape, "save_images")
    return Path(path)


def _save_chunk(path: Path, run: Run, indices: Sequence[int]) -> None:
    save_run_images(run, path, indices)


def _runners(attack: AdversarialAttack) -> list[Runner]:
    """Return the runners of an attack and of the attacks that it contains; raise unless they share one dtype."""
    members = attack.attacks.values() if isinstance(attack, _ENSEMBLES) else ()
    runners = [attack.runner, *(member.runner for member in members)]
    formats = {str(runner.dtype).removeprefix("torch.") for runner in runners}
    if len(formats) > 1:
        raise InputError("attack", "one dtype for the model", " and ".join(sorted(formats)))
    return runners


def attack_settings(attack: AdversarialAttack) -> tuple[int | None, dict[str, Any]]:
    """Return the seed of an attack (None unless it has exactly one), and a dictionary of its settings by name.

    The settings are all settings that the attack's class declares, and the attributes that a user's class adds. The
    settings of an ensemble's attacks are named "attack.setting". A default that depends on epsilon, such as the step
    size of ``PGD``, is given as a formula. ``draws`` is the number of samples of an ``EOT`` model. Values other than
    numbers, strings, bools and None are hashed by `model_hash`.

    >>> from pyrobust.attacks import FGSM
    >>> attack_settings(FGSM(lambda x: x, seed=3))
    (3, {'loss': 'ce'})
    """
    if isinstance(attack.epsilon, Tensor) and attack.epsilon.dim() < 2:
        got = f"a tensor of {attack.epsilon.numel()}"
        raise InputError("attack", "one epsilon for the run", got, "radii of features have the shape [1, D]")
    settings = _flatten(stored_settings(attack))
    if isinstance(attack, AdaptedAttack):
        settings |= attack.settings()
    if isinstance(attack, PGD) and attack.step_size is None:
        settings["step_size"] = "2.5 epsilon / steps"
    if isinstance(attack.runner.model, EOT):
        settings["draws"] = attack.runner.model.samples
    members = attack.attacks if isinstance(attack, _ENSEMBLES) else {"": attack}
    if isinstance(attack, _ENSEMBLES):
        settings["attacks"] = ", ".join(members)
        for name, member in members.items():
            settings |= {f"{name}.{key}": value for key, value in attack_settings(member)[1].items()}
    seeds = {
        f"{name}.seed": member.seed
        for name, member in members.items()
        if isinstance(member, BatchAttack | AdaptedAttack)
    }
    if len(set(seeds.values())) > 1:
        return None, settings | seeds
    return next(iter(seeds.values()), None), settings


def _flatten(value: Any) -> dict[str, Any]:
    """Return the values in nested containers as one dictionary, with dotted paths such as "attack.steps" as keys."""
    if isinstance(value, dict) and not value:
        return {}
    if isinstance(value, dict | list | tuple) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {f"{name}.{path}".rstrip("."): plain for name, item in items for path, plain in _flatten(item).items()}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return {"": value}
    holder = nn.Module()
    holder.value = value
    return {"": f"sha256 {model_hash(holder)}"}

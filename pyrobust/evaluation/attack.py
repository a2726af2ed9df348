"""Attacks on whole data sets, kept in a run that can be gone on with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from pyrobust.attacks import EOT, PGD, AdversarialAttack, AutoAttack, BatchAttack
from pyrobust.attacks.arguments import batch_on
from pyrobust.checks import WORDS, count, flag
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.arguments import (
    Data,
    check_labels,
    check_range,
    check_selection,
    identify_model,
    image_set,
)
from pyrobust.evaluation.attack_chunk import AttackChunk, generators_from
from pyrobust.evaluation.progress import Report
from pyrobust.evaluation.resume import attack_or_verify_header, probing, stored_parameters, write_run
from pyrobust.runner import Runner
from pyrobust.runs.run import Run
from pyrobust.zoo import model_hash

# Attributes that have parameters of their own, or that the results do not depend on.
_ELSEWHERE = frozenset(
    {"model", "runner", "norm", "_norm", "epsilon", "clip_min", "clip_max", "progress", "callback", "forwards"}
)


def attack_dataset(
    attack: AdversarialAttack,
    data: Data,
    *,
    out: str | os.PathLike[str] | None = None,
    skip: int = 1,
    max_images: int | None = None,
    shard: tuple[int, int] | None = None,
    keep_examples: bool = True,
    batch_size: int | None = None,
    model_name: str | None = None,
    progress: bool | Report = False,
) -> Run:
    """Attacks a data set, untargeted, keeping every result as soon as its chunk, one batch, is done.

    Called again with the same arguments after a crash, a kill or an exception, it goes on where it stopped, and ends
    with the same results as if it had not: random numbers depend on the seed and the data-set index, and chunks have
    fixed boundaries. What a randomised model draws from torch's generators begins anew with every chunk, and so depends
    on the batch size and the shards. The settings that must agree are the attributes of the attack, its own
    attacks' where it is an ``AutoAttack``; its ``callback`` gets rows of the chunk in work.

    An image counts as broken where the model, run on x_adv alone, in a batch of one, does not give its label. Every
    x_adv is checked: its distance is computed in float64, and one outside the ball or the clip range is an error.

    Args:
        attack: with its model, norm, epsilon and seed. Its ``generate(x, y)`` gets x and y on its device, and where it
            takes them, the data-set indices as ``indices=``.
        data: the images, or (x, y) with x float32 [N, C, H, W] in the attack's clip range and y int64 [N].
        out: the file of the run; default: in memory.
        skip: every skip-th image, from the first on; at least 1.
        max_images: at most so many of those; default all.
        shard: (I, K): of those every K-th from the I-th on, I from 1 to K.
        keep_examples: whether the run keeps every x_adv, for ``Run.examples``.
        batch_size: rows a forward pass, and images a chunk; default: the attack's, or that of the run that is gone on
            with, or what fits memory.
        model_name: what the model is called in the run; default its class. A callable that is no module needs one where
            the run is kept in a file.
        progress: True for a bar on standard error, or a function of a `SweepProgress`.

    Returns:
        The run.

    Raises:
        InputError: a value out of range, an epsilon for each image, labels that the model has no class for, images
            outside the clip range, no ``model_name`` where one is needed; an attack that returns another shape, NaN,
            or points outside the ball or the clip range.
        InputTypeError: an argument of another type.
        StoreError: the run cannot be written, is being written by another process, or has other parameters, each named.
        FileFormatError: ``out`` is not a run, or damaged.
        ModelError: the model failed on the first image, or has no gradient. What it raises later passes unchanged; what
            was committed is kept.

    >>> from pyrobust.attacks import PGD
    >>> from pyrobust.zoo import load_data, load_model
    >>> attack = PGD(load_model("zoo:digits-smooth-0.25"), epsilon=0.1, steps=5)
    >>> run = attack_dataset(attack, load_data("digits"), skip=20)
    >>> len(run), float(run.clean_accuracy()) > float(run.robust_accuracy())
    (20, True)
    >>> bool((run.table["distance"][~run.robust] <= 0.1).all()), tuple(run.examples().shape)
    (True, (20, 1, 8, 8))
    """
    if not isinstance(attack, AdversarialAttack):
        raise InputTypeError(f"attack: expected an AdversarialAttack, got {type(attack).__name__}")
    flag("keep_examples", keep_examples)
    images = image_set(data)
    selection = {"images": len(images), **check_selection(skip=skip, max=max_images, shard=shard)}
    check_range(images, selection, (attack.clip_min, attack.clip_max), "the attack's clip range")
    batch_size = None if batch_size is None else count("batch_size", batch_size, WORDS)
    seed, settings = attack_settings(attack)
    # Before the model runs for the first time, which may leave something behind in it.
    identity = identify_model(model_name, attack.model, out)
    stored = {} if out is None else stored_parameters(Path(out))
    runners = _runners(attack)
    given = [runner.given_batch_size for runner in runners]
    shape = tuple(images.x.shape[1:])
    try:
        # A model that does not fit the images or the classes shows before a file is made.
        with probing(shape), generators_from("", attack.device):
            classes = _count_classes(attack.runner, images.x[:1])
            found = next((size for size in given if size), None)
            batch = batch_size or stored.get("batch_size") or found or attack.runner.batch_size(shape, gradients=True)
        check_labels(images, classes, "the model's")
        for runner in runners:
            runner.set_batch_size(batch)
        own = {
            "num_classes": classes,
            "attack": type(attack).__name__,
            "norm": attack.norm,
            "epsilon": attack.epsilon,
            "clip": [attack.clip_min, attack.clip_max],
            "settings": settings,
            "seed": seed,
            "targeted": False,
            "examples": keep_examples,
        }
        header = attack_or_verify_header(
            "attack",
            own,
            runner=attack.runner,
            model=identity,
            images=images,
            selection=selection,
            batch=batch,
            stored=stored,
            guarantee="empirical",
        )
        return write_run(out, header, AttackChunk(attack, images, header.parameters), images, progress)
    finally:
        for runner, size in zip(runners, given, strict=True):
            runner.set_batch_size(size)


def _runners(attack: AdversarialAttack) -> list[Runner]:
    """What the attack runs its model by; all have to see the same number format."""
    parts = attack.attacks.values() if isinstance(attack, AutoAttack) else ()
    runners = [attack.runner, *(part.runner for part in parts)]
    formats = {str(runner.dtype).removeprefix("torch.") for runner in runners}
    if len(formats) > 1:
        raise InputError(f"attack: expected one number format for the model, got {' and '.join(sorted(formats))}")
    return runners


def _count_classes(runner: Runner, x: Tensor) -> int:
    with runner.session():
        return runner.logits(batch_on(x, runner.device_for(x), runner.memory_format).to(runner.dtype)).shape[1]


def attack_settings(attack: AdversarialAttack) -> tuple[int | None, dict[str, Any]]:
    """The seed of an attack, and its other settings: the attributes of the object, by name.

    Of an ``AutoAttack`` also those of its attacks, as "attack.setting"; of this package's attacks only the public ones.
    A default that goes by epsilon, such as the step size of ``PGD``, is a formula; ``draws`` is how often an ``EOT``
    model is drawn in a step.
    Lists, tuples and dictionaries are spread out; values that are no numbers, strings, bool or None are hashed as
    `model_hash` does it.

    Args:
        attack: any attack.

    Returns:
        The seed, None where there is none of this package's, or several; and numbers, strings, bool and None by name.

    Raises:
        InputError: epsilon is not one number.

    >>> from pyrobust.attacks import FGSM
    >>> attack_settings(FGSM(lambda x: x, seed=3))
    (3, {'loss': 'ce'})
    """
    if isinstance(attack.epsilon, Tensor):
        raise InputError(f"attack: expected one epsilon for the run, got a tensor of {len(attack.epsilon)}")
    own = type(attack).__module__.startswith("pyrobust.")
    elsewhere = _ELSEWHERE
    if isinstance(attack, AutoAttack):
        elsewhere = elsewhere | {"attacks", "after_attack", "result"}
    elif isinstance(attack, BatchAttack):
        elsewhere = elsewhere | {"seed"}
    settings = _spread(
        {
            name: value
            for name, value in vars(attack).items()
            if name not in elsewhere and not (own and name.startswith("_"))
        }
    )
    if isinstance(attack, PGD) and attack.step_size is None:
        settings["step_size"] = "2.5 epsilon / steps"
    if isinstance(attack.runner.model, EOT):
        settings["draws"] = attack.runner.model.samples
    parts = attack.attacks if isinstance(attack, AutoAttack) else {"": attack}
    if isinstance(attack, AutoAttack):
        settings["attacks"] = ", ".join(parts)
        for name, part in parts.items():
            settings |= {f"{name}.{key}": value for key, value in attack_settings(part)[1].items()}
    seeds = {f"{name}.seed": part.seed for name, part in parts.items() if isinstance(part, BatchAttack)}
    if len(set(seeds.values())) > 1:
        return None, settings | seeds
    return next(iter(seeds.values()), None), settings


def _spread(value: Any) -> dict[str, Any]:
    """The plain values inside of nested containers, by their path."""
    if isinstance(value, dict) and not value:
        return {}
    if isinstance(value, dict | list | tuple) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {f"{name}.{path}".rstrip("."): plain for name, item in items for path, plain in _spread(item).items()}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return {"": value}
    holder = nn.Module()
    holder.value = value
    return {"": f"sha256 {model_hash(holder)}"}

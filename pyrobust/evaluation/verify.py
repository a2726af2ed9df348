"""Verification of whole data sets by bound propagation, kept in a run that can be gone on with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pyrobust.attacks import PGD, AdversarialAttack
from pyrobust.bounds import BoundedModel
from pyrobust.checks import items, some
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.arguments import (
    Data,
    at_most_words,
    check_labels,
    check_range,
    check_selection,
    identify_model,
    image_set,
)
from pyrobust.evaluation.attack import attack_settings
from pyrobust.evaluation.empirical import checked_epsilon
from pyrobust.evaluation.progress import Report
from pyrobust.evaluation.resume import attack_or_verify_header, probing, stored_parameters, write_run
from pyrobust.evaluation.verify_chunk import VerifyChunk
from pyrobust.runner import Runner
from pyrobust.runs.run import Run
from pyrobust.runs.verdicts import PROOFS

# Images that are bounded together: more at once gain little, and a kill loses at most so many.
_CHUNK = 32


def verify_dataset(
    model: nn.Module,
    data: Data,
    *,
    out: str | os.PathLike[str] | None = None,
    epsilons: float | Sequence[float] | None = None,
    radius: bool = False,
    largest: float = 1.0,
    method: str = "cascade",
    norm: str = "linf",
    clip: tuple[float, float] | None = (0.0, 1.0),
    attack: str | None = None,
    seed: int = 0,
    sound: bool = True,
    semantics: str = "real",
    skip: int = 1,
    max_images: int | None = None,
    shard: tuple[int, int] | None = None,
    keep_examples: bool = True,
    batch_size: int | None = None,
    memory_limit: int | None = None,
    device: torch.device | str | None = None,
    model_name: str | None = None,
    progress: bool | Report = False,
) -> Run:
    """Verifies a data set, keeping every result as soon as its chunk is done.

    Either at given epsilons, where every image is "verified", "falsified" or "unknown" at each of them, or its
    certified radius is searched for. Called again with the same arguments after a crash, a kill or an exception, it
    goes on where it stopped, and ends with the same results as if it had not.

    What the model, run on an image alone, gets wrong is falsified at stage "forward". The methods come next, each for
    what those before left open. With an attack, the images that are left *and those that were verified* are attacked:
    a counterexample falsifies an image at all larger epsilons too, and one of a verified image is a bug, reported as a
    ModelError (or, where the model's own rounding can be the cause and ``semantics`` is "real", as a warning).

    Args:
        model: module of which bounds are known, see ``BoundedModel``; in evaluation mode meanwhile.
        data: the images, or (x, y) with x float32 [N, C, H, W] in the clip range and y int64 [N].
        out: the file of the run; default: in memory.
        epsilons: positive numbers, each once; they are sorted.
        radius: True to search for certified radii instead.
        largest: no larger radius is tried.
        method: "ibp", "crown-ibp" or "crown"; "cascade" is these three in turn. Of radii it is the largest that one of
            them proved. "lipschitz" is the network's Lipschitz constant, with semantics "real" only.
        norm: "linf", "l2" or "l1".
        clip: the range of a valid pixel; None for no limits.
        attack: "pgd" (40 steps), or None. With epsilons only.
        seed: of the attack.
        sound: False for plain floating-point bounds, which prove nothing.
        semantics: "real" or "float32", as of ``BoundedModel.bounds``.
        skip: every skip-th image, from the first on; at least 1.
        max_images: at most so many of those; default all.
        shard: (I, K): of those every K-th from the I-th on, I from 1 to K.
        keep_examples: whether the run keeps the attack's counterexamples, for ``Run.examples``.
        batch_size: images a chunk; default 32, or that of the run that is gone on with.
        memory_limit: bytes that bounds may take, at least; default: a share of what is free.
        device: where the model runs; it is moved there. Bounds are computed there, too.
        model_name: what the model is called in the run; default its class.
        progress: True for a bar on standard error, or a function of a `SweepProgress`.

    Returns:
        The run.

    Raises:
        InputError: a value out of range, labels that the model has no class for, images outside the clip range.
        InputTypeError: an argument of another type; a model that is no module, or not of float32 or float64.
        StoreError: the run cannot be written, is being written by another process, or has other parameters, each named.
        FileFormatError: ``out`` is not a run, or damaged.
        ModelError: the model cannot be bounded, or failed; an attack got through a certificate. What was committed is
            kept.

    >>> from pyrobust.zoo import load_data, load_model
    >>> model, data = load_model("zoo:digits-smooth-0.25"), load_data("digits")
    >>> run = verify_dataset(model, data, epsilons=[0.01, 0.05], attack="pgd", skip=20)
    >>> verdicts = run.verdicts(0.05)["verdict"]
    >>> len(verdicts), bool((verdicts == "verified").sum() <= run.verified_accuracy(0.01).successes)
    (20, True)
    >>> radii = verify_dataset(model, data, radius=True, method="ibp", skip=40).table["radius"]
    >>> bool((radii > 0).any() and (radii < 0.05).all())
    True
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    for name, flag in (("radius", radius), ("sound", sound), ("keep_examples", keep_examples)):
        if not isinstance(flag, bool):
            raise InputTypeError(f"{name}: expected True or False, got {flag!r}")
    if (epsilons is None) != radius:
        raise InputError("epsilons: expected either epsilons or radius=True")
    sizes = None if epsilons is None else _sorted_epsilons(epsilons)
    end = checked_epsilon("largest", largest)
    _check_method(method, norm, semantics, attack)
    if attack is not None and (sizes is None or clip is None):
        raise InputError("attack: expected None without epsilons and a clip range")
    images = image_set(data)
    selection = {"images": len(images), **check_selection(skip=skip, max=max_images, shard=shard)}
    limits = None if clip is None else _clip_range(clip)
    if limits is not None:
        check_range(images, selection, limits, "the clip range")
    batch_size = None if batch_size is None else at_most_words("batch_size", batch_size)
    # Before the model runs for the first time, which may leave something behind in it.
    identity = identify_model(model_name, model, out)
    stored = {} if out is None else stored_parameters(Path(out))
    batch = batch_size or stored.get("batch_size") or _CHUNK
    runner = Runner(model, device=device, batch_size=batch)
    if runner.dtype not in (torch.float32, torch.float64):
        raise InputTypeError(f"model: expected parameters of float32 or float64, got {runner.dtype}")
    shape = tuple(images.x.shape[1:])
    # The mode that the model is in comes back; what is made for inference alone could not be traced.
    with runner.session(gradients=True):
        with probing(shape):
            bounded = BoundedModel(model, images.x[:1].to(runner.device, runner.dtype))
        check_labels(images, bounded.outputs, "the model's")
        attacks: list[AdversarialAttack] = []
        if attack is not None and limits is not None:
            made: dict[str, Any] = {
                "norm": norm,
                "clip_min": limits[0],
                "clip_max": limits[1],
                "seed": seed,
                "batch_size": batch,
            }
            attacks = [PGD(model, size, device=device, **made) for size in sizes or ()]
        own_seed, settings = attack_settings(attacks[0]) if attacks else (None, {})
        own = {
            "num_classes": bounded.outputs,
            "method": method,
            "norm": norm,
            "epsilons": sizes,
            "largest": end if radius else None,
            "clip": limits,
            "sound": sound,
            "semantics": semantics,
            "attack": type(attacks[0]).__name__ if attacks else None,
            "settings": settings,
            "seed": own_seed,
            "examples": keep_examples and bool(attacks),
        }
        header = attack_or_verify_header(
            "verify",
            own,
            runner=runner,
            model=identity,
            images=images,
            selection=selection,
            batch=batch,
            stored=stored,
            guarantee="deterministic" if sound else "none",
        )
        step = VerifyChunk(bounded, runner, images, header.parameters, attacks, memory_limit)
        return write_run(out, header, step, images, progress)


def _sorted_epsilons(epsilons: Any) -> list[float]:
    alone = not isinstance(epsilons, str | Sequence) and not np.ndim(epsilons)
    values = sorted(checked_epsilon("epsilons", one) for one in ([epsilons] if alone else items("epsilons", epsilons)))
    if not values or values[0] <= 0 or len(set(values)) < len(values):
        raise InputError(f"epsilons: expected positive numbers, each once, got {some(values) or 'none'}")
    return values


def _clip_range(clip: Any) -> list[float]:
    ends = clip if isinstance(clip, Sequence) and len(clip) == 2 else [""]
    if not all(isinstance(end, int | float) for end in ends):
        raise InputTypeError(f"clip: expected two numbers or None, got {clip!r}")
    lowest, highest = map(float, ends)
    if not -torch.inf < lowest < highest < torch.inf:
        raise InputError(f"clip: expected finite numbers, the lower first, got {clip!r}")
    return [lowest, highest]


def _check_method(method: str, norm: str, semantics: str, attack: str | None) -> None:
    """Names, before a file is made."""
    known: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "method": (method, ("cascade", *PROOFS)),
        "norm": (norm, ("linf", "l2", "l1")),
        "semantics": (semantics, ("real", "float32")),
        "attack": (attack, ("pgd", None)),
    }
    for name, (value, words) in known.items():
        if value not in words:
            raise InputError(f"{name}: expected one of {', '.join(map(str, words))}, got {value!r}")
    if method == "lipschitz" and semantics != "real":
        raise InputError(f'semantics: expected "real" with method "lipschitz", got {semantics!r}')

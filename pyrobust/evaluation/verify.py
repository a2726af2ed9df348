"""Verification of whole data sets by bound propagation, stored in a run that can be resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust.attacks import PGD, AdversarialAttack
from pyrobust.bounds import BoundedModel, BoundOptions
from pyrobust.bounds.options import CASCADE, LIPSCHITZ, merge_options
from pyrobust.bounds.options import KEYWORDS as BOUND_KEYWORDS
from pyrobust.checks import box_radii, first_values, flag, non_negative, non_negatives, shape_text
from pyrobust.clip import stored_clip
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.arguments import (
    Data,
    ball_of,
    check_labels,
    check_range,
    identify_model,
    image_set,
    select,
)
from pyrobust.evaluation.attack import attack_settings
from pyrobust.evaluation.identity import identify
from pyrobust.evaluation.resume import run_sweep
from pyrobust.evaluation.sweep import Prepared, Sweep, network_header, probing
from pyrobust.evaluation.verify_chunk import VerifyChunk
from pyrobust.keywords import reject_unknown
from pyrobust.runner import Runner
from pyrobust.runs.kinds.verify import Verify
from pyrobust.runs.run import Run
from pyrobust.runs.settings import KEYWORDS as SWEEP_KEYWORDS
from pyrobust.runs.settings import SweepSettings, merge_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyrobust.bounds.options import BoundKeywords
    from pyrobust.runs.settings import SweepKeywords

    class _VerifyKeywords(BoundKeywords, SweepKeywords, total=False): ...


# Images bounded together: larger chunks gain little, and a kill loses at most one chunk.
_CHUNK = 32
#: Largest radius that a search tries by default.
LARGEST = 1.0


def verify_dataset(
    model: nn.Module,
    data: Data,
    *,
    epsilons: float | Sequence[float] | None = None,
    box: Any = None,
    radius: bool = False,
    largest: float = LARGEST,
    attack: str | None = None,
    seed: int = 0,
    keep_examples: bool = True,
    device: torch.device | str | None = None,
    options: BoundOptions | None = None,
    settings: SweepSettings | None = None,
    **keywords: Unpack[_VerifyKeywords],
) -> Run:
    """Verify a data set by bound propagation, and store each finished chunk.

    Each image gets a verdict ("verified", "falsified" or "unknown") at each of the given epsilons or, with ``radius``,
    a certified radius. After a crash, a kill or an exception, a second call with the same arguments resumes the sweep;
    the results are the same as without the interruption.

    The model first classifies each image in a batch of one. An image that it misclassifies is falsified, with "forward"
    as its stage: the step that decided. Then the methods of the bounds run in turn, each on the images that are still
    undecided. An attack runs on the undecided images *and on the verified ones*. A counterexample falsifies an image at
    all larger epsilons too. A counterexample to a verified image raises a ModelError, since it usually shows a bug. If
    ``semantics`` is "real" and the label's logit is below the largest other logit by at most √ε times the largest
    |logit|, where ε is the machine epsilon of the model's dtype, a warning is logged instead. Larger rounding errors,
    such as those of large intermediate values, raise the error, too.

    Args:
        model: a module that can be bounded, see ``BoundedModel``; the sweep runs it in evaluation mode.
        data: images in the clip range, in a fixed order. Pass an ``ImageSet``; a pair (x, y) with x float32 [N, C, H,
            W] or [N, D] and y int64 [N]; or a ``DataLoader``, ``Dataset`` or iterable that yields pairs (x, y), see
            `pyrobust.zoo.as_image_set`.
        epsilons: perturbation radii > 0, without duplicates, in any order.
        box: for linf, one radius for each input element (for example, for each feature). The radii are finite and at
            least 0, and their shape broadcasts to an example, such as [1, D]. A radius of 0 fixes the element. With a
            box, epsilons and certified radii are multiples of it: at epsilon e, an element may change by at most e
            times its radius in the box. The default of ``epsilons`` is then 1. A box is not allowed for method
            "lipschitz" with ``radius``.
        radius: True to search for certified radii instead of giving verdicts at epsilons.
        largest: largest radius to try.
        attack: "pgd" (40 steps) to look for counterexamples, or None. An attack is possible only with epsilons.
        seed: random seed of the attack.
        keep_examples: whether the run stores the attack's counterexamples, for ``Run.examples``.
        device: device of the forward pass and the bounds; the model is moved there. Default: the model's device.
        options: settings of the bounds; default: ``BoundOptions(method="cascade", clip=(0.0, 1.0))``. If several
            methods prove certified radii, the run stores the largest.
        settings: settings of the sweep. Default: ``SweepSettings()``.
        keywords: fields of ``BoundOptions`` (except ``iterations`` and ``time_limit``) and of ``SweepSettings``, such
            as ``norm="l2", method="crown", out="run.db"``; they override ``options`` and ``settings``.

    Returns:
        The run.

    Raises:
        InputError: a value out of range, ``iterations`` or ``time_limit`` other than the default, labels that are not
            classes, or images outside the clip range.
        InputTypeError: an argument has the wrong type, a keyword is unknown, the model is not a module, or the model is
            neither in float32 nor in float64.
        StoreError: the run cannot be written, is being written by another process, or was started with other
            parameters; the message lists the differences.
        FileFormatError: ``out`` is damaged, or not a run.
        WorkerError: workers cannot be started, differ from the first worker in the model, the data or the software, or
            die repeatedly.
        ModelError: the model cannot be bounded or fails, or an attack breaks a certificate. Committed results are kept.

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
    named: dict[str, Any] = dict(keywords)
    reject_unknown(verify_dataset, named, (*BOUND_KEYWORDS, *SWEEP_KEYWORDS))
    of_sweep = {name: named.pop(name) for name in SWEEP_KEYWORDS if name in named}
    options = merge_options(verify_dataset, options, named, BoundOptions(clip=(0.0, 1.0)))
    if (options.iterations, options.time_limit) != (BoundOptions().iterations, None):
        raise InputError("iterations, time_limit", "none for a run, whose bounds can be made again")
    settings = merge_settings(verify_dataset, settings, of_sweep)
    if not isinstance(model, nn.Module):
        raise InputTypeError("model", "a torch.nn.Module", type(model).__name__)
    flag("radius", radius)
    flag("keep_examples", keep_examples)
    if box is not None and epsilons is None and not radius:
        epsilons = 1.0
    check_question(epsilons, radius, attack)
    sizes = None if epsilons is None else sorted_epsilons(epsilons)
    largest_radius = non_negative("largest", largest)
    limits: Any = options.clip
    images = image_set(data, settings)
    selection = select(images, settings, seed)
    if limits is not None:
        check_range(images, selection, limits, "the clip range")
    elements = box_radii(box, options.norm, images.shape)
    if elements is not None and radius and options.method == LIPSCHITZ:
        raise InputError("box", 'none in a search for radii by method "lipschitz"', "one", "use cascade")
    identify_model(model, settings)  # raises without a name
    sweep = _VerifySweep(
        images=images,
        selection=selection,
        settings=settings,
        model=model,
        epsilons=sizes,
        box=elements,
        largest=largest_radius if radius else None,
        clip=limits,
        attacks=attack is not None,
        seed=seed,
        keep_examples=keep_examples,
        device=None if device is None else str(device),
        options=options,
    )
    return run_sweep(sweep)


def check_question(epsilons: object, radius: bool, attack: object) -> None:
    """Raise InputError for arguments of a verification that exclude each other.

    >>> check_question([0.1], True, None)
    Traceback (most recent call last):
    pyrobust.errors.InputError: epsilons: expected either epsilons or radius, got both
    """
    if (epsilons is None) != radius:
        raise InputError("epsilons", "either epsilons or radius", "both" if radius else "neither")
    if attack not in (None, "pgd"):
        raise InputError("attack", "pgd or None", repr(attack))
    if attack is not None and radius:
        raise InputError("attack", "none without epsilons", attack)


@dataclass(frozen=True, kw_only=True)
class _VerifySweep(Sweep):
    model: nn.Module
    epsilons: list[float] | None
    box: Tensor | None
    largest: float | None
    clip: Any
    attacks: bool
    seed: int
    keep_examples: bool
    device: str | None
    options: BoundOptions

    @contextlib.contextmanager
    def prepare(self, stored: Mapping[str, Any], device: str | None) -> Iterator[Prepared]:
        """Trace the network on the device, and make the attacks; yield the sweep, ready to compute chunks."""
        model, images, options, device = self.model, self.images, self.options, device or self.device
        # Identified before its first forward pass, which may change its buffers.
        identity = identify_model(model, self.settings)
        batch = self.settings.batch_size or stored.get("batch_size") or _CHUNK
        runner = Runner(model, device=device, batch_size=batch)
        if runner.dtype not in (torch.float32, torch.float64):
            raise InputTypeError("model", "parameters of float32 or float64", runner.dtype)
        x = images.read([0])[0]
        # The session restores the model's mode; with gradients, since inference tensors could not be traced.
        with runner.session(gradients=True):
            with probing(images.shape):
                bounded = BoundedModel(model, x.to(runner.device, runner.dtype))
            check_labels(images, bounded.outputs, "the model's")
            attacks: list[AdversarialAttack] = []
            if self.attacks:
                settings_of_attack: dict[str, Any] = {
                    "norm": options.norm,
                    "clip": self.clip,
                    "seed": self.seed,
                    "batch_size": batch,
                }
                sizes = [ball_of(self.box, size) for size in self.epsilons or ()]
                attacks = [PGD(model, size, device=device, **settings_of_attack) for size in sizes]
            own_seed, settings = attack_settings(attacks[0]) if attacks else (None, {})
            specific = {
                "num_classes": bounded.outputs,
                "method": options.method or CASCADE,
                "norm": options.norm,
                "epsilons": self.epsilons,
                **({} if self.box is None else {"box": self.box.tolist()}),
                "largest": self.largest,
                "clip": stored_clip(self.clip),
                "sound": options.sound,
                "semantics": options.semantics,
                "attack": type(attacks[0]).__name__ if attacks else None,
                "settings": settings,
                "seed": own_seed,
                "examples": self.keep_examples and bool(attacks),
            }
            header = network_header(
                Verify.name,
                specific,
                runner=runner,
                model=identity,
                images=images,
                selection=self.selection,
                batch=batch,
                stored=stored,
                guarantee="deterministic" if options.sound else "none",
            )
            step = VerifyChunk(bounded, runner, header.parameters, attacks, options)
            yield Prepared(header, step, partial(identify, runner, x[0]))


def sorted_epsilons(epsilons: Any) -> list[float]:
    """Check one or several perturbation radii, which must be > 0 and distinct; return them in increasing order."""
    if np.ndim(epsilons) > 1:
        shape = shape_text(np.shape(epsilons))
        raise InputError("epsilons", "numbers", f"shape {shape}", "pass radii of features as box=")
    single = not isinstance(epsilons, str | Sequence) and not np.ndim(epsilons)
    values = sorted(non_negatives("epsilons", [epsilons] if single else epsilons))
    if not values or values[0] <= 0 or len(set(values)) < len(values):
        raise InputError("epsilons", "positive numbers, each once", first_values(values) or "none")
    return values

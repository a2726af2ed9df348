"""Bound the distance to misclassification of every example of a data set from both sides, as a resumable sweep."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrobust.attacks import AdversarialAttack, AutoAttack, MinimumNormEnsemble
from pyrobust.attacks.certified_first import other_arithmetic
from pyrobust.attacks.engine.elementwise import Elementwise
from pyrobust.attacks.engine.norms import NORMS
from pyrobust.bounds import BoundedModel, BoundOptions
from pyrobust.bounds.deployed_arithmetic import check_covered, other_convolutions
from pyrobust.bounds.options import CASCADE, LIPSCHITZ
from pyrobust.checks import (
    Numbers,
    as_tensor,
    box_radii,
    clip_range,
    flag,
    float_tensor,
    integer,
    kind,
    norm_name,
    probability,
    shown,
)
from pyrobust.clip import ClipRange, checked_clip, stored_clip
from pyrobust.errors import InputError, InputTypeError, ModelError
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
from pyrobust.evaluation.certify import smoothed_sweep
from pyrobust.evaluation.identity import identify
from pyrobust.evaluation.resume import run_sweep
from pyrobust.evaluation.sandwich.chunk import SandwichChunk
from pyrobust.evaluation.sandwich.result import Sandwich
from pyrobust.evaluation.sandwich.smoothed_attack import SmoothedAttack
from pyrobust.evaluation.sandwich.smoothed_chunk import SmoothedSandwichChunk
from pyrobust.evaluation.sweep import Prepared, Sweep, network_header, probing
from pyrobust.evaluation.verify import sorted_epsilons
from pyrobust.runner import evaluation_mode
from pyrobust.runs.kinds.sandwich import Sandwich as SandwichRun
from pyrobust.runs.settings import SweepSettings, merge_settings
from pyrobust.scale import warn_of_wide_ball
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.smoothing.checks import samples

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyrobust.runs.settings import SweepKeywords

# Images attacked and bounded together; a kill loses at most one chunk.
_CHUNK = 64

#: Arguments for a base classifier only, and those for a smoothed one only, with their defaults.
BASE: dict[str, Any] = {
    "norm": "linf",
    "epsilons": None,
    "box": None,
    "semantics": "float32",
    "method": CASCADE,
    "seed": 0,
}
SMOOTHED: dict[str, Any] = {
    "n0": 100,
    "n": 10_000,
    "alpha": 0.001,
    "n_attack": 10_000,
    "alpha_attack": 0.001,
    "steps": 50,
    "draws": 32,
}


def sandwich(classifier: nn.Module | RandomizedSmoothing, x: Numbers, y: Numbers, **options: Any) -> Sandwich:
    """Bound the distance to misclassification of each example from both sides, in memory.

    Args:
        classifier: the model, or the smoothed classifier; see ``sandwich_dataset``.
        x: [N, C, H, W], float32, in the clip range.
        y: [N], int64, the labels.
        options: other arguments of ``sandwich_dataset``.

    Returns:
        Sandwich.

    Raises:
        InputError, InputTypeError, ModelError: as for ``sandwich_dataset``.

    >>> from pyrobust.zoo import load_data, load_model
    >>> data = load_data("digits")
    >>> both = sandwich(load_model("zoo:digits-ibp-0.10"), data.x[:2], data.y[:2])
    >>> bool((both.lower <= both.upper).all()), both.crossings
    (True, ())
    """
    if as_tensor(x) is None:
        float_tensor("x", x, "sandwich_dataset")  # raises
    return sandwich_dataset(classifier, (x, y), **options)


def sandwich_dataset(
    classifier: nn.Module | RandomizedSmoothing,
    data: Data,
    *,
    norm: str | None = None,
    epsilons: float | Sequence[float] | None = None,
    box: Any = None,
    semantics: str | None = None,
    method: str | None = None,
    n0: int | None = None,
    n: int | None = None,
    alpha: float | None = None,
    n_attack: int | None = None,
    alpha_attack: float | None = None,
    steps: int | None = None,
    draws: int | None = None,
    clip: ClipRange | None = (0.0, 1.0),
    seed: int | None = None,
    keep_examples: bool = True,
    device: torch.device | str | None = None,
    settings: SweepSettings | None = None,
    **keywords: Unpack[SweepKeywords],
) -> Sandwich:
    """Bound the distance to misclassification of each example from both sides, and store each finished chunk.

    For a base classifier, the lower bound is the largest radius that a bound-propagation method proves. The upper bound
    is the distance of the nearest adversarial example found. The attack is ``MinimumNormEnsemble``. With ``epsilons``,
    AutoAttack also runs at each epsilon, on the examples whose lower bound is below this epsilon and whose upper bound
    is above it. With the default semantics "float32", both bounds are for the same classifier: the certificate covers
    the floating-point forward pass that classifies the adversarial example. With "real", the certificate is for exact
    arithmetic, the attack for the model as it runs.

    For a smoothed classifier, the lower bound is the certified radius, which holds with probability 1 - alpha for each
    example. The attack follows gradients of averaged class probabilities; the average is over noise samples that only
    the attack uses (Salman et al., 2019). The attack succeeds only if a statistical test on ``n_attack`` other noise
    samples rejects the label. This test runs once for each example, and is wrong with probability at most
    ``alpha_attack``.

    The true distance is at least the certified radius, and at most the distance of the adversarial example. If the
    lower bound of an example is above 0 and at least its upper bound, and the misclassification is certain, one of the
    two bounds must be false. Such an example is called a crossing (``Sandwich.crossings``). With semantics "real",
    rounding alone can misclassify an adversarial example inside the certified distance; such an example is no crossing.
    Certified radii are searched up to 1.05 times the distance of the adversarial example, so that false certificates
    can be detected.

    A second call with the same arguments, after a crash, a kill or an exception, resumes the sweep.

    Args:
        classifier: a module that can be bounded, see ``BoundedModel``; or a ``RandomizedSmoothing``.
        data: images in the clip range, in a fixed order. Pass an ``ImageSet``; a pair (x, y) with x float32 [N, C, H,
            W] or [N, D] and y int64 [N]; or a ``DataLoader``, ``Dataset`` or iterable that yields pairs (x, y), see
            `pyrobust.zoo.as_image_set`.
        norm: "linf" (default), "l2" or "l1"; a smoothed classifier has its own norm.
        epsilons: radii > 0 at which AutoAttack runs. Default: none. ``epsilons``, ``box`` and ``semantics`` are for a
            base classifier.
        box: for linf, one radius for each input element (for example, for each feature). The radii are finite and at
            least 0, and their shape broadcasts to an example, such as [1, D]. A radius of 0 fixes the element. With a
            box, all other radii and all distances are multiples of it: at radius r, an element may change by at most r
            times its radius in the box. Default: none.
        semantics: "float32" or "real", see ``BoundOptions``; default "float32". With "real", the method "cascade" also
            tries Lipschitz bounds.
        method: "cascade" (default), "ibp", "crown-ibp", "crown", "alpha-crown" or "lipschitz".
        n0: noise samples that select the class to certify, default 100. The arguments from ``n0`` to ``draws`` are for
            a smoothed classifier.
        n: noise samples that bound the probability of that class, default 10,000.
        alpha: probability that one certificate is wrong, in (0, 1), default 0.001.
        n_attack: noise samples of the test that decides whether an attack succeeds, default 10,000.
        alpha_attack: probability that one such test is wrong, in (0, 1), default 0.001.
        steps: steps of the attack, default 50.
        draws: noise samples over which the attack's gradients are averaged, default 32.
        clip: range of valid values, for both bounds; a base classifier also takes a range for each element, as tensors
            that broadcast to an example. None for no limit. If there is no limit and no adversarial example is found,
            radii are searched up to the diameter of the range that the data span.
        seed: random seed of the attacks, default 0; a smoothed classifier has its own seed.
        keep_examples: store every x_adv, for ``Run.examples``.
        device: device of a base classifier; the model is moved there. Default: the model's device.
        settings: settings of the sweep. Default: ``SweepSettings()``.
        keywords: fields of ``SweepSettings``, such as ``out="run.db", max_images=100``; they override ``settings``.

    Returns:
        Sandwich.

    Raises:
        InputError: a value is out of range, an argument applies only to the other kind of classifier (base or
            smoothed), labels are not classes, or images lie outside the clip range. Also raised for semantics "float32"
            if the settings allow other arithmetic, such as TF32.
        InputTypeError: an argument has the wrong type, the model is not a module, or the model is neither in float32
            nor in float64.
        StoreError: the run cannot be written, is being written by another process, or was started with other
            parameters; the message lists the differences.
        FileFormatError: ``out`` is damaged, or not a run.
        WorkerError: workers cannot be started, differ from the first worker in the model, the data or the software, or
            die repeatedly.
        ModelError: the model cannot be bounded, or fails on the first image. Later exceptions of the model propagate
            unchanged; committed results are kept.

    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25)
    >>> both = sandwich_dataset(smoother, load_data("digits"), n=1000, n_attack=1000, max_images=4)
    >>> bool((both.lower <= both.upper).all()), both.run.header.guarantee
    (True, 'grid')
    """
    smoothed = isinstance(classifier, RandomizedSmoothing)
    specific = {"norm": norm, "epsilons": epsilons, "box": box, "semantics": semantics, "method": method, "seed": seed}
    other = {
        "n0": n0,
        "n": n,
        "alpha": alpha,
        "n_attack": n_attack,
        "alpha_attack": alpha_attack,
        "steps": steps,
        "draws": draws,
    }
    for name, value in (specific | {"device": device} if smoothed else other).items():
        if value is not None:
            what = "a smoothed classifier, which has its own" if smoothed else "a base classifier; wrap it in one"
            raise InputError(name, f"none for {what}", shown(value))
    flag("keep_examples", keep_examples)
    limits = None if clip is None else clip_range("clip", clip) if smoothed else checked_clip(clip)
    settings = merge_settings(sandwich_dataset, settings, keywords)
    chosen = (SMOOTHED if smoothed else BASE) | {
        name: value for name, value in (other if smoothed else specific).items() if value is not None
    }
    if isinstance(classifier, RandomizedSmoothing):
        sweep = _smoothed_sweep(classifier, data, limits, settings, keep_examples, **chosen)
    else:
        sweep = _base_sweep(classifier, data, limits, settings, keep_examples, device=device, **chosen)
    return Sandwich(run_sweep(sweep))


def _base_sweep(
    model: nn.Module,
    data: Data,
    clip: tuple[Any, Any] | None,
    settings: SweepSettings,
    keep_examples: bool,
    *,
    norm: str,
    epsilons: float | Sequence[float] | None,
    box: Any,
    semantics: str,
    method: str,
    seed: int,
    device: torch.device | str | None,
) -> Sweep:
    if not isinstance(model, nn.Module):
        raise InputTypeError("classifier", "a torch.nn.Module or a RandomizedSmoothing", kind(model))
    sizes = [] if epsilons is None else sorted_epsilons(epsilons)
    options = BoundOptions(norm=norm_name("norm", norm), method=method, clip=clip, semantics=semantics)
    images = image_set(data, settings)
    selection = select(images, settings, seed)
    if clip is not None:
        check_range(images, selection, clip, "the clip range")
    elements = box_radii(box, options.norm, images.shape)
    if elements is not None and options.method == LIPSCHITZ:
        raise InputError("box", 'none with method "lipschitz"', "one", "use cascade")
    one_range = clip is None or not any(map(np.ndim, clip))
    if sizes and len(images) and elements is None and one_range:
        warn_of_wide_ball(sizes, options.norm, clip, images.read([0])[0][0].numel(), "epsilons")
    identify_model(model, settings)  # raises without a name
    return _SandwichSweep(
        images=images,
        selection=selection,
        settings=settings,
        model=model,
        options=options,
        clip=clip,
        epsilons=sizes,
        box=elements,
        seed=seed,
        keep_examples=keep_examples,
        device=None if device is None else str(device),
    )


@dataclass(frozen=True, kw_only=True)
class _SandwichSweep(Sweep):
    model: nn.Module
    options: BoundOptions
    clip: tuple[Any, Any] | None
    epsilons: list[float]
    box: Tensor | None
    seed: int
    keep_examples: bool
    device: str | None

    @contextlib.contextmanager
    def prepare(self, stored: Mapping[str, Any], device: str | None) -> Iterator[Prepared]:
        """Trace the network on the device, and make the attacks; yield the sweep, ready to compute chunks."""
        model, images, options, sizes = self.model, self.images, self.options, self.epsilons
        norm, clip = options.norm, self.clip
        # Identified before its first forward pass, which may change its buffers.
        identity = identify_model(model, self.settings)
        batch = self.settings.batch_size or stored.get("batch_size") or _CHUNK
        arguments: dict[str, Any] = {
            "norm": norm,
            "clip": clip,
            "seed": self.seed,
            "batch_size": batch,
            "device": device or self.device,
        }
        with evaluation_mode(model):
            attack = MinimumNormEnsemble(model, ball_of(self.box, 1.0), **arguments)
            balls = [ball_of(self.box, size) for size in sizes]
            confirming: list[AdversarialAttack] = [AutoAttack(model, ball, **arguments) for ball in balls]
        runner = attack.runner
        if runner.dtype not in (torch.float32, torch.float64):
            raise InputTypeError("classifier", "parameters of float32 or float64", runner.dtype)
        x = images.read([0])[0]
        with runner.session(gradients=True):
            with probing(images.shape):
                first = x.to(runner.device, runner.dtype)
                bounded = BoundedModel(model, first)
            reason = other_arithmetic(runner, runner.dtype, norm) or other_convolutions(bounded.output, runner.device)
            check_covered(options.semantics, reason)
            check_labels(images, bounded.outputs, "the model's")
            methods = _methods(bounded, options, first, has_box=self.box is not None)
            own_seed, settings = attack_settings(attack)
            if confirming:
                settings |= {f"AutoAttack.{name}": value for name, value in attack_settings(confirming[0])[1].items()}
            specific = {
                "num_classes": bounded.outputs,
                "method": options.method,
                "norm": norm,
                "epsilons": sizes or None,
                **({} if self.box is None else {"box": self.box.tolist()}),
                "clip": stored_clip(clip),
                "semantics": options.semantics,
                "attack": type(attack).__name__,
                "settings": settings,
                "seed": own_seed,
                "examples": self.keep_examples,
            }
            header = network_header(
                SandwichRun.name,
                specific,
                runner=runner,
                model=identity,
                images=images,
                selection=self.selection,
                batch=batch,
                stored=stored,
                guarantee="deterministic",
            )
            low, high = images.extremes if clip is None else clip
            ball, width = NORMS[norm], high - low if isinstance(high, float) and isinstance(low, float) else 0.0
            if self.box is not None or not width:
                limits = (torch.tensor(limit, dtype=torch.float64).expand(x.shape[1:]) for limit in (low, high))
                ball = Elementwise(ball, self.box, *limits)
            diameter = ball.diameter(x[0].numel(), width)
            step = SandwichChunk(
                bounded,
                runner,
                header.parameters,
                attack,
                confirming=confirming,
                options=options,
                methods=methods,
                farthest=diameter,
            )
            yield Prepared(header, step, partial(identify, runner, x[0]))


def _methods(bounded: BoundedModel, options: BoundOptions, x: Tensor, *, has_box: bool) -> tuple[str, ...]:
    """Return the methods of the lower bound; under "real", the cascade adds Lipschitz bounds if the model has any."""
    if options.method != CASCADE or options.semantics != "real" or has_box:
        return options.methods()
    try:
        bounded.margins(
            x[:0], torch.empty(0, dtype=torch.int64), 0.0, method=LIPSCHITZ, norm=options.norm, clip=options.clip
        )
    except (InputError, ModelError):
        return options.methods()
    return (LIPSCHITZ, *options.methods())


def _smoothed_sweep(
    smoother: RandomizedSmoothing,
    data: Data,
    clip: tuple[float, float] | None,
    settings: SweepSettings,
    keep_examples: bool,
    *,
    n0: int,
    n: int,
    alpha: float,
    n_attack: int,
    alpha_attack: float,
    steps: int,
    draws: int,
) -> Sweep:
    images = image_set(data, settings)
    smoother = smoother.on_grid_of(images)
    check_labels(images, smoother.num_classes, "the smoother's")
    if clip is not None:
        check_range(images, select(images, settings, smoother.seed), clip, "the clip range")
    specific: dict[str, Any] = {
        "n0": samples("n0", n0),
        "n": samples("n", n),
        "alpha": probability("alpha", alpha),
        "n_attack": samples("n_attack", n_attack),
        "alpha_attack": probability("alpha_attack", alpha_attack),
        "clip": stored_clip(clip),
        "attack": SmoothedAttack.__name__,
        "settings": {"steps": integer("steps", steps, 1), "draws": integer("draws", draws, 1)},
        "examples": keep_examples,
        "shape": list(images.shape),
        "example_dtype": "float32",
    }
    return smoothed_sweep(
        SandwichRun.name, SmoothedSandwichChunk, smoother, images, specific, settings, least_chunk=_CHUNK
    )

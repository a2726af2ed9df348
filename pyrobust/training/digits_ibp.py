"""Recipe of the bundled certified net: the digits convnet trained with IBP or CROWN-IBP."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from pyrobust.bounds import BoundedModel, DifferentiableBounds
from pyrobust.checks import probability
from pyrobust.errors import InputError
from pyrobust.training.digits_common import Trained, check_seed_and_epochs, single_thread_with_gradients, warp
from pyrobust.training.losses import crown_ibp_loss, ibp_loss, ramp
from pyrobust.zoo import ImageSet, digits_convnet, load_digits

#: Training methods of the recipe.
METHODS = ("ibp", "crown-ibp")

# docs/decisions/ibp-training.md lists the alternatives that were tried.
_BATCH = 128
_PEAK_RATE = 1e-2
_WARP = 0.05
_KAPPA = 0.5
# Begin and end of the ramps, as shares of all steps: epsilon grows from 0, and kappa and beta fall from 1.
_RAMP = (0.05, 0.3)
_MAX_GRADIENT_NORM = 5.0
_CLIP = (0.0, 1.0)


@dataclass(frozen=True)
class CertifiedTrainResult(Trained):
    """A trained net with its clean and certified accuracy on the test split of the digits.

    Args:
        model: the net, in eval mode.
        epsilon: radius of the l∞ balls, for pixels in [0, 1].
        method: training method, "ibp" or "crown-ibp".
        seed: random seed of initial weights, image order and warps.
        epochs: passes over the train split.
        clean_accuracy: share of the test images that are classified correctly, in [0, 1].
        certified_accuracy: share of the test images that are proved to be classified correctly even if every pixel
            changes by up to epsilon within [0, 1]. The proofs are sound (see ``BoundedModel.certify``). They use IBP,
            and CROWN for the images that IBP does not prove.
        seconds: training time.
    """

    model: nn.Module = field(repr=False)
    epsilon: float
    method: str
    seed: int
    epochs: int
    clean_accuracy: float
    certified_accuracy: float
    seconds: float


def train_digits_ibp(
    epsilon: float = 0.1,
    *,
    method: str = "ibp",
    seed: int = 0,
    epochs: int = 200,
    progress: Callable[[int, int, float], None] | None = None,
) -> CertifiedTrainResult:
    """Train the digits net for certification in l∞ balls (Gowal et al., 2018; Zhang et al., 2020).

    In every epoch, each image of the train split is warped by a random affine map close to the identity. It is then
    used in one Adam step on ``ibp_loss`` or ``crown_ibp_loss``. The learning rate rises and falls once. While epsilon
    grows, kappa falls, and with CROWN-IBP beta falls as well. Afterwards, these parameters stay constant. The same seed
    gives the same weights on the same machine with the same version of torch. Global random states are not touched.

    Args:
        epsilon: radius of the balls, above 0 and below 1, for pixels in [0, 1].
        method: "ibp" or "crown-ibp".
        seed: random seed in [0, 2**63).
        epochs: passes over the train split, at least 1. 200 passes take less than a minute with "ibp", and less than
            two with "crown-ibp".
        progress: called after every epoch with its number (from 1), the number of epochs and the mean loss.

    Returns:
        The net with its clean and certified accuracy on the test split.

    Raises:
        InputError: the method is unknown, or a number is out of range.

    >>> result = train_digits_ibp(0.02, epochs=2)
    >>> result.epochs, result.clean_accuracy >= result.certified_accuracy > 0.1
    (2, True)
    """
    epsilon = probability("train_digits_ibp: epsilon", epsilon)
    if method not in METHODS:
        raise InputError("train_digits_ibp: method", f"one of {', '.join(METHODS)}", repr(method))
    check_seed_and_epochs("train_digits_ibp", seed, epochs)
    start = time.perf_counter()
    with single_thread_with_gradients():
        net = _fit(epsilon, method, seed, epochs, progress)
    seconds = time.perf_counter() - start
    clean, certified = accuracies(net, load_digits("test"), epsilon)
    return CertifiedTrainResult(
        net, epsilon, method, seed, epochs, clean_accuracy=clean, certified_accuracy=certified, seconds=seconds
    )


def _fit(
    epsilon: float, method: str, seed: int, epochs: int, progress: Callable[[int, int, float], None] | None
) -> nn.Module:
    data = load_digits("train")
    generator = torch.Generator().manual_seed(seed)
    net = digits_convnet(seed).eval()  # the net behaves the same in train and eval mode
    bounds = DifferentiableBounds(net, data.x[:1])
    steps = epochs * math.ceil(len(data) / _BATCH)
    begin, end = (share * steps for share in _RAMP)
    optimizer = torch.optim.Adam(net.parameters(), lr=_PEAK_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_RATE, total_steps=steps, pct_start=0.2)
    step = 0
    for epoch in range(epochs):
        x = warp(data.x, _WARP, generator).clamp(*_CLIP)
        total = 0.0
        for rows in torch.split(torch.randperm(len(data), generator=generator), _BATCH):
            radius = ramp(step, begin, end, 0.0, epsilon)
            kappa = ramp(step, begin, end, 1.0, _KAPPA)
            if method == "ibp":
                loss = ibp_loss(bounds, x[rows], data.y[rows], radius, kappa=kappa, clip=_CLIP)
            else:
                beta = ramp(step, begin, end, 1.0, 0.0)
                loss = crown_ibp_loss(bounds, x[rows], data.y[rows], radius, kappa=kappa, beta=beta, clip=_CLIP)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), _MAX_GRADIENT_NORM)
            optimizer.step()
            schedule.step()
            step += 1
            total += float(loss.detach()) * len(rows)
        if progress is not None:
            progress(epoch + 1, epochs, total / len(data))
    return net


def accuracies(net: nn.Module, data: ImageSet, epsilon: float) -> tuple[float, float]:
    """Return a net's clean accuracy, in its current mode, and certified one, for l∞ balls of radius epsilon in [0, 1].

    >>> from pyrobust.zoo import load_model
    >>> clean, certified = accuracies(load_model("zoo:digits-smooth-0.25"), load_digits("test"), 0.01)
    >>> clean > certified > 0.5
    True
    """
    with torch.inference_mode():
        clean = float((net(data.x).argmax(1) == data.y).double().mean())
    bounded = BoundedModel(net, data.x[:1])
    proved = bounded.certify(data.x, data.y, epsilon, method="ibp", clip=_CLIP)
    unproved = ~proved
    if bool(unproved.any()):
        proved[unproved] = bounded.certify(data.x[unproved], data.y[unproved], epsilon, method="crown", clip=_CLIP)
    return clean, float(proved.double().mean())

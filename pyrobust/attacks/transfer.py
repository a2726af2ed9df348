"""Transfer attacks: gradient steps on surrogate models, evaluated on the attacked model."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pyrobust.checks import (
    NORMS,
    count,
    flag,
    integer,
    items,
    kind,
    non_negative,
    positive,
    probability,
    shape_text,
    share,
)
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.ops.logits import LogitLoss
from pyrobust.runner import Classifier, Runner, logits_of

from .engine.batches import BatchAttack
from .engine.norms import per_example
from .engine.queries import Queries
from .engine.settings import Converted, one_of, optional, setting, state
from .engine.state import AttackState
from .losses import LOSS_HELP, LOSSES, LossName, named_loss

# Number of random numbers per step and example: one each for whether to resize and the size, two for the place.
_DRAWS = 4


def _odd(name: str, value: Any) -> int:
    number = count(name, value)
    if number % 2 == 0:
        raise InputError(name, "an odd number", value)
    return number


def _surrogates(name: str, surrogate: Classifier | Sequence[Classifier]) -> list[Classifier]:
    """Check one or more surrogates and return them in a list."""
    # A Sequential is a sequence of layers, but one model.
    models = [surrogate] if callable(surrogate) else items("surrogate", surrogate, "models")
    if not models:
        raise InputError("surrogate", "at least one model", "none")
    for model in models:
        if not callable(model):
            raise InputTypeError("surrogate", "a torch.nn.Module or a callable", kind(model))
    return models


class TransferAttack(BatchAttack):
    """Gradient steps on a surrogate's loss, to fool a model whose gradients are unknown: MI-FGSM and its variants.

    x_{t+1} = Π(x_t + α·d(g_{t+1})), where d is the direction that ``PGD`` takes in this norm. Here g_{t+1} = μ·g_t +
    W∗∇L(T(x_t)) / ‖W∗∇L(T(x_t))‖₁, with these parts and options:

    - momentum μ (MI-FGSM; Dong et al., 2018);
    - diverse inputs T (DI-FGSM; Xie et al., 2019): with probability ``diversity``, an image is shrunk bilinearly to a
      random size and placed at random on a background of zeros, independently in every step;
    - W, a Gaussian kernel (TI-FGSM; Dong, Pang, Su and Zhu, 2019); convolving the gradient with W approximates the mean
      of the gradients over shifted images. The standard deviation of W is k/√3 pixels, k = (kernel − 1)/2;
    - ``nesterov`` (NI-FGSM; Lin et al., 2020): the gradient is taken at x_t + α·μ·D·g_t, ahead of x_t along the
      momentum. The factor D, the number of values in an image, scales each normalized gradient in g_t to mean absolute
      value 1, as in the authors' code;
    - ``scales`` (SI-FGSM; Lin et al., 2020): the gradient is the mean of ∇L(x_t / 2^i) for i from 0 to scales − 1;
    - ``neighbors`` (VMI-, VNI-FGSM; Wang and He, 2021): v_t = mean_i ∇L(x_t + r_i) − ∇L(x_t) is added to the next
      gradient. With β = ``neighborhood``, the points r_i are uniform in a cube whose half-width is β·epsilon in linf,
      β·epsilon / √D in l2 and β·epsilon / D in l1.

    All these options can be combined (within one step, an image is always resized in the same way); the defaults are
    those of MI-FGSM. Several surrogates are attacked through the mean of their logits.

    The steps do not use the attacked model, which may be any callable. The attacked model is run on x, since
    misclassified examples are returned unchanged. It is also run on the last iterates, which are returned even if they
    are classified correctly. ``evaluate`` and ``attack_dataset`` measure this attack like any other.

    Args:
        model, epsilon, norm, clip_min, clip_max, device, clip, grid, seed, batch_size, dtype, memory_format, progress,
            callback: see ``BatchAttack``; model is the attacked model, and dtype applies to it.

    Raises:
        InputError: a value out of range, or no surrogate.
        InputTypeError: a value of the wrong type.

    >>> surrogate = torch.nn.Linear(2, 2)
    >>> _ = surrogate.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> def model(x):  # no gradients
    ...     return torch.nn.functional.one_hot(x.argmax(1), 2).float()
    >>> attack = TransferAttack(model, epsilon=0.25, surrogate=surrogate)
    >>> x, y = torch.tensor([[0.5, 0.25], [0.9, 0.1]]), torch.tensor([0, 0])
    >>> attack.evaluate(x, y, attack(x, y))["robust_accuracy"]
    0.5
    """

    norms = NORMS
    _elementwise = NORMS

    surrogate: Converted[list[Classifier], Classifier | Sequence[Classifier]] = setting(
        _surrogates,
        "module or callable with the model's classes, differentiable, or a sequence of these. Each runs "
        "in its own dtype, and modules are moved to the attack's device, permanently",
    )
    steps: int = setting(count, "number of steps, at least 1", default=10, option="steps")
    step_size: float | None = setting(optional(positive), "α, positive; default epsilon / steps", default=None)
    momentum: float = setting(non_negative, "μ ≥ 0", default=1.0)
    diversity: float = setting(share, "probability in [0, 1] that an image is resized in a step", default=0.0)
    resize: float = setting(probability, "smallest size of a resized image over the image's, in (0, 1)", default=0.9)
    kernel: int | None = setting(
        optional(_odd), "length of the Gaussian kernel, odd; None for no convolution", default=None
    )
    nesterov: bool = setting(flag, "whether to take gradients where the momentum leads", default=False)
    scales: int = setting(count, "number of scaled copies of each image, at least 1", default=1)
    neighbors: int = setting(
        functools.partial(integer, least=0),
        "number of points near each iterate; 0 for no variance tuning. Each costs a gradient per step and scale",
        default=0,
    )
    neighborhood: float = setting(positive, "β, positive", default=1.5)
    loss: LossName = setting(one_of(*LOSSES), LOSS_HELP, default="ce")

    _surrogate: Runner = state(None)  # type: ignore[assignment] # runs the mean of the surrogates

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "surrogate":
            self._run_surrogates()

    def _run_surrogates(self) -> None:
        """Make the runner of the surrogates."""
        where = self.device if isinstance(self.model, nn.Module) or self._chosen_device is not None else None
        mean = self.surrogate[0] if len(self.surrogate) == 1 else _MeanLogits(self.surrogate)
        self._surrogate = Runner(mean, device=where, memory_format=self._runner_settings["memory_format"])

    def _run(self, state: AttackState) -> None:
        if (self.diversity or self.kernel) and state.x.dim() != 4:
            raise InputError("x", "images [N, C, H, W] for diversity and kernel", f"shape {shape_text(state.x.shape)}")
        gradients = _SurrogateGradients(self, state)
        # The model's session may have switched autocast on.
        with torch.autocast(gradients.device.type, enabled=False), self._surrogate.session(gradients=True):
            x_adv = self._climb(state, gradients)
        state.finish(*state.retire(state.verdict(state.logits(x_adv)), x_adv))

    def _climb(self, state: AttackState, gradients: Gradients) -> Tensor:
        """Take all steps, whether or not an example is fooled, and return the last iterates."""
        step = state.epsilon / self.steps if self.step_size is None else torch.full_like(state.epsilon, self.step_size)
        coordinates = state.x[0].numel()
        x_adv, velocity = self._first(state), torch.zeros_like(state.x)
        ahead = per_example(step * (self.momentum * self._lead(coordinates)), state.x) if self.nesterov else None
        reach = self._radius(state) * (
            self.neighborhood / coordinates ** {"linf": 0.0, "l2": 0.5, "l1": 1.0}[self.norm]
        )
        spread = per_example(reach / math.sqrt(3), state.x)
        tuning, tuning_size = torch.zeros_like(state.x), torch.ones_like(state.epsilon)
        for t in range(self.steps):
            gradients.begin(t)
            gradient = gradients(x_adv if ahead is None else x_adv + state.norm.scaled(ahead * velocity))
            if self.neighbors:
                own_size = gradients.size
                noise = state.noise("uniform", self._first_draw + t * self.neighbors, self.neighbors)
                around = self._mean(gradients(x_adv + state.norm.scaled(spread * r)) for r in noise.unbind(1))
                tuned = gradient + tuning * per_example(tuning_size / own_size, gradient)
                tuning, tuning_size = around - gradient, own_size
                gradient = tuned.nan_to_num_(0.0, 0.0, 0.0)
            velocity = velocity.mul_(self.momentum).add_(self._normalized(gradient))
            x_adv = state.step(x_adv, velocity.clone(), step)
        return x_adv

    # Sample index of the first neighbor's noise: index 0 is that of the resizing draws.
    _first_draw = 1

    def _first(self, state: AttackState) -> Tensor:
        """Return the first iterates [B, ...]."""
        return state.x

    def _radius(self, state: AttackState) -> Tensor:
        """Return the radius [B] to which the size of the neighborhood is proportional."""
        return state.epsilon

    def _lead(self, coordinates: int) -> int:
        """Return the factor that multiplies α·μ·g_t in the step by which ``nesterov`` looks ahead."""
        return coordinates

    def _mean(self, gradients: Iterator[Tensor]) -> Tensor:
        """Average the gradients of the neighbors."""
        return functools.reduce(torch.add, (gradient / self.neighbors for gradient in gradients))

    def _normalized(self, gradient: Tensor) -> Tensor:
        """Divide the gradient by its l1 norm."""
        length = gradient.abs().flatten(1).sum(1).clamp_(min=torch.finfo(gradient.dtype).tiny)
        return gradient / per_example(length, gradient)

    def _draws(self, state: AttackState) -> Tensor | None:
        """Draw uniform numbers in [0, 1] for all steps, [B, steps, 4]."""
        if not self.diversity:
            return None
        noise = state.noise("uniform", 0, shape=(self.steps * _DRAWS,))[:, 0]
        return (noise.double() / math.sqrt(12) + 0.5).clamp_(0, 1).view(len(noise), self.steps, _DRAWS)


class Gradients(abc.ABC):
    """The gradients of one batch, averaged over scaled copies of each point and convolved with a kernel.

    Attributes:
        scales: number of scaled copies.
        kernel: [1, 1, k, k]; None for no convolution.
        size: [B], float64, the factor by which this step's gradients were divided.
    """

    def __init__(self, scales: int, kernel: Tensor | None, size: Tensor) -> None:
        self.scales, self.kernel, self.size = scales, kernel, size

    @abc.abstractmethod
    def begin(self, step: int) -> None:
        """Begin a step; within the step, the transforms are the same for all points."""

    def __call__(self, point: Tensor) -> Tensor:
        """Return the gradient [B, ...] at a point."""
        total = torch.zeros_like(point)
        for i in range(self.scales):
            total += self.at(point, 0.5**i) / self.scales
        return total if self.kernel is None else smoothed(total, self.kernel)

    @abc.abstractmethod
    def at(self, point: Tensor, scale: float) -> Tensor:
        """Return the gradient of the loss at scale · point, with respect to the point."""


class _SurrogateGradients(Gradients):
    """The gradients of the surrogate's loss.

    The derivative of the loss with respect to the logits may underflow. Each example's gradients are therefore divided
    by the size of this derivative, which is the largest magnitude of its elements. Within a step, all gradients of an
    example are divided by the same size, that at the step's first gradient.
    """

    def __init__(self, attack: TransferAttack, state: AttackState) -> None:
        kernel = None if attack.kernel is None else gaussian(attack.kernel, state.x)
        super().__init__(attack.scales, kernel, torch.ones_like(state.epsilon))
        self._attack, self._targeted, self._like = attack, state.targeted, state.epsilon
        self._queries = Queries(attack._surrogate)
        self.device = attack._surrogate.device_for(state.x)
        self._draws = attack._draws(state)
        self._y, self._last = state.y.to(self.device), int(state.y.max())
        self._size: Tensor | None = None
        self._step = 0

    def begin(self, step: int) -> None:
        self._size, self._step = None, step

    def at(self, point: Tensor, scale: float) -> Tensor:
        transform = functools.partial(self._transform, scale)
        _, _, gradient = self._queries.gradient(point.to(self.device), self._loss, transform)
        return gradient.to(point.device).nan_to_num_(0.0, 0.0, 0.0)

    def _transform(self, scale: float, z: Tensor) -> Tensor:
        z = z if scale == 1 else scale * z
        if self._draws is None:
            return z
        return resized(z, self._draws[:, self._step], chance=self._attack.diversity, least=self._attack.resize)

    def _loss(self, logits: Tensor) -> LogitLoss:
        if logits.shape[1] <= self._last:
            raise InputError("surrogate", f"the model's classes, up to {self._last}", f"{logits.shape[1]} classes")
        value, slope, label_logit = named_loss(
            logits, self._y, self._y, name=self._attack.loss, targeted=self._targeted
        )
        if self._size is None:
            self._size = label_logit.clamp(min=torch.finfo(label_logit.dtype).tiny)
            self.size = self._size.to(self._like)
        return LogitLoss(value, (slope * (label_logit / self._size).unsqueeze(1)).to(slope.dtype), self._size)


class _MeanLogits(nn.Module):
    """The mean of the logits of several models, each of which runs in its own dtype."""

    def __init__(self, models: Sequence[Classifier]) -> None:
        super().__init__()
        self.models = list(models)
        self.dtypes = [Runner(model).dtype for model in models]
        self.modules_among_them = nn.ModuleList([model for model in models if isinstance(model, nn.Module)])

    def forward(self, x: Tensor) -> Tensor:
        outputs = [logits_of(model(x.to(dtype))) for model, dtype in zip(self.models, self.dtypes, strict=True)]
        classes = {output.shape[1:] for output in outputs}
        if len(classes) > 1:
            shapes = " and ".join(sorted(shape_text(output.shape) for output in outputs))
            raise ModelError(f"surrogate: expected logits of one shape from all surrogates, got {shapes}")
        mean: Tensor = torch.stack([output.to(outputs[0].dtype) for output in outputs]).mean(0)
        return mean


def resized(images: Tensor, draws: Tensor, *, chance: float, least: float) -> Tensor:
    """Shrink images at random and place them at random on a background of zeros (Xie et al., 2019).

    The new sides are whole numbers of pixels; all numbers from ⌈least·side⌉ to the old side are equally likely.
    Interpolation is bilinear.

    Args:
        images: [B, C, H, W].
        draws: [B, 4], float64 in [0, 1]: an image is resized if the first of its four numbers is below ``chance``; the
            other three determine the new size, the row and the column.
        chance: probability of resizing.
        least: smallest ratio of the new side to the old side.

    Returns:
        [B, C, H, W].

    >>> draws = torch.tensor([[0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    >>> resized(torch.ones(1, 1, 4, 4), draws, chance=1.0, least=0.5)[0, 0]
    tensor([[0., 0., 0., 0.],
            [0., 0., 0., 0.],
            [1., 1., 0., 0.],
            [1., 1., 0., 0.]])
    """
    kept = draws[:, 0] >= chance
    rows = _interpolation(images.shape[2], draws[:, 1], draws[:, 2], least, kept).to(images)
    columns = _interpolation(images.shape[3], draws[:, 1], draws[:, 3], least, kept).to(images)
    return rows[:, None] @ images @ columns[:, None].mT


def _interpolation(side: int, size: Tensor, coordinate: Tensor, least: float, kept: Tensor) -> Tensor:
    """Make matrices [B, side, side] that shrink and shift a signal; the identity for the examples in ``kept``."""
    smallest = math.ceil(least * side)
    new = (smallest + (size * (side - smallest + 1)).floor()).clamp_(max=side)
    first = (coordinate * (side - new + 1)).floor().minimum(side - new)
    new, first = torch.where(kept, side, new), torch.where(kept, 0, first)
    pixel = torch.arange(side, dtype=torch.float64, device=size.device)
    offset = pixel - first[:, None]  # [B, side], within the resized signal
    source = (offset + 0.5) * (side / new)[:, None] - 0.5
    inside = (offset >= 0) & (offset < new[:, None])
    return (1 - (source[:, :, None] - pixel).abs()).clamp_(min=0) * inside[:, :, None]


def gaussian(length: int, like: Tensor) -> Tensor:
    """Return a Gaussian kernel [1, 1, length, length] with sum 1 and standard deviation k/√3, k = (length − 1)/2.

    >>> gaussian(3, torch.zeros(1, dtype=torch.float64))[0, 0, 1]
    tensor([0.1067, 0.4781, 0.1067], dtype=torch.float64)
    """
    reach = length // 2
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weight = torch.exp(-1.5 * (offset / max(reach, 1)) ** 2)
    weight /= weight.sum()
    return torch.outer(weight, weight).to(like)[None, None]


def smoothed(gradient: Tensor, kernel: Tensor) -> Tensor:
    """Convolve each channel of a gradient [B, C, H, W], padded with zeros, with a kernel [1, 1, k, k]."""
    planes = functional.conv2d(gradient.reshape(-1, 1, *gradient.shape[2:]), kernel, padding="same")
    return planes.view(gradient.shape)

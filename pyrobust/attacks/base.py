"""What every attack is, and what users subclass."""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor, nn

from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops.logits import STANDING
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.ops.projections import project_l1_ball
from pyrobust.runner import Classifier, Runner

from .arguments import batch_on, check_classes, finite, labels, radii, same_shape
from .norms import norm_of
from .queries import Queries, note_no_winner, winner


class AdversarialAttack(abc.ABC):
    """An attack on a classifier: a search for x_adv with ‖x_adv − x‖ ≤ epsilon in the clip range that it gets wrong.

    Subclasses define ``generate``; ``project`` and ``evaluate`` come with this class. The constructor sets a module to
    evaluation mode, moves it to the device and leaves it so; its parameters get no gradients.

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        epsilon: the radius of the ball, in the input's unit: a finite number ≥ 0, or a tensor [N], one an example.
        norm: "linf", "l2" or "l1".
        clip_min: the least value of a valid input.
        clip_max: the largest, above clip_min.
        device: where to run; default: that of the model's first parameter, else the CPU.

    Raises:
        InputError: a value out of range, or another norm.
        InputTypeError: a model that is not callable, or an epsilon that is not a number.

    >>> class Brighter(AdversarialAttack):
    ...     def generate(self, x, y, targeted=False, target_labels=None):
    ...         return x + self.project(torch.ones_like(x), x)
    >>> attack = Brighter(lambda x: torch.stack([x[:, 0], 1 - x[:, 0]], 1), epsilon=0.25)
    >>> x, y = torch.tensor([[0.4], [0.1]]), torch.tensor([1, 1])
    >>> attack.generate(x, y)
    tensor([[0.6500],
            [0.3500]])
    >>> attack.evaluate(x, y, attack.generate(x, y))["robust_accuracy"]
    0.5
    """

    def __init__(
        self,
        model: Classifier,
        epsilon: float | Tensor = 8 / 255,
        norm: str = "linf",
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
    ) -> None:
        self._norm = norm_of(norm)
        self.norm = self._norm.name
        self.clip_min, self.clip_max = finite("clip_min", clip_min), finite("clip_max", clip_max)
        if not self.clip_min < self.clip_max:
            raise InputError(f"clip_max: expected above clip_min, {self.clip_min}, got {self.clip_max}")
        self.epsilon = radii("epsilon", epsilon)
        self.runner = Runner(model, device=device)
        self.model = model
        if isinstance(model, nn.Module):
            model.eval()
            model.to(self.runner.device)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.runner.device

    @abc.abstractmethod
    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        """The adversarial examples.

        Args:
            x: [N, ...], in [clip_min, clip_max].
            y: [N], the labels.
            targeted: look for x_adv that the model takes for the target label, rather than for anything but y.
            target_labels: [N], needed where targeted.

        Returns:
            [N, ...].
        """

    def project(self, delta: Tensor, x: Tensor) -> Tensor:
        """The perturbation in the ball and the clip range that stands for delta.

        linf and l2: the projection on the ball, then on the clip range; l1: the projection on their intersection. It
        is rounded so that x + result, computed in x's dtype, is inside both exactly.

        Args:
            delta: [N, ...], finite.
            x: [N, ...], in [clip_min, clip_max].

        Returns:
            [N, ...], of x's dtype.

        Raises:
            InputError: shapes that do not agree, values that are not finite, or an x outside the clip range.
            InputTypeError: something else than float tensors.
        """
        x = self._examples(x)
        same_shape("delta", delta, x)
        if not len(x):
            return torch.zeros_like(x)
        delta = delta.detach().to(x)
        epsilon = self._epsilons(len(x)).to(x.device)
        projected = self._norm.project(delta, x, epsilon, self.clip_min, self.clip_max)
        x_adv = add_perturbation(x, projected, self.clip_min, self.clip_max)
        return _difference(x_adv, x, projected)

    @staticmethod
    def _project_l1(v: Tensor, radius: float | Tensor) -> Tensor:
        """The projection of each row of v [..., D] on the l1 ball (Duchi et al., 2008)."""
        return project_l1_ball(v, radius)

    def evaluate(self, x: Tensor, y: Tensor, x_adv: Tensor) -> dict[str, float]:
        """What the attack has done to the model's accuracy; the rates are over all N examples.

        Right is an example whose finite largest logit, the lowest such class on a tie, is y's; where that is close,
        the example is run again alone. Where no class wins, because of NaN, say, it is wrong, and the log says so.

        Args:
            x: [N, ...], in [clip_min, clip_max].
            y: [N], the labels.
            x_adv: [N, ...], finite; need not be in the ball.

        Returns:
            clean_accuracy; robust_accuracy, that on x_adv; attack_success_rate, 1 - robust_accuracy; and
            avg_perturbation, the mean of ‖x_adv - x‖ in the attack's norm, computed in float64.

        Raises:
            InputError: no examples, shapes that do not agree, values or labels out of range.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits.
        """
        x = self._examples(x)
        y = labels("y", y, len(x))
        same_shape("x_adv", x_adv, x)
        if not len(x):
            raise InputError("x: expected at least one example, got none")
        x_adv = x_adv.detach().to(x.device)
        queries = Queries(self.runner)
        clean, robust = (float(self._right(queries, batch, y).double().mean()) for batch in (x, x_adv))
        return {
            "clean_accuracy": clean,
            "robust_accuracy": robust,
            "attack_success_rate": 1 - robust,
            "avg_perturbation": float(self._norm.distance(x_adv, x).mean()),
        }

    def _right(self, queries: Queries, x: Tensor, y: Tensor, *, targeted: bool = False) -> Tensor:
        """Which examples the attack has not fooled, bool [N] on the CPU."""
        runner = self.runner
        device = runner.device_for(x)
        right = torch.zeros(len(x), dtype=torch.bool)
        without = torch.zeros(len(x), dtype=torch.bool)
        shape = tuple(x.shape[1:])

        def step(begin: int, end: int) -> None:
            batch, label = batch_on(x[begin:end], device, runner.memory_format), y[begin:end].to(device)
            logits = queries.logits(batch)
            check_classes(label, logits.shape[1], "target_labels" if targeted else "y")
            verdicts = queries.verdict(logits, label, targeted, both=len(batch) > 1).cpu()
            for i in (verdicts > 1).nonzero()[:, 0].tolist():
                verdicts[i] = int(queries.fooled_alone(batch[i : i + 1], label[i : i + 1], targeted))
            right[begin:end] = verdicts == STANDING
            without[begin:end] = (winner(logits) == logits.shape[1]).cpu()

        with runner.session(gradients=True):
            runner.for_each(len(x), shape, step)
        note_no_winner(runner, int(without.sum()), len(x))
        return right

    def _epsilons(self, examples: int, epsilon: float | Tensor | None = None) -> Tensor:
        """The radius of each example, float64 [N] on the CPU."""
        chosen = self.epsilon if epsilon is None else radii("epsilon", epsilon)
        if isinstance(chosen, Tensor) and len(chosen) != examples:
            raise InputError(f"epsilon: expected one for each of the {examples} examples, got {len(chosen)}")
        return torch.as_tensor(chosen, dtype=torch.float64).expand(examples)

    def _examples(self, x: Tensor) -> Tensor:
        """x, checked."""
        if not isinstance(x, Tensor):
            raise InputTypeError(f"x: expected a tensor, got {type(x).__name__}")
        if not x.dtype.is_floating_point:
            raise InputTypeError(f"x: expected a float tensor, got {x.dtype}; for 8-bit images: x.float() / 255")
        if x.dim() < 2 or (len(x) and not x[0].numel()):
            raise InputError(f"x: expected a batch [N, ...] of examples that are not empty, got {tuple(x.shape)}")
        if self.runner.memory_format == torch.channels_last and x.dim() != 4:
            raise InputError(f"x: expected [N, C, H, W] for channels_last, got {tuple(x.shape)}")
        x = x.detach()
        if len(x):
            low, high = (float(end) for end in x.double().aminmax())
            if math.isnan(low) or math.isinf(low) or math.isinf(high):
                raise InputError("x: expected finite values, got NaN or inf")
            if low < self.clip_min or high > self.clip_max:
                raise InputError(
                    f"x: expected values in [{self.clip_min}, {self.clip_max}], the clip range, got {low} to {high}"
                )
        return x


def _difference(x_adv: Tensor, x: Tensor, delta: Tensor) -> Tensor:
    """The z with |z| ≤ |delta| and x + z, computed in their dtype, between x and x_adv."""
    z = x_adv - x
    z = torch.where(z.abs() > delta.abs(), delta, z)
    for _ in range(2):  # one step of z is at least half a step of x + z
        beyond = (x + z - x_adv) * z.sign() > 0
        z = torch.where(beyond, z.nextafter(torch.zeros_like(z)), z)
    return z

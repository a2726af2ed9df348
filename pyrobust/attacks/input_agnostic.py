"""The base class of attacks on a whole data set: checks, minibatches, predictions and rates."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyrobust.checks import class_labels, count, float_tensor, integer, shape_text
from pyrobust.clip import ClipArgument, attack_ends, finite_ends, joined
from pyrobust.errors import InputError
from pyrobust.metrics import (
    Rate,
    attack_success_rate,
    clean_accuracy,
    estimate_rate,
    robust_accuracy,
    success_rate_on_correct,
)
from pyrobust.ops.logits import LogitLoss
from pyrobust.runner import Classifier

from .engine.attacked_model import AttackedModel
from .engine.norms import per_example
from .engine.queries import Queries
from .losses import named_loss


class InputAgnosticAttack(AttackedModel):
    """One perturbation or patch for a whole data set, found by gradient steps on minibatches.

    Args:
        model: module or callable, [N, ...] → logits [N, K] or an object with ``.logits``.
        clip_min: smallest valid input value.
        clip_max: largest valid input value.
        clip: (clip_min, clip_max), replacing the two arguments; None for no limit.
        device: where to run; default: the device of the model's first parameter, else the CPU.
        epochs: passes over the data.
        seed: random seed of the order of the data, in [0, 2**64).
        batch_size: rows of a minibatch.
        dtype: of the batches, see ``pyrobust.runner.Runner``.
    """

    def __init__(
        self,
        model: Classifier,
        clip_min: float,
        clip_max: float,
        device: torch.device | str | None,
        *,
        clip: ClipArgument,
        epochs: int,
        seed: int,
        batch_size: int,
        dtype: torch.dtype | None,
    ) -> None:
        self.clip_min, self.clip_max = attack_ends(clip_min, clip_max, clip)
        if isinstance(self.clip_min, Tensor):
            raise InputError("clip", f"numbers for {type(self).__name__}", "a tensor for the elements")
        self.epochs = count("epochs", epochs)
        self.seed = integer("seed", seed, 0, (1 << 64) - 1)
        self.batch_size = count("batch_size", batch_size)
        self._attack_model(model, device, dtype=dtype)

    def _checked(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Check images and labels, and return them; the labels become int64 on the CPU."""
        x = float_tensor("x", x, dtype=self.runner.list_dtype)
        if x.dim() < 2 or not x.numel():
            raise InputError("x", "images [N, ...], at least one", f"shape {shape_text(x.shape)}")
        x = self._cast(x.detach(), joined(self.clip_min, self.clip_max))
        low, high = (float(value) for value in x.double().aminmax())
        least, highest = finite_ends(self.clip_min, self.clip_max)
        if not (least <= low and high <= highest):
            raise InputError(
                "x",
                f"finite values in the clip range [{least}, {highest}]",
                f"{low} to {high}",
                "rescale x or set the clip range",
            )
        return x, class_labels("y", y, len(x))

    def _minibatches(self, examples: int) -> Iterator[Tensor]:
        """Yield the rows of each minibatch, epoch by epoch, in random order."""
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epochs):
            yield from torch.split(torch.randperm(examples, generator=generator), self.batch_size)

    def _classes(self, x: Tensor) -> Tensor:
        """Return predicted classes, int64 [N] on the CPU; -1 where there is none."""
        return Queries(self.runner).judge.classes(x)

    def _gradients(self, queries: Queries, x_adv: Tensor, y: Tensor, name: str, targeted: bool, limit: float) -> Tensor:
        """Compute the gradients [B, ...] of min(loss, limit) in x_adv, on its device, up to one positive factor."""
        labels = y.to(self.runner.device_for(x_adv))
        weights: list[Tensor] = []  # sizes of the derivatives with respect to the logits, which ``Queries`` leaves out

        def loss(logits: Tensor) -> LogitLoss:
            result = named_loss(logits, labels, labels, name=name, targeted=targeted)
            weights[:] = [torch.where(result.value < limit, result.size, 0)]  # 0 for NaN
            return result

        with self.runner.session(gradients=True):
            _, _, gradient = queries.gradient(self.runner.batch(x_adv), loss)
        # Only the weights' ratios matter; without the division they might underflow.
        weight = weights[0] / weights[0].amax().clamp(min=torch.finfo(torch.float64).tiny)
        return gradient.nan_to_num_(0.0, 0.0, 0.0).mul_(per_example(weight, gradient)).to(x_adv.device)

    def _rates(self, x: Tensor, y: Tensor, x_adv: Tensor) -> dict[str, Rate]:
        """Compute rates of the predictions at x and x_adv, with exact confidence intervals."""
        clean, adversarial = self._classes(x), self._classes(x_adv)
        rates = {
            "clean_accuracy": clean_accuracy(clean, y),
            "robust_accuracy": robust_accuracy(clean, adversarial, y),
            "attack_success_rate": attack_success_rate(clean, adversarial, y),
            "fooling_rate": estimate_rate(int((clean != adversarial).sum()), len(y)),
        }
        if rates["clean_accuracy"].successes:
            rates["success_rate_on_correct"] = success_rate_on_correct(clean, adversarial, y)
        return rates

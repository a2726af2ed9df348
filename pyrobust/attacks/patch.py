"""Adversarial patches: one patch that fools a model wherever it is placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrobust.checks import count, finite, image_indices, integer, items, positive, shape_text, shown, summary
from pyrobust.clip import OMITTED, ClipArgument, joined, need_range
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import Rate, estimate_rate
from pyrobust.ops.perturbation import add_perturbation
from pyrobust.runner import Classifier

from .engine.queries import Queries
from .input_agnostic import InputAgnosticAttack
from .losses import LOSSES, LossName, check_loss

# One in this many positions is held out for the evaluation.
_HELD_OUT = 4
# Decay factor of the earlier gradients in a step.
_MOMENTUM = 0.9


@dataclass(frozen=True, eq=False)
class Patch:
    """An adversarial patch.

    Attributes:
        pixels: [C, h, w], values that lie in the clip range exactly, not just up to rounding.
        mask: [h, w], bool: the pixels that replace those of the image.
        positions: [P, 2], int64, rows and columns of the upper left corner for which the patch was optimised.
        held_out: [Q, 2], int64, positions that ``fit`` did not use; the same as ``positions`` if there are fewer than
            four positions.
        forwards: rows pushed through the model.
    """

    pixels: Tensor
    mask: Tensor
    positions: Tensor
    held_out: Tensor
    forwards: int

    def apply(self, x: Tensor, positions: Tensor) -> Tensor:
        """Put the patch on images.

        Args:
            x: [N, C, H, W], float.
            positions: [N, 2] or [2], integers: the row and column of the patch's upper left corner on each image.

        Returns:
            [N, C, H, W], in x's dtype: the patch's pixels, converted to this dtype, where the mask is True; x
            elsewhere.

        Raises:
            InputError: images smaller than the patch or with another number of channels, or positions outside the
                images.
            InputTypeError: positions that are not integers.

        >>> patch = Patch(torch.ones(1, 1, 2), torch.tensor([[True, True]]), torch.zeros(1, 2), torch.zeros(1, 2), 0)
        >>> patch.apply(torch.zeros(1, 1, 2, 3), torch.tensor([1, 1]))
        tensor([[[[0., 0., 0.],
                  [0., 1., 1.]]]])
        """
        rows, columns = self._pixels_at(x, positions)
        examples = torch.arange(len(x), device=x.device)[:, None, None]
        under = x[examples, :, rows, columns]  # [N, h, w, C]
        over = self.pixels.to(x).permute(1, 2, 0).expand_as(under)
        patched = x.detach().clone()
        patched[examples, :, rows, columns] = torch.where(self.mask.to(x.device)[:, :, None], over, under)
        return patched

    def _pixels_at(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows [N, h, 1] and columns [N, 1, w] of each image that the patch covers."""
        height, width = self.mask.shape
        if x.dim() != 4 or x.shape[1] != len(self.pixels) or x.shape[2] < height or x.shape[3] < width:
            expected = shape_text(("N", len(self.pixels), f"H >= {height}", f"W >= {width}"))
            raise InputError("x", f"images {expected}", f"shape {shape_text(x.shape)}")
        if not isinstance(positions, Tensor) or positions.is_floating_point() or positions.dtype == torch.bool:
            raise InputTypeError("positions", "a tensor of integers", shown(positions))
        if positions.shape not in ((2,), (len(x), 2)):
            raise InputError("positions", f"shape (2,) or ({len(x)}, 2)", shape_text(positions.shape))
        corners = positions.to(x.device, torch.int64).expand(len(x), 2)
        last = torch.tensor([x.shape[2] - height, x.shape[3] - width], device=x.device)
        if bool(((corners < 0) | (corners > last)).any()):
            raise InputError("positions", f"rows from 0 to {int(last[0])} and columns to {int(last[1])}")
        rows = corners[:, :1, None] + torch.arange(height, device=x.device)[:, None]
        columns = corners[:, 1:, None] + torch.arange(width, device=x.device)
        return rows, columns

    def __repr__(self) -> str:
        return summary(self, shape=tuple(self.pixels.shape), positions=len(self.positions), forwards=self.forwards)


class AdversarialPatch(InputAgnosticAttack):
    """A patch that makes a model err wherever it is placed (Brown, Mané, Roy, Abadi and Gilmer, 2017).

    The patch replaces the pixels of an image where the mask is True. Each step puts the patch on every image of a
    minibatch, at an independent random position. It then moves the patch's pixels, within the clip range, by step_size
    in the direction sign(g). Here g is the gradient, with momentum 0.9, of Σᵢ min(Lᵢ, beta), and Lᵢ is the loss on
    image i. A quarter of the positions, rounded down, are held out: ``evaluate`` uses only these. With fewer than four
    positions, none is held out, and ``evaluate`` uses all. If a ``position`` is given, the patch stays there.

    Args:
        model, clip_min, clip_max, device: see ``AdversarialAttack``; clip_min and clip_max are numbers.
        size: height and width of the patch, or both in one number.
        target: class that the model should predict; default: any class other than the label.
        mask: [h, w], bool: True for the pixels that belong to the patch; default: all pixels.
        position: row and column of the patch's upper left corner; default: any position within the image.
        epochs: passes over the data, at least 1.
        step_size: positive; default 1/50 of the clip range.
        beta: limit of the loss, as in ``UniversalPerturbation``.
        loss: "ce", "dlr" (at least 3 classes, 4 with a target) or "margin", see ``pyrobust.ops.logit_loss``.
        clip: (clip_min, clip_max), replacing the two arguments; not None, because a patch needs a range.
        seed: random seed of the positions and of the order of the images, in [0, 2**64).
        batch_size: images in a step, at least 1.
        dtype: of the batches, see ``pyrobust.runner.Runner``.

    Raises:
        InputError: a value out of range.
        InputTypeError: a value of the wrong type.

    >>> model = lambda x: torch.stack([2 - x.sum((1, 2, 3)), x.sum((1, 2, 3)) - 2], 1)
    >>> x, y = torch.zeros(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64)
    >>> attack = AdversarialPatch(model, 2)
    >>> patch = attack.fit(x, y)
    >>> attack.evaluate(x, y, patch)["robust_accuracy"].value
    0.0
    """

    def __init__(
        self,
        model: Classifier,
        size: int | Sequence[int],
        clip_min: float = 0.0,
        clip_max: float = 1.0,
        device: torch.device | str | None = None,
        *,
        target: int | None = None,
        mask: Tensor | None = None,
        position: Sequence[int] | None = None,
        epochs: int = 20,
        step_size: float | None = None,
        beta: float = 9.0,
        loss: LossName = "ce",
        clip: ClipArgument = OMITTED,
        seed: int = 0,
        batch_size: int = 100,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            model,
            clip_min,
            clip_max,
            device,
            clip=clip,
            epochs=epochs,
            seed=seed,
            batch_size=batch_size,
            dtype=dtype,
        )
        need_range(type(self).__name__, joined(self.clip_min, self.clip_max))
        height, width = (size, size) if isinstance(size, int) else _pair("size", size)
        self.size = count("size", height), count("size", width)
        self.target = None if target is None else integer("target", target, 0)
        self.mask = _mask(mask, self.size)
        self.position = None
        if position is not None:
            self.position = [integer("position", coordinate, 0) for coordinate in _pair("position", position)]
        if step_size is None:
            step_size = (self.clip_max - self.clip_min) / 50
        self.step_size = positive("step_size", step_size)
        self.beta = finite("beta", beta)
        self.loss = check_loss(loss, LOSSES)

    def fit(self, x: Tensor, y: Tensor) -> Patch:
        """Optimise a patch on images.

        Args:
            x: [N, C, H, W], float, finite, in [clip_min, clip_max], at least as large as the patch.
            y: [N], integers, the labels.

        Returns:
            The patch, in x's dtype.

        Raises:
            InputError: mismatched shapes; values, labels or a target out of range; or a position outside the images.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits, or logits without a gradient.
        """
        x, y = self._checked(x, y)
        if x.dim() != 4:
            raise InputError("x", "images [N, C, H, W]", f"shape {shape_text(x.shape)}")
        queries = Queries(self.runner)
        highest = torch.stack([y.amax(), torch.tensor(self.target or 0)]).amax()
        queries.judge.correct(x[:1], highest[None], "y" if self.target is None else "y or target")
        used, held_out = self._split(x)
        middle = torch.full((x.shape[1], *self.size), (self.clip_min + self.clip_max) / 2, dtype=x.dtype)
        pixels = middle.clamp(self.clip_min, self.clip_max).to(x.device)
        velocity = torch.zeros_like(pixels, dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed)
        for rows in self._minibatches(len(x)):
            patch = Patch(pixels, self.mask, used, held_out, 0)
            positions = used[torch.randint(len(used), (len(rows),), generator=generator)]
            gradient = self._gradient(queries, x[rows.to(x.device)], y[rows], patch, positions)
            velocity.mul_(_MOMENTUM).add_(gradient / gradient.abs().sum().clamp(min=torch.finfo(torch.float64).tiny))
            step = (self.step_size * velocity.sign()).to(pixels.dtype)
            pixels = add_perturbation(pixels, step, self.clip_min, self.clip_max)
        return Patch(pixels, self.mask, used, held_out, queries.forwards)

    def evaluate(
        self, x: Tensor, y: Tensor, patch: Patch, *, indices: Sequence[int] | Tensor | None = None
    ) -> dict[str, Rate]:
        """Measure a patch on images not used in ``fit``, at one position of ``patch.held_out`` on each image.

        Args:
            x: [N, C, H, W], in [clip_min, clip_max], of the size that the patch was fitted for.
            y: [N], the labels.
            patch: result of ``fit``.
            indices: [N], the index of each image in its data set; the index and the seed determine the position of the
                patch on the image. Default: 0 … N - 1.

        Returns:
            Rates by name: clean_accuracy; robust_accuracy (the share classified correctly with and without the patch);
            attack_success_rate (1 - robust_accuracy); fooling_rate (the share whose predicted class the patch changes);
            success_rate_on_correct (the share of the correctly classified images that the patch breaks; only if any
            image is classified correctly); and, with a target, target_rate (the share of the images of other classes
            that are assigned to the target; only if there are such images). Each value is a ``pyrobust.metrics`` rate
            with its exact interval; predictions follow the rule of ``pyrobust.correctness``.

        Raises:
            InputError: mismatched shapes, or values or labels out of range.
            InputTypeError: images that are not float, or labels that are not integers.
            ModelError: a model that does not return logits.
        """
        x, y = self._checked(x, y)
        positions = torch.stack([self._place(patch, index) for index in image_indices(indices, len(x))])
        patched = patch.apply(x, positions)
        rates = self._rates(x, y, patched)
        if self.target is not None and bool((others := y.ne(self.target)).any()):
            reached = self._classes(patched[others.to(x.device)]) == self.target
            rates["target_rate"] = estimate_rate(int(reached.sum()), int(others.sum()))
        return rates

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Draw positions [P, 2] for the optimisation and [Q, 2] for the evaluation."""
        spare = [side - size for side, size in zip(x.shape[2:], self.size, strict=True)]
        if min(spare) < 0:
            expected = f"[N, C, H, W] of at least {self.size[0]} x {self.size[1]} pixels"
            raise InputError("x", f"images {expected}, the patch's size", f"shape {shape_text(x.shape)}")
        if self.position is not None:
            if any(coordinate > last for coordinate, last in zip(self.position, spare, strict=True)):
                raise InputError("position", f"at most {tuple(spare)} for these images", tuple(self.position))
            fixed = torch.tensor([self.position])
            return fixed, fixed
        every = torch.cartesian_prod(torch.arange(spare[0] + 1), torch.arange(spare[1] + 1))
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(self.seed))
        kept = len(every) // _HELD_OUT
        return (every[order[kept:]], every[order[:kept]]) if kept else (every, every)

    def _place(self, patch: Patch, index: int) -> Tensor:
        """Return the held-out position [2] at which the patch is put on an image."""
        generator = torch.Generator().manual_seed((self.seed * 0x9E3779B97F4A7C15 + index) % (1 << 64))
        return patch.held_out[int(torch.randint(len(patch.held_out), (), generator=generator))]

    def _gradient(self, queries: Queries, x: Tensor, y: Tensor, patch: Patch, positions: Tensor) -> Tensor:
        """Gradient of the summed losses with respect to the pixels, float64 [C, h, w]."""
        goal = y if self.target is None else torch.full_like(y, self.target)
        gradient = self._gradients(
            queries, patch.apply(x, positions), goal, self.loss, self.target is not None, self.beta
        )
        rows, columns = patch._pixels_at(x, positions)
        examples = torch.arange(len(x), device=x.device)[:, None, None]
        under = gradient[examples, :, rows, columns].sum(0, dtype=torch.float64)  # [h, w, C]
        return torch.where(self.mask.to(x.device)[:, :, None], under, 0).permute(2, 0, 1)


def _pair(name: str, value: Sequence[int]) -> list[int]:
    """Check that ``value`` has two numbers."""
    pair = items(name, value, "two integers")
    if len(pair) != 2:
        raise InputError(name, "two integers", shown(value))
    return pair


def _mask(mask: Tensor | None, size: tuple[int, int]) -> Tensor:
    """Check the mask of a patch; the default mask covers the whole patch."""
    if mask is None:
        return torch.ones(size, dtype=torch.bool)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise InputTypeError("mask", "a bool tensor", shown(mask))
    if mask.shape != size or not bool(mask.any()):
        raise InputError("mask", f"shape {shape_text(size)} with a True", shape_text(mask.shape))
    return mask.cpu()

"""One chunk of a data set under attack: everything that an attack claims is checked before it is kept."""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.attacks import AdversarialAttack
from pyrobust.attacks.arguments import batch_on
from pyrobust.attacks.autoattack import AutoAttackResult
from pyrobust.attacks.queries import Queries, note_no_winner
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.resume import Advance
from pyrobust.metrics import distances, predicted_classes
from pyrobust.metrics.distance import is_within
from pyrobust.runs.examples import encode_examples
from pyrobust.zoo import ImageSet


class AttackChunk:
    """Attacks one chunk of a data set after the other, and checks what comes back; the ``Step`` of an attack.

    Args:
        attack: any attack.
        images: all images of the data set.
        parameters: of the run.

    Raises:
        InputError: called, of an attack that returns another shape, NaN, or points outside the ball or the clip range.
        InputTypeError: of one that returns no float tensor.
        ModelError: of a model that does not return logits.
    """

    def __init__(self, attack: AdversarialAttack, images: ImageSet, parameters: dict[str, Any]) -> None:
        self.attack, self.images = attack, images
        self.name, self.keep = parameters["attack"], parameters["examples"]
        self.seed = parameters["seed"]
        self.epsilon = float(parameters["epsilon"])
        self.runner = attack.runner
        self.queries = Queries(attack.runner)
        self.takes_indices = "indices" in inspect.signature(attack.generate).parameters
        self.result: Any = None  # what the attack tells of the last chunk

    def __call__(self, x: Tensor, indices: range, report: Advance) -> dict[str, Any]:
        """The columns of the images, all but idx, label and seconds.

        Args:
            x: [B, C, H, W].
            indices: their data-set indices.
            report: gets (images done, B).
        """
        y = self.images.y[indices.start : indices.stop : indices.step].numpy()
        clean, adversarial, distance, x_adv = self.examine(x, indices, report)
        broken_by = self._broken_by(clean, adversarial, y)
        return {
            "prediction": clean,
            "status": ["ok"] * len(x),
            "adversarial": adversarial,
            # How far attacks go without success is their own affair, and says nothing of the model.
            "distance": [far if by else None for far, by in zip(distance.tolist(), broken_by, strict=True)],
            "broken_by": broken_by,
            "x_adv": encode_examples(x_adv) if self.keep else [b""] * len(x),
        }

    def examine(
        self, x: Tensor, indices: range, report: Advance
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64], Tensor]:
        """What the model says of the images and of x_adv, how far these are, and x_adv [B, C, H, W], checked.

        Args:
            x: [B, C, H, W].
            indices: their data-set indices.
            report: gets (images done, B).
        """
        y = self.images.y[indices.start : indices.stop : indices.step]
        attack = copy.copy(self.attack)  # the user's keeps its progress and its result
        if hasattr(attack, "progress"):
            attack.progress = report
        keywords: dict[str, Any] = {"indices": torch.tensor(indices)} if self.takes_indices else {}
        device = self.runner.device
        with generators_from(f"{self.seed} {indices.start}", device):
            clean = classes_alone(self.queries, x)
            with self.runner.session(gradients=True), torch.enable_grad():
                # A copy: what an attack has written into x would be no distance away from x.
                x_adv = attack.generate(x.to(device, copy=True), y.to(device), **keywords)
            x_adv = self._checked(x_adv, x)
            distance = self._distances(x_adv, x, indices)
            moved = (x_adv != x).flatten(1).any(1)
            adversarial = clean.copy()
            adversarial[moved.numpy()] = classes_alone(self.queries, x_adv[moved])
        self.result = getattr(attack, "result", None)
        return clean, adversarial, distance, x_adv

    def _checked(self, x_adv: Any, x: Tensor) -> Tensor:
        """What the attack returned, as it is kept: float32 on the CPU, finite, of x's shape and in the clip range."""
        if not isinstance(x_adv, Tensor) or not x_adv.dtype.is_floating_point:
            got = x_adv.dtype if isinstance(x_adv, Tensor) else type(x_adv).__name__
            raise InputTypeError(f"attack: expected {self.name}.generate to return a float tensor, got {got}")
        if x_adv.shape != x.shape:
            raise InputError(
                f"attack: expected {self.name}.generate to return shape {tuple(x.shape)}, got {tuple(x_adv.shape)}"
            )
        kept: Tensor = x_adv.detach().to("cpu", torch.float32)
        if not bool(torch.isfinite(kept).all()):
            raise InputError(f"attack: expected {self.name}.generate to return finite values, got NaN or inf")
        low, high = (float(end) for end in kept.aminmax())
        if low < self.attack.clip_min or high > self.attack.clip_max:
            raise InputError(
                f"attack: expected {self.name}.generate to keep to the clip range, {self.attack.clip_min} to "
                f"{self.attack.clip_max}, got {low} to {high}"
            )
        return kept

    def _distances(self, x_adv: Tensor, x: Tensor, indices: range) -> npt.NDArray[np.float64]:
        distance: npt.NDArray[np.float64] = distances(x_adv, x, self.attack.norm).numpy()
        radius = torch.tensor([self.epsilon], dtype=torch.float64)
        for row in np.flatnonzero(distance > self.epsilon).tolist():
            # A sum in float64 may round beyond the radius that exact arithmetic keeps to.
            own = slice(row, row + 1)
            if not bool(is_within(x_adv[own], x[own], self.attack.norm, radius)):
                raise InputError(
                    f"attack: expected {self.name}.generate to keep within {self.attack.norm} distance "
                    f"{self.epsilon!r}, got {float(distance[row])!r} for image {indices[row]}; return "
                    "x + self.project(delta, x)"
                )
            distance[row] = self.epsilon
        return distance

    def _broken_by(
        self,
        clean: npt.NDArray[np.int64],
        adversarial: npt.NDArray[np.int64],
        label: npt.NDArray[np.int64],
    ) -> list[str]:
        """The attack that broke each image, "clean" where the model was wrong from the start, "" where it withstood."""
        claims = self.result.broken_by if isinstance(self.result, AutoAttackResult) else [None] * len(label)
        broken_by = []
        for row, claim in enumerate(claims):
            if clean[row] != label[row]:
                broken_by.append("clean")
            elif adversarial[row] == label[row]:
                broken_by.append("")
            else:  # a randomised model can be wrong about x when the attack begins, and only then
                broken_by.append(self.name if claim in (None, "clean") else claim)
        return broken_by


def classes_alone(queries: Queries, x: Tensor) -> npt.NDArray[np.int64]:
    """What the model says of each image alone, as whoever uses it will ask; -1 where no logit wins, which is logged.

    Args:
        queries: of the model.
        x: [B, C, H, W].

    >>> from pyrobust.runner import Runner
    >>> classes_alone(Queries(Runner(lambda x: x.flatten(1))), torch.eye(2).view(2, 1, 1, 2))
    array([0, 1])
    """
    runner = queries.runner
    found = torch.empty(len(x), dtype=torch.int64)
    with runner.session():
        for i in range(len(x)):
            batch = batch_on(x[i : i + 1], runner.device_for(x), runner.memory_format)
            found[i] = predicted_classes(queries.logits(batch))[0]
    note_no_winner(runner, int((found < 0).sum()), len(x))
    return found.numpy()


@contextlib.contextmanager
def generators_from(text: str, device: torch.device) -> Iterator[None]:
    """Torch's generators in a state that the text alone decides; what it was comes back afterwards.

    Args:
        text: anything.
        device: the CPU's generator, and that of this device, where it is a GPU.

    >>> with generators_from("0 8", torch.device("cpu")):
    ...     first = torch.rand(3)
    >>> with generators_from("0 8", torch.device("cpu")):
    ...     bool((torch.rand(3) == first).all())
    True
    """
    seed = random.Random(text).getrandbits(63)
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield

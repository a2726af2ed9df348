"""Attack one chunk of a data set, and check the attack's claims before they are stored."""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.attacks import EOT, AdversarialAttack, MinimumNorm, MinimumNormAttack
from pyrobust.attacks.autoattack import AutoAttackResult
from pyrobust.attacks.engine.levels import Levels, budgets
from pyrobust.attacks.engine.queries import Queries
from pyrobust.checks import first_wrong, kind, shape_text
from pyrobust.clip import clip_ends
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.evaluation.sweep import Advance
from pyrobust.machine import seeded_generators
from pyrobust.metrics import distances, distances_above
from pyrobust.metrics.distance import box_distances_above, is_within
from pyrobust.runs.examples import encode_examples
from pyrobust.runs.kinds.values import is_name


class AttackChunk:
    """The ``Step`` of an attack sweep: it attacks a chunk and checks what the attack returns."""

    method = "generate"

    def __init__(self, attack: AdversarialAttack, parameters: Mapping[str, Any], *, beside_proofs: bool = True) -> None:
        self.attack = attack
        self.name, self.keep = parameters["attack"], parameters["examples"]
        self.seed = parameters["seed"]
        self.epsilon = float(parameters.get("epsilon", math.inf))
        self.box = None if "box" not in parameters else torch.tensor(parameters["box"], dtype=torch.float64)
        self.certify_first = "certify_first" in parameters
        self.runner = attack.runner
        self.random = isinstance(attack.runner.model, EOT)  # declared random: neither probed nor judged by batches
        judge = Queries(attack.runner).judge
        alone = self.random or beside_proofs or self.certify_first
        self.classes = judge.classes_alone if alone else judge.classes
        step = parameters.get("grid")
        self.levels = None if step is None else Levels(Fraction(step), attack.clip_min, attack.clip_max)
        self.takes_indices = "indices" in inspect.signature(getattr(attack, self.method)).parameters
        self.result: Any = None  # the attack's result for the last chunk

    def __call__(self, x: Tensor, y: Tensor, indices: Sequence[int], report: Advance) -> dict[str, Any]:
        """Return result columns of x [B, C, H, W] except idx, label and seconds; ``report`` gets (images done, B)."""
        if not self.random:
            with generators_from(f"{self.seed} {indices[0]}", self.runner.device):
                self.runner.probe_rows(x)
        clean, adversarial, distance, x_adv = self.examine(x, y, indices, report)
        broken_by = self.broken_by(clean, adversarial, y.numpy())
        return {
            "prediction": clean,
            "status": ["ok"] * len(x),
            "adversarial": adversarial,
            # The distance of an unsuccessful attack says nothing about the model.
            "distance": [value if by else None for value, by in zip(distance.tolist(), broken_by, strict=True)],
            "broken_by": broken_by,
            **(self._proofs(broken_by, indices) if self.certify_first else {}),
            "x_adv": encode_examples(x_adv) if self.keep else [b""] * len(x),
        }

    def _proofs(self, broken_by: list[str], indices: Sequence[int]) -> dict[str, Any]:
        """Return the columns about images that are proved robust and were not attacked."""
        result = self.result.certified_first
        broken = [i for i, by, proved in zip(indices, broken_by, result.proved, strict=True) if proved and by]
        if broken:
            raise ModelError(
                f"crossing: image {broken[0]} is proved robust ({result.guarantee}), and the model misclassifies it; "
                "either a bound is wrong, which is a bug to report with the model, or the model computes something "
                "else for a single image than for a batch"
            )
        return {
            "proved": [int(proved) for proved in result.proved],
            "rows_saved": [result.rows_each * proved for proved in result.proved],
            "proof_seconds": [result.seconds / len(broken_by)] * len(broken_by),
        }

    def examine(
        self, x: Tensor, y: Tensor, indices: Sequence[int], report: Advance
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64], Tensor]:
        """Attack images [B, C, H, W]: return clean and adversarial predictions, distances, and the checked x_adv."""
        if self.levels is not None:
            x = self.levels.images(x)
        attack = copy.copy(self.attack)  # leaves progress and result of the user's attack alone
        if hasattr(attack, "progress"):
            attack.progress = report
        keywords: dict[str, Any] = {"indices": torch.tensor(indices)} if self.takes_indices else {}
        device = self.runner.device
        with generators_from(f"{self.seed} {indices[0]}", device):
            clean = self.classes(x).numpy()
            with self.runner.session(gradients=True), torch.enable_grad():
                # A copy: an attack that writes into x would otherwise hide its perturbation.
                x_adv = self._search(attack, x.to(device, copy=True), y.to(device), keywords)
            x_adv = self._check_range(check_adversarial("attack", f"{self.name}.{self.method}", x_adv, x))
            distance = self._distances(x_adv, x, indices)
            moved = (x_adv != x).flatten(1).any(1)
            adversarial = clean.copy()
            adversarial[moved.numpy()] = self.classes(x_adv[moved]).numpy()
        return clean, adversarial, distance, x_adv

    def _search(self, attack: AdversarialAttack, x: Tensor, y: Tensor, keywords: dict[str, Any]) -> Any:
        x_adv = attack.generate(x, y, **keywords)
        self.result = getattr(attack, "result", None)
        return x_adv

    def _check_range(self, x_adv: Tensor) -> Tensor:
        low, high = (float(value) for value in x_adv.aminmax())
        if isinstance(self.attack.clip_min, Tensor):
            lower, upper = clip_ends((self.attack.clip_min, self.attack.clip_max), tuple(x_adv.shape[1:]))
            flat = x_adv.double().flatten(1)
            outside = (flat < lower) | (flat > upper)
            if bool(outside.any()):
                raise InputError(
                    "attack",
                    f"{self.name}.{self.method} to stay in the clip range of each element",
                    first_wrong(flat, outside),
                )
        elif low < self.attack.clip_min or high > self.attack.clip_max:
            raise InputError(
                "attack",
                f"{self.name}.{self.method} to stay in the clip range, {self.attack.clip_min} to "
                f"{self.attack.clip_max}",
                f"{low} to {high}",
            )
        return x_adv

    def _distances(self, x_adv: Tensor, x: Tensor, indices: Sequence[int]) -> npt.NDArray[np.float64]:
        if self.levels is not None:
            return self._level_distances(self.levels, x_adv, x, indices)
        if self.box is not None:
            return self._box_distances(x_adv, x, indices)
        distance: npt.NDArray[np.float64] = distances(x_adv, x, self.attack.norm).numpy()
        radius = torch.tensor([self.epsilon], dtype=torch.float64)
        for row in np.flatnonzero(distance > self.epsilon).tolist():
            # The float64 sum may exceed epsilon where the exact distance does not.
            one_row = slice(row, row + 1)
            if not bool(is_within(x_adv[one_row], x[one_row], self.attack.norm, radius)):
                raise InputError(
                    "attack",
                    f"{self.name}.generate to stay within {self.attack.norm} distance {self.epsilon!r}",
                    f"{float(distance[row])!r} for image {indices[row]}",
                    "return x + self.project(delta, x)",
                )
            distance[row] = self.epsilon
        return distance

    def distances_above(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Return the exact distances rounded up, float64 [B]; with a box, a distance is ``max |δᵢ| / boxᵢ``."""
        if self.box is not None:
            return box_distances_above(x_adv, x, self.box)
        return distances_above(x_adv, x, self.attack.norm)

    def _box_distances(self, x_adv: Tensor, x: Tensor, indices: Sequence[int]) -> npt.NDArray[np.float64]:
        distance: npt.NDArray[np.float64] = self.distances_above(x_adv, x).numpy()
        for row in np.flatnonzero(distance > self.epsilon).tolist():
            raise InputError(
                "attack",
                f"{self.name}.{self.method} to stay within {self.epsilon!r} times the epsilon of each element",
                f"{float(distance[row])!r} times for image {indices[row]}",
                "return x + self.project(delta, x)",
            )
        return distance

    def _level_distances(
        self, levels: Levels, x_adv: Tensor, x: Tensor, indices: Sequence[int]
    ) -> npt.NDArray[np.float64]:
        norm = self.attack.norm
        off = (levels.images(x_adv) != x_adv).flatten(1).any(1)
        if self.epsilon < math.inf:
            budget = budgets(norm, torch.tensor([self.epsilon], dtype=torch.float64), levels.step)
            off |= levels.sizes(x_adv, x, norm) > budget
        wrong = off.nonzero()[:, 0].tolist()
        if wrong:
            raise InputError(
                "attack",
                f"{self.name}.{self.method} to return multiples of {levels.step} within {norm} distance "
                f"{self.epsilon!r}",
                f"others for image {indices[wrong[0]]}",
            )
        # Rounded up, a distance of exactly epsilon would exceed epsilon.
        return levels.distances(x_adv, x, norm).clamp_(max=self.epsilon).numpy()

    def broken_by(
        self,
        clean: npt.NDArray[np.int64],
        adversarial: npt.NDArray[np.int64],
        label: npt.NDArray[np.int64],
    ) -> list[str]:
        """Name the attack that broke each image: "clean" if x itself is misclassified, "" if no attack broke it."""
        broken_by = []
        for row, claim in enumerate(self._claims(len(label))):
            if clean[row] != label[row]:
                broken_by.append("clean")
            elif adversarial[row] == label[row]:
                broken_by.append("")
            else:  # a randomised model may have misclassified x inside the attack only
                broken_by.append(self.name if claim in (None, "clean") else claim)
        return broken_by

    def _claims(self, rows: int) -> Sequence[str | None]:
        """Return what broke each image according to the attack's own result; None where the result names no attack."""
        return self.result.broken_by if isinstance(self.result, AutoAttackResult) else [None] * rows


class MinimumChunk(AttackChunk):
    """The ``Step`` of a minimum-norm sweep; it recomputes the success and the distance of every point."""

    method = "minimum"

    def examine(
        self, x: Tensor, y: Tensor, indices: Sequence[int], report: Advance
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64], Tensor]:
        """Examine images; if x is misclassified or the attack failed, x_adv is x itself, at distance 0."""
        if self.levels is not None:
            x = self.levels.images(x)
        clean, adversarial, distance, x_adv = super().examine(x, y, indices, report)
        label = y.numpy()
        unmoved = (clean != label) | (adversarial == label)
        adversarial[unmoved], distance[unmoved] = clean[unmoved], 0.0
        rows = torch.from_numpy(unmoved)
        x_adv[rows] = x[rows]
        return clean, adversarial, distance, x_adv

    def _search(self, attack: AdversarialAttack, x: Tensor, y: Tensor, keywords: dict[str, Any]) -> Any:
        assert isinstance(attack, MinimumNormAttack)
        self.result = attack.minimum(x, y, **keywords)
        if not isinstance(self.result, MinimumNorm):
            raise InputTypeError("attack", f"{self.name}.minimum to return a MinimumNorm", kind(self.result))
        return self.result.x_adv

    def _distances(self, x_adv: Tensor, x: Tensor, indices: Sequence[int]) -> npt.NDArray[np.float64]:
        if self.levels is not None:
            return self._level_distances(self.levels, x_adv, x, indices)
        distance: npt.NDArray[np.float64] = self.distances_above(x_adv, x).numpy()
        return distance

    def _claims(self, rows: int) -> Sequence[str | None]:
        names = [name if is_name(name) else None for name in self.result.found_by]
        return names if len(names) == rows else [None] * rows


def check_adversarial(argument: str, source: str, x_adv: Any, x: Tensor, *, finite: bool = True) -> Tensor:
    """Return x_adv on x's device, in x's dtype; raise unless ``source`` returned a float tensor of x's shape.

    With ``finite``, x_adv also has to be free of NaN and infinities.
    """
    if not isinstance(x_adv, Tensor) or not x_adv.dtype.is_floating_point:
        raise InputTypeError(argument, f"{source} to return a float tensor", kind(x_adv))
    if x_adv.shape != x.shape:
        shapes = f"shape {shape_text(x.shape)}, got {shape_text(x_adv.shape)}"
        raise InputError(argument, f"{source} to return {shapes}")
    wrong = ~torch.isfinite(x_adv)
    if finite and bool(wrong.any()):
        value = first_wrong(x_adv, wrong)
        raise InputError(argument, f"{source} to return finite values", value)
    return x_adv.detach().to(x.device, x.dtype)


@contextlib.contextmanager
def generators_from(text: str, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, on the CPU and on a GPU device, from a string; restore their state on exit.

    >>> with generators_from("0 8", torch.device("cpu")):
    ...     first = torch.rand(3)
    >>> with generators_from("0 8", torch.device("cpu")):
    ...     bool((torch.rand(3) == first).all())
    True
    """
    with seeded_generators(random.Random(text).getrandbits(63), device):
        yield

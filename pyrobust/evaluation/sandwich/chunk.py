"""One chunk of a sandwich of a base classifier: lower bounds from certificates, upper bounds from attacks."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.attacks import AdversarialAttack, MinimumNormAttack
from pyrobust.bounds import BoundedModel, BoundOptions
from pyrobust.bounds.specification import margins
from pyrobust.evaluation.attack_chunk import AttackChunk, MinimumChunk
from pyrobust.evaluation.sweep import Advance
from pyrobust.evaluation.verify_chunk import best_radii
from pyrobust.runner import Runner
from pyrobust.runs.examples import encode_examples

# Radii are searched up to this multiple of an adversarial example's distance: no true certificate reaches the distance,
# and a false one that does is detected.
_BEYOND = 1.05
_LARGEST = sys.float_info.max


class SandwichChunk:
    """Computes both bounds for the images of one chunk; it is the ``Step`` of a sandwich of a base classifier.

    ``confirming`` holds attacks at increasing epsilons; each attack runs on the images that are undecided at its
    epsilon. If no adversarial example was found for an image, certificates are tried at radii up to ``farthest``. This
    is the diameter of the clip range or, without a clip range, of the data's range.
    """

    def __init__(
        self,
        bounded: BoundedModel,
        runner: Runner,
        parameters: Mapping[str, Any],
        attack: MinimumNormAttack,
        confirming: list[AdversarialAttack],
        options: BoundOptions,
        methods: tuple[str, ...],
        farthest: float,
    ) -> None:
        self.bounded, self.runner, self.parameters = bounded, runner, parameters
        self.nearest = MinimumChunk(attack, parameters)
        self.confirming = [
            AttackChunk(a, {**parameters, "attack": type(a).__name__, "epsilon": epsilon})
            for a, epsilon in zip(confirming, parameters["epsilons"] or [], strict=True)
        ]
        self.options, self.methods, self.farthest = options, methods, farthest

    def __call__(self, x: Tensor, y: Tensor, indices: Sequence[int], report: Advance) -> dict[str, Any]:
        """Return the run's columns for images x [B, C, H, W], except idx, label and seconds; report finished images."""
        label = y.numpy()
        self.runner.probe_rows(x)
        clean, adversarial, upper, x_adv = self.nearest.examine(x, y, indices, report)
        upper_by = self.nearest.broken_by(clean, adversarial, label)
        upper[[by == "" for by in upper_by]] = math.inf
        correct = torch.from_numpy(clean == label)
        reach = torch.from_numpy(upper * _BEYOND)
        bounded = reach.isinf() if self.options.clip is None else reach > self.farthest
        largest = torch.where(correct, reach.masked_fill(bounded, self.farthest), 0.0)
        inputs = x.to(self.runner.dtype)
        radius, lower_by = best_radii(
            self.bounded,
            inputs,
            y,
            largest,
            methods=self.methods,
            options=self.options,
            report=lambda done: report(len(x), len(x)),
            box=self.nearest.box,
        )
        lower: npt.NDArray[np.float64] = radius.numpy()
        for chunk in self.confirming:
            epsilon = float(chunk.epsilon)
            rows = np.flatnonzero((lower < epsilon) & (epsilon < upper))
            self._confirm(
                chunk, rows, x, y, indices=indices, upper=upper, upper_by=upper_by, adversarial=adversarial, x_adv=x_adv
            )
        crossed = np.flatnonzero((upper <= lower) & (lower > 0))
        margin: list[float | None] = [None] * len(x)
        for row, value in zip(crossed.tolist(), self._margins(x_adv[crossed], y[crossed]), strict=True):
            margin[row] = value
        return {
            "prediction": clean,
            "status": ["ok"] * len(x),
            "lower": lower,
            "lower_by": lower_by,
            "upper": [value if math.isfinite(value) else None for value in upper.tolist()],
            "upper_by": upper_by,
            "adversarial": adversarial,
            "confidence": self._confidence(x),
            "margin": margin,
            "x_adv": encode_examples(x_adv) if self.parameters["examples"] else [b""] * len(x),
        }

    def _confirm(
        self,
        chunk: AttackChunk,
        rows: npt.NDArray[np.intp],
        x: Tensor,
        y: Tensor,
        indices: Sequence[int],
        upper: npt.NDArray[np.float64],
        upper_by: list[str],
        adversarial: npt.NDArray[np.int64],
        x_adv: Tensor,
    ) -> None:
        """Attack rows at the chunk's epsilon; replace a row's result where a nearer adversarial example is found."""
        if not len(rows):
            return
        chosen = [indices[row] for row in rows.tolist()]
        _, classes, _, successes = chunk.examine(x[rows], y[rows], chosen, lambda done, total: None)
        label = y[rows].numpy()
        distance = chunk.distances_above(successes, x[rows]).numpy()
        for i in np.flatnonzero((classes != label) & (distance < upper[rows])).tolist():
            row = int(rows[i])
            upper[row], upper_by[row], adversarial[row], x_adv[row] = distance[i], chunk.name, classes[i], successes[i]

    def _margins(self, x_adv: Tensor, y: Tensor) -> list[float]:
        """Return the labels' margins: upper bounds under "real" semantics, observed values under "float32"."""
        if not len(x_adv):
            return []
        points = x_adv.to(self.runner.dtype)
        if self.options.semantics == "float32":
            with self.runner.session():
                batches = [self.runner.batch(points[i : i + 1]) for i in range(len(points))]
                logits = torch.cat([self.runner.logits(batch).cpu().double() for batch in batches])
            label_logit = logits.gather(1, y[:, None])[:, 0]
            rivals: Tensor = logits.scatter(1, y[:, None], -math.inf).amax(1)
            # The examples are misclassified: a margin that is not finite becomes the lowest number.
            return list((label_logit - rivals).nan_to_num(nan=-_LARGEST, posinf=-_LARGEST, neginf=-_LARGEST).tolist())
        options = dataclasses.replace(self.options, method="ibp", clip=None)
        rows = margins(y, self.bounded.outputs)
        above = self.bounded.bounds(x_lower=points, x_upper=points, C=rows, options=options).upper.amin(1)
        return list(above.nan_to_num(nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST).tolist())

    def _confidence(self, x: Tensor) -> npt.NDArray[np.float64]:
        """Return the softmax probability of each prediction; 0 where it is NaN."""
        with self.runner.session():
            logits = self.runner.logits(self.runner.batch(x.to(self.runner.dtype))).detach().cpu().double()
        confidence: npt.NDArray[np.float64] = logits.softmax(1).amax(1).nan_to_num(nan=0.0).numpy()
        return confidence

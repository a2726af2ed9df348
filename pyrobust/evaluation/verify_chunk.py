"""Verification of one chunk of a data set, by proofs and by a search for counterexamples."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.attacks import AdversarialAttack
from pyrobust.attacks.engine.queries import Queries
from pyrobust.bounds import BoundedModel, BoundOptions
from pyrobust.errors import ModelError
from pyrobust.evaluation.attack_chunk import AttackChunk
from pyrobust.evaluation.sweep import Advance
from pyrobust.metrics.distance import is_within, is_within_box, scaled_boxes
from pyrobust.runner import Runner
from pyrobust.runs.examples import encode_examples
from pyrobust.runs.kinds.verify import Verify
from pyrobust.runs.verdicts import encode

logger = logging.getLogger(__name__)


def best_radii(
    bounded: BoundedModel,
    x: Tensor,
    y: Tensor,
    largest: Tensor,
    methods: Sequence[str],
    options: BoundOptions,
    report: Callable[[int], None],
    box: Tensor | None = None,
) -> tuple[Tensor, list[str]]:
    """Return each example's largest proved radius up to ``largest``, float64 [B], and the method that proved it.

    Radii are multiples of ``box``, if there is one. The method is "" where the radius is 0. ``report`` receives the
    number of methods done.
    """
    radius, stages = torch.zeros(len(x), dtype=torch.float64), [""] * len(x)
    for done, method in enumerate(methods, start=1):
        open_rows = (radius < largest).nonzero()[:, 0]
        chosen = dataclasses.replace(options, method=method)
        proved = bounded.certified_radius(
            x[open_rows], y[open_rows], largest=largest[open_rows], box=box, options=chosen
        )
        better = proved > radius[open_rows]
        radius[open_rows[better]] = proved[better]
        for row in open_rows[better].tolist():
            stages[row] = method
        report(done)
    return radius, stages


class VerifyChunk:
    """Verifies the images of one chunk, with one attack for each epsilon; it is the ``Step`` of a verification."""

    def __init__(
        self,
        bounded: BoundedModel,
        runner: Runner,
        parameters: Mapping[str, Any],
        attacks: list[AdversarialAttack],
        options: BoundOptions,
    ) -> None:
        self.bounded, self.runner, self.parameters = bounded, runner, parameters
        self.queries = Queries(runner)
        self.options = options
        self.box = None if "box" not in parameters else torch.tensor(parameters["box"], dtype=torch.float64)
        epsilons = parameters["epsilons"] or []
        self.attacks = [AttackChunk(a, {**parameters, "epsilon": e}) for a, e in zip(attacks, epsilons, strict=False)]

    def __call__(self, x: Tensor, y: Tensor, indices: Sequence[int], report: Advance) -> dict[str, Any]:
        """Return the run's columns for images x [B, C, H, W], except idx, label and seconds; report finished steps."""
        self.runner.probe_rows(x)
        classes = self.queries.judge.classes_alone(x)
        clean, correct = classes.numpy(), classes == y
        columns = self._radii if self.parameters["epsilons"] is None else self._verdicts
        return {"prediction": clean, "status": ["ok"] * len(x), **columns(x, y, correct, indices, report)}

    def _radii(self, x: Tensor, y: Tensor, correct: Tensor, indices: Sequence[int], report: Advance) -> dict[str, Any]:
        largest = correct.double() * self.parameters["largest"]
        methods = self.options.methods()
        radius, stages = best_radii(
            self.bounded,
            x.to(self.runner.dtype),
            y,
            largest,
            methods=methods,
            options=self.options,
            report=lambda done: report(done, len(methods)),
            box=self.box,
        )
        empty = [""] * len(x)
        return {
            "radius": radius.numpy(),
            "verdicts": empty,
            "stages": stages,
            "margins": empty,
            "x_adv": [b""] * len(x),
        }

    def _verdicts(
        self, x: Tensor, y: Tensor, correct: Tensor, indices: Sequence[int], report: Advance
    ) -> dict[str, Any]:
        epsilons = self.parameters["epsilons"]
        inputs = x.to(self.runner.dtype)
        radius: npt.NDArray[np.float64] = np.zeros(len(x))
        rows: list[list[tuple[str, str, float]]] = [[] for _ in range(len(x))]  # (verdict, stage, margin) by epsilon
        # Stage that falsified each image: a counterexample holds at every larger epsilon too.
        falsified = ["" if fine else "forward" for fine in correct.tolist()]
        kept = x.clone()
        for step, epsilon in enumerate(epsilons):
            undecided = [row for row, by in enumerate(falsified) if not by]
            decided = self.bounded.verify(inputs[undecided], y[undecided], self._ball(epsilon), options=self.options)
            triples = zip(decided.status, decided.stage, decided.margin.tolist(), strict=True)
            proofs = dict(zip(undecided, triples, strict=True))
            radius[[row for row in undecided if proofs[row][0] == "verified"]] = epsilon
            if self.attacks and undecided:
                self._attack(step, x, y, indices, radius=radius, falsified=falsified, kept=kept)
            for row, by in enumerate(falsified):
                verdict, stage, margin = proofs.get(row, ("", "", float("nan")))
                rows[row].append(("falsified", by, margin) if by else (verdict, stage, margin))
            report(step + 1, len(epsilons))
        return {
            "radius": radius,
            "verdicts": [encode([verdict for verdict, _, _ in row]) for row in rows],
            "stages": [encode([stage for _, stage, _ in row]) for row in rows],
            "margins": [encode([margin for _, _, margin in row]) for row in rows],
            "x_adv": encode_examples(kept) if self.parameters["examples"] else [b""] * len(x),
        }

    def _ball(self, epsilon: float) -> float | Tensor:
        """Return the radius to verify: epsilon or, with a box, epsilon times the box's radii, rounded up."""
        if self.box is None:
            return epsilon
        return scaled_boxes(self.box, torch.tensor([epsilon], dtype=torch.float64), up=True)

    def _attack(
        self,
        step: int,
        x: Tensor,
        y: Tensor,
        indices: Sequence[int],
        radius: npt.NDArray[np.float64],
        falsified: list[str],
        kept: Tensor,
    ) -> None:
        """Attack the images that are not falsified yet, including verified ones to test their certificates."""
        epsilon = self.parameters["epsilons"][step]
        _, adversarial, distance, x_adv = self.attacks[step].examine(x, y, indices, lambda done, total: None)
        proved = torch.from_numpy(radius)
        if self.box is None:
            within = is_within(x_adv, x, self.parameters["norm"], proved)
        else:
            within = is_within_box(x_adv, x, self.box, proved)
        crossed = (proved > 0) & within
        for row, by in enumerate(falsified):
            if by or adversarial[row] == int(y[row]):
                continue
            if crossed[row]:
                certificate = f"image {indices[row]} is certified at {float(radius[row])!r}"
                self._report(certificate, float(distance[row]), x_adv[row : row + 1], int(y[row]))
            elif radius[row] < epsilon:
                falsified[row] = Verify.broken_stage
                kept[row] = x_adv[row]

    def _report(self, certificate: str, distance: float, x_adv: Tensor, label: int) -> None:
        """Raise ModelError for a certified image that an attack broke; warn instead if the logits are close.

        Rounding counts as a possible cause if the certificate is for exact arithmetic and the label's logit is below
        the largest other logit by at most √ε times the largest |logit|, where ε is the machine epsilon of the model's
        dtype. Only then is there a warning.
        """
        with self.runner.session():
            logits = self.queries.logits(x_adv.to(self.runner.device))[0].cpu().double()
        others = logits.clone()
        others[label] = -torch.inf
        behind, size = float(others.max() - logits[label]), float(logits.abs().max())
        norm, sound, semantics = self.options.norm, self.options.sound, self.options.semantics
        crossing = (
            f"{certificate} in {norm} (semantics {semantics}, sound {sound}), and an attack broke it at distance "
            f"{distance!r}: its logit is behind by {behind:.3g}"
        )
        if semantics == "real" and behind <= torch.finfo(self.runner.dtype).eps ** 0.5 * size:
            logger.warning("%s, possibly by the model's own rounding alone; the certificate stays", crossing)
            return
        raise ModelError(
            f"crossing: {crossing}; either a bound is wrong, which is a bug to report with the model, or the model "
            "computes something else for a single image than for a batch"
        )

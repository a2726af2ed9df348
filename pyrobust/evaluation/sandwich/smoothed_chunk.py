"""One chunk of a sandwich of a smoothed classifier: certified lower bounds, and upper bounds from tested attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pyrobust.evaluation.sandwich.smoothed_attack import SmoothedAttack
from pyrobust.evaluation.sweep import Advance
from pyrobust.metrics import distances_above
from pyrobust.runs.examples import encode_examples
from pyrobust.smoothing import ABSTAIN, RandomizedSmoothing


class SmoothedSandwichChunk:
    """Computes both bounds for the images of one chunk; it is the ``Step`` of a sandwich of a smoothed classifier."""

    def __init__(self, smoother: RandomizedSmoothing, parameters: Mapping[str, Any]) -> None:
        self.smoother, self.parameters = smoother, parameters
        tests = {name: parameters[name] for name in ("n_attack", "alpha_attack")}
        clip, shape = parameters["clip"], tuple(parameters["shape"])
        clip = None if clip is None else (clip[0], clip[1])
        self.attack = SmoothedAttack(smoother, clip, shape, **parameters["settings"], **tests)

    def __call__(self, x: Tensor, y: Tensor, indices: Sequence[int], report: Advance) -> dict[str, Any]:
        """Return the run's columns for images x [B, C, H, W], except idx, label and seconds; report samples done."""
        p = self.parameters
        label = y.numpy()
        certified = self.smoother.certify_batch(
            x, n0=p["n0"], n=p["n"], alpha=p["alpha"], indices=indices, progress=report
        )
        prediction = certified.prediction
        wrong = (prediction != label) & (prediction != ABSTAIN)
        upper: list[float | None] = [0.0 if row else None for row in wrong]
        upper_by = ["clean" if row else "" for row in wrong]
        adversarial, p_value = prediction.copy(), np.ones(len(x))
        counts_adv = np.zeros((len(x), self.smoother.num_classes + 1), dtype=np.int64)
        x_adv = x.clone()
        rows = np.flatnonzero(~wrong)
        if len(rows):
            points, promising = self.attack.find(x[rows], y[rows], [indices[row] for row in rows.tolist()])
            tried, points = rows[promising.numpy()], points[promising]
        if len(rows) and len(tried):
            test = self.smoother.predict_batch(
                points, n=p["n_attack"], alpha=p["alpha_attack"], indices=[indices[row] for row in tried.tolist()]
            )
            p_value[tried], counts_adv[tried] = test.p_value, test.counts
            rejected = (test.prediction != label[tried]) & (test.prediction != ABSTAIN)
            distance = distances_above(points, x[tried], self.smoother.norm).tolist()
            for i in np.flatnonzero(rejected).tolist():
                row = int(tried[i])
                upper[row], upper_by[row] = distance[i], p["attack"]
                adversarial[row], x_adv[row] = test.prediction[i], points[i]
        return {
            "prediction": prediction,
            "status": ["abstain" if value == ABSTAIN else "ok" for value in prediction],
            "counts0": certified.counts0,
            "counts": certified.counts,
            "p_lower": certified.p_lower,
            "lower": np.where(prediction == label, certified.radius, 0.0),
            "upper": upper,
            "upper_by": upper_by,
            "adversarial": adversarial,
            "counts_adv": counts_adv,
            "p_value": p_value,
            "x_adv": encode_examples(x_adv) if p["examples"] else [b""] * len(x),
        }

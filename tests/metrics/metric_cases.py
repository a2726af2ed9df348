"""For every torchmetrics metric: its arguments, its inputs, and the function's value on all batches at once."""

from __future__ import annotations

import torch

from pyrobust import metrics

SIZES = (7, 1, 12, 20)
SAMPLES = 200


def batches():
    """Columns by name, one dictionary per batch; the second batch has no correct example."""
    generator = torch.Generator().manual_seed(3)
    other = torch.Generator().manual_seed(4)
    batches = []
    for size in SIZES:
        labels = torch.randint(0, 3, (size,), generator=generator)
        shift = torch.randint(0, 2, (3, size), generator=generator)
        if size == 1:
            shift[0] = 1
        correct = shift[2] == 0
        batches.append(
            {
                "clean": (labels + shift[0]) % 3,
                "adversarial": (labels + shift[1]) % 3,
                "labels": labels,
                "distances": torch.rand(size, generator=generator),
                "success": shift[1] == 1,
                "radius": torch.rand(size, generator=generator, dtype=torch.float64) * correct,
                "correct": correct,
                "robust": shift[0] == 0,
                "votes": torch.randint(90, SAMPLES + 1, (size,), generator=generator),
                "logits": torch.randn(size, 3, generator=other),
                "logit": torch.randn(size, 1, generator=other),
                "side": torch.randint(0, 2, (size,), generator=other),
            }
        )
    return batches


def survival(votes, correct):
    return metrics.survival_curve(votes, SAMPLES, correct)


def gap(robust, radius, correct):
    attacked = metrics.estimate_rate(int(robust.sum()), len(robust))
    return metrics.certification_gap(attacked, metrics.certified_accuracy(radius, correct, [0.4])[0])


PREDICTIONS = ("clean", "adversarial", "labels")
RADII = ("radius", "correct")
VOTES = ("votes", "correct")
LOGITS = ("logits", "labels")

# Name: arguments of the class, columns for `update`, function of these columns.
CASES = {
    "CleanAccuracy": ({}, ("clean", "labels"), metrics.clean_accuracy),
    "StandardRisk": ({}, ("clean", "labels"), metrics.standard_risk),
    "RobustAccuracy": ({}, PREDICTIONS, metrics.robust_accuracy),
    "RobustRisk": ({}, PREDICTIONS, metrics.robust_risk),
    "AttackSuccessRate": ({}, PREDICTIONS, metrics.attack_success_rate),
    "SuccessRateOnCorrect": ({}, PREDICTIONS, metrics.success_rate_on_correct),
    "TargetedSuccessRate": ({}, ("adversarial", "labels"), metrics.targeted_success_rate),
    "MeanDistance": ({}, ("distances", "success"), metrics.mean_distance),
    "PerturbationQuantile": ({"q": 0.3}, ("distances",), lambda d: metrics.perturbation_quantiles(d, [0.3])[0]),
    "CertifiedAccuracy": ({"at": 0.4}, RADII, lambda r, c: metrics.certified_accuracy(r, c, [0.4])[0]),
    "CertificationGap": ({"at": 0.4}, ("robust", *RADII), gap),
    "AverageRadius": ({}, RADII, metrics.average_radius),
    "AverageCertifiedRadius": ({}, RADII, metrics.average_certified_radius),
    "BinaryProvableRobustAccuracy": (
        {"epsilon": 0.3, "lip_const": 2.0},
        ("logit", "side"),
        metrics.BinaryProvableRobustAccuracy(0.3, 2.0),
    ),
    "BinaryProvableAvgRobustness": (
        {"negative_robustness": True},
        ("logit", "side"),
        metrics.BinaryProvableAvgRobustness(negative_robustness=True),
    ),
    "CategoricalProvableRobustAccuracy": (
        {"epsilon": 0.3, "disjoint_neurons": False},
        LOGITS,
        metrics.CategoricalProvableRobustAccuracy(0.3, disjoint_neurons=False),
    ),
    "CategoricalProvableAvgRobustness": (
        {"lip_const": 3.0},
        LOGITS,
        metrics.CategoricalProvableAvgRobustness(3.0),
    ),
    "SurvivalArea": ({"n": SAMPLES}, VOTES, lambda v, c: survival(v, c).area),
    "ShareBelowHalf": ({"n": SAMPLES}, VOTES, lambda v, c: survival(v, c).share_below_half),
    "HardShare": ({"n": SAMPLES, "below": 0.8}, VOTES, lambda v, c: survival(v, c).hard_share(0.8)),
    "SurvivalQuantile": ({"n": SAMPLES, "q": 0.7}, VOTES, lambda v, c: survival(v, c).quantiles([0.7])[0]),
}


def concatenated(parts):
    """Concatenate all batches."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def value_of(name, parts):
    """The function's value on all of these batches."""
    _, columns, function = CASES[name]
    joined = concatenated(parts)
    return function(*(joined[column] for column in columns))


def updated(name, parts):
    """The metric after these batches."""
    from pyrobust.metrics import torchmetrics

    arguments, columns, _ = CASES[name]
    metric = getattr(torchmetrics, name)(**arguments)
    for part in parts:
        metric.update(*(part[column] for column in columns))
    return metric

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


def survival(columns):
    return metrics.survival_curve(columns["votes"], SAMPLES, columns["correct"])


def gap(columns):
    robust = metrics.estimate_rate(int(columns["robust"].sum()), len(columns["robust"]))
    return metrics.certification_gap(
        robust, metrics.certified_accuracy(columns["radius"], columns["correct"], [0.4])[0]
    )


# Name: arguments of the class, columns for `update`, function of all columns.
CASES = {
    "CleanAccuracy": ({}, ("clean", "labels"), lambda c: metrics.clean_accuracy(c["clean"], c["labels"])),
    "StandardRisk": ({}, ("clean", "labels"), lambda c: metrics.standard_risk(c["clean"], c["labels"])),
    "RobustAccuracy": (
        {},
        ("clean", "adversarial", "labels"),
        lambda c: metrics.robust_accuracy(c["clean"], c["adversarial"], c["labels"]),
    ),
    "RobustRisk": (
        {},
        ("clean", "adversarial", "labels"),
        lambda c: metrics.robust_risk(c["clean"], c["adversarial"], c["labels"]),
    ),
    "AttackSuccessRate": (
        {},
        ("clean", "adversarial", "labels"),
        lambda c: metrics.attack_success_rate(c["clean"], c["adversarial"], c["labels"]),
    ),
    "SuccessRateOnCorrect": (
        {},
        ("clean", "adversarial", "labels"),
        lambda c: metrics.success_rate_on_correct(c["clean"], c["adversarial"], c["labels"]),
    ),
    "TargetedSuccessRate": (
        {},
        ("adversarial", "labels"),
        lambda c: metrics.targeted_success_rate(c["adversarial"], c["labels"]),
    ),
    "MeanDistance": ({}, ("distances", "success"), lambda c: metrics.mean_distance(c["distances"], c["success"])),
    "PerturbationQuantile": (
        {"q": 0.3},
        ("distances",),
        lambda c: metrics.perturbation_quantiles(c["distances"], [0.3])[0],
    ),
    "CertifiedAccuracy": (
        {"at": 0.4},
        ("radius", "correct"),
        lambda c: metrics.certified_accuracy(c["radius"], c["correct"], [0.4])[0],
    ),
    "CertificationGap": ({"at": 0.4}, ("robust", "radius", "correct"), gap),
    "AverageRadius": ({}, ("radius", "correct"), lambda c: metrics.average_radius(c["radius"], c["correct"])),
    "AverageCertifiedRadius": (
        {},
        ("radius", "correct"),
        lambda c: metrics.average_certified_radius(c["radius"], c["correct"]),
    ),
    "BinaryProvableRobustAccuracy": (
        {"epsilon": 0.3, "lip_const": 2.0},
        ("logit", "side"),
        lambda c: metrics.BinaryProvableRobustAccuracy(0.3, 2.0)(c["logit"], c["side"]),
    ),
    "BinaryProvableAvgRobustness": (
        {"negative_robustness": True},
        ("logit", "side"),
        lambda c: metrics.BinaryProvableAvgRobustness(negative_robustness=True)(c["logit"], c["side"]),
    ),
    "CategoricalProvableRobustAccuracy": (
        {"epsilon": 0.3, "disjoint_neurons": False},
        ("logits", "labels"),
        lambda c: metrics.CategoricalProvableRobustAccuracy(0.3, disjoint_neurons=False)(c["logits"], c["labels"]),
    ),
    "CategoricalProvableAvgRobustness": (
        {"lip_const": 3.0},
        ("logits", "labels"),
        lambda c: metrics.CategoricalProvableAvgRobustness(3.0)(c["logits"], c["labels"]),
    ),
    "SurvivalArea": ({"n": SAMPLES}, ("votes", "correct"), lambda c: survival(c).area),
    "ShareBelowHalf": ({"n": SAMPLES}, ("votes", "correct"), lambda c: survival(c).share_below_half),
    "HardShare": ({"n": SAMPLES, "below": 0.8}, ("votes", "correct"), lambda c: survival(c).hard_share(0.8)),
    "SurvivalQuantile": ({"n": SAMPLES, "q": 0.7}, ("votes", "correct"), lambda c: survival(c).quantiles([0.7])[0]),
}


def concatenated(parts):
    """Concatenate all batches."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def updated(name, parts):
    """The metric after these batches."""
    from pyrobust.metrics import torchmetrics

    arguments, columns, _ = CASES[name]
    metric = getattr(torchmetrics, name)(**arguments)
    for part in parts:
        metric.update(*(part[column] for column in columns))
    return metric

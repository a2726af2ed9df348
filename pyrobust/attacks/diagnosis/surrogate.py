"""A small net that imitates a model, for transfer attacks."""

from __future__ import annotations

import torch
from torch import nn

from .subject import ExaminedModel

_WIDTH, _ROUNDS, _STEPS_PER_ROUND, _BATCH, _RATE = 128, 10, 30, 128, 3e-3
_MOST_EXAMPLES = 512
# Standard deviation of the noise on the examples, as a share of the clip range; every second copy moves by epsilon.
_NOISE = 0.1


def train_surrogate(subject: ExaminedModel) -> nn.Module | None:
    """Train a net with two hidden layers to predict the model's classes at and near the examples.

    The model is queried at ten points for each of at most 512 examples (Papernot et al., 2017, in a simple form): the
    example itself, random points on the surface of its ball, and the example with Gaussian noise.

    Returns:
        The net, float32, on the model's device; None if the model predicts only one class.
    """
    x = subject.x[:_MOST_EXAMPLES]
    inputs, classes = [], []
    for round_ in range(_ROUNDS):
        if round_ % 2:
            copy = subject.corner(x)
        else:
            noise = torch.randn(x.shape, generator=subject.generator, dtype=torch.float32).to(x)
            spread = _NOISE * (subject.upper - subject.lower) * (round_ > 0)
            copy = (x + spread * noise).clamp(subject.lower, subject.upper)
        logits = subject.logits(copy)
        inputs.append(copy.to(logits.device).float())
        classes.append(subject.predictions(logits).to(logits.device))
    data, labels = torch.cat(inputs), torch.cat(classes)
    data, labels = data[labels >= 0], labels[labels >= 0]
    if not len(data) or bool((labels == labels[0]).all()):
        return None
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(x[0].numel(), _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, logits.shape[1]),
    ).to(data.device, torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), lr=_RATE)
    with torch.inference_mode(False), torch.enable_grad():
        for _ in range(_ROUNDS * _STEPS_PER_ROUND):
            rows = torch.randint(len(data), (_BATCH,), generator=subject.generator).to(data.device)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(data[rows]), labels[rows]).backward()
            optimizer.step()
    return net.eval().requires_grad_(False)

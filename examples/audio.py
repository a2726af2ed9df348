"""Take an audio model from waveforms to a report page: attack it, certify it, and bound it from both sides.

The sounds are made here: noisy tones of three pitches, [N, T], between -1 and 1. Prints clean accuracy; how many sounds
an attack breaks at two epsilons, with the signal-to-perturbation ratio; certified accuracy of the smoothed model; both
bounds of the distance to another class; and the name of the page.
"""

import math

import torch
from torch import Tensor, nn

from pyrobust import PGD, RandomizedSmoothing, attack_dataset, certify_dataset, sandwich_dataset
from pyrobust.report.page import write_page
from pyrobust.zoo import ImageSet

LENGTH, PITCHES = 256, (0.02, 0.05, 0.11)  # samples of a sound; cycles in a sample


def tones(count: int) -> tuple[Tensor, Tensor]:
    """Sounds [N, T] and their pitches [N]."""
    y = torch.arange(count) % len(PITCHES)
    cycles = torch.tensor(PITCHES)[y, None] * torch.arange(LENGTH) + torch.rand(count, 1)
    return (0.5 * torch.sin(2 * math.pi * cycles) + 0.05 * torch.randn(count, LENGTH)).clamp(-1, 1), y


torch.manual_seed(0)
(x_train, y_train), (x, y) = tones(300), tones(60)
data = ImageSet("tones", x, y)
model = nn.Sequential(
    nn.Unflatten(1, (1, LENGTH)), nn.Conv1d(1, 8, 32, 16), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15, len(PITCHES))
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(60):
    loss = nn.functional.cross_entropy(model(x_train + 0.1 * torch.randn_like(x_train)), y_train)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
print(f"clean accuracy: {(model(x).argmax(1) == y).double().mean():.0%} of {len(x)} sounds")

runs = []
for epsilon in (0.02, 0.2):
    attack = PGD(model, epsilon, clip=(-1, 1), steps=20)
    runs.append(attack_dataset(attack, data, out=f"attack-{epsilon}.db"))
    decibels = 20 * math.log10(float(x.square().mean().sqrt()) / epsilon)
    print(f"epsilon {epsilon}, {decibels:.0f} dB below the sound: {(~runs[-1].robust).sum()} broken")

smoother = RandomizedSmoothing(model, sigma=0.25, grid=None)
smoothed = certify_dataset(smoother, data, n=1000, out="smoothed.db", max_images=20)
print(f"smoothed, certified at l2 radius 0.5: {smoothed.certified_accuracy([0.5])[0]:.0%} of 20 sounds")
both = sandwich_dataset(model, data, clip=(-1, 1), out="sandwich.db", max_images=2)
both.check()
lower, upper = both.run.table["lower"], both.run.table["upper"]
print(f"distance of another class, linf, first sound: {lower[0]:.3f} to {upper[0]:.3f}")

write_page("report.html", [*runs, smoothed, both.run], data=data)
print("report.html")

"""Bounds of a model of your own: prove, without randomness, that no small change of an image changes its class.

Trains a small network for a few seconds, then compares what three methods prove at one epsilon, and verifies each image
with the cheapest method that suffices. Prints clean accuracy, one row for each method and the verdicts.
"""

import torch
from torch import nn

from pyrobust import PGD, BoundedModel
from pyrobust.zoo import load_digits

EPSILON = 0.03  # l-infinity: every pixel may change by this much

torch.manual_seed(0)
train, test = load_digits("train"), load_digits()


class Net(nn.Module):
    """A network of supported layers: any forward is captured, without a special base class or a list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.hidden = nn.Linear(256, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The bounds are for pixels in [0, 1], so normalisation belongs in the model.
        z = torch.relu(self.conv((x - 0.5) / 0.25)).flatten(1)
        logits: torch.Tensor = self.out(torch.relu(self.hidden(z)))
        return logits


model = Net()
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(10):
    for rows in torch.randperm(len(train)).split(128):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train.x[rows]), train.y[rows]).backward()
        optimizer.step()

model.eval()
x, y = test.x[:100], test.y[:100]
bounded = BoundedModel(model, x)  # reads the parameters: make it after the last training step
print(f"clean accuracy {(model(x).argmax(1) == y).float().mean():.0%}")
for method in ("ibp", "crown-ibp", "crown"):
    proved = bounded.certify(x, y, EPSILON, method=method, clip=(0, 1))
    print(f"{method:9}  proved at epsilon {EPSILON}: {proved.float().mean():.0%}")

# The attack runs on images that no method proved: those that it breaks are settled, the rest stay unknown.
verdicts = bounded.verify(x, y, EPSILON, clip=(0, 1), attack=PGD(model, EPSILON, seed=0))
for status in ("verified", "falsified", "unknown"):
    print(f"{status:9}  {sum(value == status for value in verdicts.status)} of {len(x)}")

"""Take a tabular model from training to a report page: attack, verify, certify and bound it from both sides.

The table has 64 features of handwritten digits. The epsilon of each feature is a twentieth of its standard deviation,
and so 0 for a feature that never varies. Prints clean accuracy; how many rows bounds verify and an attack falsifies in
these boxes; certified accuracy of the smoothed model; both bounds of the distance to another class; and the name of the
page.
"""

import torch
from torch import nn

from pyrobust import PGD, BoundedModel, RandomizedSmoothing, certify_dataset, sandwich_dataset
from pyrobust.report.page import write_page
from pyrobust.zoo import ImageSet, load_digits

torch.manual_seed(0)
train, test = load_digits("train"), load_digits("test")
x_train, y_train = train.x.flatten(1), train.y
data = ImageSet("table", test.x.flatten(1)[:60].contiguous(), test.y[:60])  # [N, 64]
x, y = data.x, data.y

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(150):
    noisy = x_train + 0.25 * torch.randn_like(x_train)
    loss = nn.functional.cross_entropy(model(noisy), y_train)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
print(f"clean accuracy: {(model(x).argmax(1) == y).double().mean():.0%} of {len(x)} rows")

# Each feature has its own epsilon, [1, D], and its own range of values, [D].
epsilon = 0.05 * x_train.std(0, keepdim=True).double()
clip = torch.minimum(x_train.amin(0), x.amin(0)), torch.maximum(x_train.amax(0), x.amax(0))
for scale in (1, 4):
    attack = PGD(model, scale * epsilon, clip=clip, steps=20)
    verdicts = BoundedModel(model, x).verify(x, y, scale * epsilon, clip=clip, attack=attack.generate)
    counts = {status: verdicts.status.count(status) for status in ("verified", "falsified", "unknown")}
    print(f"epsilon times {scale}: " + ", ".join(f"{count} {status}" for status, count in counts.items()))

smoother = RandomizedSmoothing(model, 10, sigma=0.25, grid=None)
certified = certify_dataset(smoother, data, n=1000, out="smoothed.db", max_images=30)
print(f"smoothed, certified at l2 radius 0.25: {certified.certified_accuracy([0.25])[0]:.0%} of 30 rows")
# The radii describe a box, and both bounds are multiples of it.
both = sandwich_dataset(model, data, box=epsilon, clip=clip, out="sandwich.db", max_images=3)
both.check()
lower, upper = both.run.table["lower"], both.run.table["upper"]
print(f"distance of another class, first row: {lower[0]:.2f} to {upper[0]:.2f} times epsilon")

write_page("report.html", [certified, both.run], data=data)
print("report.html")

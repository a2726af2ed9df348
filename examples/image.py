"""Take an image model from arrays to a report page: attack it, verify it, certify it, and bound it from both sides.

The images are NumPy arrays of float64 in a file with arrays of its own names, as in many data sets. Prints accuracy
with and without an attack; how many images bounds verify; certified accuracy of the smoothed model; both bounds of the
distance to another class; and the name of the page.
"""

import numpy as np
import torch
from torch import nn

from pyrobust import PGD, RandomizedSmoothing, attack_dataset, certify_dataset, sandwich_dataset, verify_dataset
from pyrobust.report.page import write_page
from pyrobust.zoo import load_data, load_digits

torch.manual_seed(0)
train, test = load_digits("train"), load_digits("test")
images, labels = test.x[:, 0].numpy().astype(np.float64), test.y.numpy()  # [N, 8, 8]
np.savez("digits.npz", test_images=images[:60], test_labels=labels[:60])
data = load_data("npz:digits.npz:test_images,test_labels")  # on the command line: --data with the same text

model = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(120):
    loss = nn.functional.cross_entropy(model(train.x + 0.2 * torch.randn_like(train.x)), train.y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()

attack = PGD(model, 1 / 16, steps=20)
x, y = images[:60, None].astype(np.float32), labels[:60]
rates = attack.evaluate(x, y, attack(x, y))  # arrays serve as well as tensors
print(f"accuracy: {rates['clean_accuracy']:.0%}, {rates['robust_accuracy']:.0%} under PGD at 1/16")
attacked = attack_dataset(attack, data, out="attacked.db")
verified = verify_dataset(model, data, epsilons=[1 / 64], out="verified.db")
print(f"verified at epsilon 1/64: {verified.verified_accuracy(1 / 64).value:.0%} of {len(data)} images")

smoother = RandomizedSmoothing(model, sigma=0.25)  # the number of classes is that of the model's outputs
smoothed = certify_dataset(smoother, data, n=1000, out="smoothed.db", max_images=20)
print(f"smoothed, certified at l2 radius 0.25: {smoothed.certified_accuracy([0.25])[0]:.0%} of 20 images")
both = sandwich_dataset(model, data, out="sandwich.db", max_images=2)
both.check()
lower, upper = both.run.table["lower"], both.run.table["upper"]
print(f"distance of another class, linf, first image: {lower[0]:.3f} to {upper[0]:.3f}")

write_page("report.html", [attacked, verified, smoothed, both.run], data=data)
print("report.html")

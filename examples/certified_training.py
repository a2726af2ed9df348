"""Certified training: put the bounds into the loss, then verify what was trained.

Trains the same network three times for a few seconds: without bounds, with IBP and with CROWN-IBP in the loss. Prints
for each its clean accuracy, the share of test images proved robust by bounds at one epsilon, and the share that
withstands PGD.
"""

import torch
from torch import nn

from pyrobust import PGD, BoundedModel, crown_ibp_loss, ibp_loss
from pyrobust.bounds import DifferentiableBounds
from pyrobust.training import ramp
from pyrobust.zoo import load_digits

EPSILON, EPOCHS, CLIP = 0.05, 15, (0.0, 1.0)

train, test = load_digits("train"), load_digits()
STEPS = EPOCHS * 12  # 1,415 images in batches of 128


def fit(method: str) -> nn.Module:
    """Train a network; "none" leaves the bounds out of the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    ).eval()
    bounds = DifferentiableBounds(model, train.x[:1])  # follows the parameters as they change
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    step = 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(train)).split(128):
            x, y = train.x[rows], train.y[rows]
            # At full epsilon from the start, a fresh network learns a constant: so epsilon and the bounds' weight grow.
            epsilon = ramp(step, 0, STEPS / 2, 0.0, EPSILON)
            kappa = ramp(step, 0, STEPS / 2, 1.0, 0.5)
            if method == "ibp":
                loss = ibp_loss(bounds, x, y, epsilon, kappa=kappa, clip=CLIP)
            elif method == "crown-ibp":
                loss = crown_ibp_loss(bounds, x, y, epsilon, kappa=kappa, beta=kappa, clip=CLIP)
            else:
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    return model


print("training   clean  proved  PGD")
for method in ("none", "ibp", "crown-ibp"):
    model = fit(method)
    # Training proves nothing, as its bounds are rounded; BoundedModel rounds outward. Make it after the last step.
    proved = BoundedModel(model, test.x[:1]).certify(test.x, test.y, EPSILON, clip=CLIP)
    attack = PGD(model, EPSILON, steps=20, seed=0)
    rates = attack.evaluate(test.x, test.y, attack(test.x, test.y))
    clean, robust = rates["clean_accuracy"], rates["robust_accuracy"]
    print(f"{method:9}  {clean:5.1%}  {proved.double().mean():6.1%}  {robust:.1%}")

"""First certificate: how far may a digit be changed before a smoothed classifier can err?

Certifies handwritten digits by randomized smoothing (Cohen, Rosenfeld and Kolter, 2019). Prints one row for each of
five digits: its label, the class that is certified and the certified l2 radius; then certified accuracy at three radii.
"""

from pyrobust import ABSTAIN, RandomizedSmoothing, certified_accuracy
from pyrobust.zoo import load_digits, load_model

digits = load_digits()  # 382 test images, x float32 [N, 1, 8, 8] in [0, 1] and y int64 [N]
model = load_model("zoo:digits-smooth-0.25")  # any torch.nn.Module that returns logits works here

# sigma should be that of the noise in training: less noise proves smaller radii, more noise hides the digit.
smoother = RandomizedSmoothing(model, num_classes=10, sigma=0.25, seed=0)

# n0 samples select the class, n fresh ones bound its probability. Each certificate is wrong with probability at most
# alpha. A larger n proves larger radii: papers use 100,000.
x, y = digits.x[::77], digits.y[::77].numpy()
result = smoother.certify_batch(x, n0=100, n=10_000, alpha=0.001)

print("label  certified class  l2 radius")
for label, prediction, radius in zip(y, result.prediction, result.radius, strict=True):
    print(f"{label:5}  {'abstained' if prediction == ABSTAIN else prediction:>15}  {radius:9.3f}")

# Only images that are certified for their label count. The rates have exact intervals, which are wide for five images.
radii = [0.0, 0.25, 0.5]
for radius, rate in zip(radii, certified_accuracy(result.radius, result.prediction == y, radii), strict=True):
    print(f"certified accuracy at radius {radius:.2f}: {rate.value:.0%} ({rate.lower:.0%} to {rate.upper:.0%})")

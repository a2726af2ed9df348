"""Robustness from both sides: certified and attacked robustness of the same images, and what lies between.

For each of three digits, finds the largest l-infinity radius that bounds prove and the distance of the nearest
adversarial example that attacks find (inf: none); then the same in l2 for a smoothed classifier. Prints these distances
in one row for each digit, and the shares that are certified, undecided and attacked at one radius of each classifier.
"""

from pyrobust import RandomizedSmoothing, sandwich
from pyrobust.zoo import load_digits, load_model

digits = load_digits()
x, y = digits.x[:3], digits.y[:3]

# The two classifiers are different functions: a proof for one says nothing about the other.
base = sandwich(load_model("zoo:digits-ibp-0.10"), x, y, norm="linf", seed=0)
# Few samples and steps, so that the example takes seconds; the defaults narrow the gap.
smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), num_classes=10, sigma=0.25)
smoothed = sandwich(smoother, x, y, n=1_000, n_attack=500, steps=5, draws=10)

# certified <= true distance <= attacked. The certificates of the smoothed classifier hold with probability 1 - alpha.
print("       base, l-infinity       smoothed, l2")
print("label  certified  attacked    certified  attacked")
columns = (y.tolist(), base.lower, base.upper, smoothed.lower, smoothed.upper)
for label, lower, upper, lower_l2, upper_l2 in zip(*columns, strict=True):
    print(f"{label:5}  {lower:9.4f}  {upper:8.4f}    {lower_l2:9.4f}  {upper_l2:8.4f}")

for name, both, radius in (("base", base, 0.15), ("smoothed", smoothed, 0.5)):
    both.check()  # raises if attacks get inside certificates more often than chance explains
    shares = both.shares([radius])
    rates = (f"{kind} {getattr(shares, kind)[0].value:.0%}" for kind in ("certified", "undecided", "attacked"))
    print(f"{name} at radius {radius}:", ", ".join(rates))

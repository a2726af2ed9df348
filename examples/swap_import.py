"""Swap one import: a script for the reference implementation of randomized smoothing runs as it is.

The loop is that of certification scripts written for ``from core import Smooth`` (Cohen, Rosenfeld and Kolter, 2019): a
model, a data set, one image after the other, and a table separated by tabs. Only the import is changed. Prints that
table, without the times, and the certified accuracy at radius 0.25.
"""

from torch.utils.data import DataLoader, TensorDataset

from pyrobust.compat.smoothing import Smooth  # was: from core import Smooth
from pyrobust.zoo import load_digits, load_model

digits = load_digits()
loader = DataLoader(TensorDataset(digits.x, digits.y))
base_classifier = load_model("zoo:digits-smooth-0.25")  # your own network and checkpoint

# The noise follows from the seed and the image: the table is the same on every machine and for every order of images.
smoothed_classifier = Smooth(base_classifier, num_classes=10, sigma=0.25)
images = certified = 0
print("idx", "label", "predict", "radius", "correct", sep="\t")
for i, (x, label) in enumerate(loader):
    if i % 40:  # every 40th image, like --skip in such scripts
        continue
    prediction, radius = smoothed_classifier.certify(x[0], n0=100, n=2_000, alpha=0.001, batch_size=500)
    correct = int(prediction == label)
    print(i, int(label), prediction, f"{radius:.3}", correct, sep="\t")
    images += 1
    certified += correct and radius >= 0.25
print(f"certified accuracy at radius 0.25: {certified} of {images}")

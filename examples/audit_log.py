"""Audit a certification log in the format in which such logs are published: find what in it cannot be true.

Certifies 60 digits, writes their log as the reference script does (Cohen, Rosenfeld and Kolter, 2019), and raises one
radius in a copy. Both files stay in the working folder. Prints the faults that the audit finds in each, what the forged
row does to the survival of p_A and to the average certified radius, and the notes on the second log. For the log of a
paper keep the last loop, or run ``pyrobust audit LOG``.
"""

from pathlib import Path

from pyrobust import RandomizedSmoothing, audit, certify_dataset, read_certification_log
from pyrobust.evaluation import write_log
from pyrobust.zoo import load_digits, load_model

HONEST, FORGED = Path("honest_sigma0.25.tsv"), Path("forged_sigma0.25.tsv")  # sigma is read from the name

smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), num_classes=10, sigma=0.25, seed=0)
run = certify_dataset(smoother, load_digits(), n=1_000, max_images=60)
write_log(run, HONEST, replace=True)  # columns idx, label, predict, radius, correct and time

# Plant one fault: line 8 claims a radius that 1,000 samples cannot prove, whatever the votes.
lines = HONEST.read_text().splitlines()
row = lines[7].split("\t")
lines[7] = "\t".join([*row[:3], "1.25", *row[4:]])
FORGED.write_text("\n".join(lines) + "\n")

for path in (HONEST, FORGED):
    # Such logs name neither n nor alpha. If these are not given, the usual 100,000 and 0.001 are assumed and checked.
    result = audit(read_certification_log(path, n=1_000, alpha=0.001))
    print(f"{path}: {len(result.log)} rows, faults: {len(result.faults)}")
    for fault in result.faults:
        print("  fault ", fault.message)
    metrics = result.metrics
    if metrics.survival is not None:  # it is known because n, alpha and sigma are
        print(f"  area under the survival curve of p_A {metrics.survival.area:.3f}")
    print(f"  average certified radius, which ranks nothing {metrics.average_certified_radius.value:.3f}")
for note in result.notes:
    print("  note  ", note.message)

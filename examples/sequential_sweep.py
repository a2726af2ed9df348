"""A sweep that survives crashes, and draws only the samples that it needs.

Certifies 96 digits at two radii by sequential sampling, into the run file sequential.db of the working folder. The
first start is interrupted half-way, as if by Ctrl-C or a job's time limit; the second, the same call, resumes. Prints
the images in the file after each start, certified accuracy, and the mean number of samples in comparison with a fixed
n. Started again, the script finds the run complete and prints the same table.
"""

from pyrobust import RandomizedSmoothing, Run, certify_dataset
from pyrobust.evaluation import SweepProgress
from pyrobust.zoo import load_digits, load_model

OUT, N, RADII = "sequential.db", 100_000, [0.1, 0.25]


def interrupt_half_way(progress: SweepProgress) -> None:
    """Simulate a crash or a kill, which lose about a second of work."""
    if progress.done >= progress.total / 2:
        raise KeyboardInterrupt


digits = load_digits()
smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), num_classes=10, sigma=0.25, seed=0)
for progress in (interrupt_half_way, False):
    try:
        # A start with other parameters, another model or other data is refused, with the difference.
        run = certify_dataset(
            smoother, digits, out=OUT, method="sequential", radii=RADII, n=N, max_images=96, progress=progress
        )
    except KeyboardInterrupt:
        run = Run(OUT)  # every finished image is there
    print(f"{OUT}: {len(run)} of {len(run.expected)} images")

for radius, accuracy in zip(RADII, run.certified_accuracy(RADII), strict=True):
    print(f"certified accuracy at radius {radius}: {accuracy:.1%}")
print(f"samples per image: {run.table['samples'].mean():,.0f}, a fixed n draws {N:,}")

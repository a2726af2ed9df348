"""Captions of rates: the method, budget, confidence, model and data on which the rates depend."""

from __future__ import annotations

from typing import Any

from pyrobust.errors import InputTypeError
from pyrobust.evaluation import Run

# Digits of a hash: enough to distinguish the data sets and models that one compares.
_DIGITS = 12
# Most set-aside chunks that a caption lists, and most characters of their errors.
_CHUNKS, _ERROR = 3, 100
#: Why no average of certified radii ranks classifiers.
ACR_NOTE = (
    "The average certified radius ranks nothing here: easy images outweigh all others, it moves with n and alpha, and "
    "a constant classifier reaches any value with a large enough sigma (Sun, Mao, Müller and Vechev, 2025)."
)
ACR_NOTE_OF_PROOFS = (
    "The average certified radius ranks nothing: easy images outweigh all others, and a constant classifier has an "
    "unlimited one."
)
#: Definition of the p_A of a run.
P_A_NOTE = (
    "p_A: k/n, an estimate and no bound, with k of the n noisy samples of an image in the correct class; 0 where the "
    "smoothed prediction is wrong or abstains. Area: under the survival curve from 1/2 to 1, over its largest possible."
)
NO_P_A_NOTE = (
    "No distribution of p_A: sequential sampling stops once the radii are decided, and its votes then favour a side."
)


def checked_run(run: Run) -> Run:
    """Return a run; raise InputTypeError for anything else."""
    if not isinstance(run, Run):
        raise InputTypeError("run", "a Run", type(run).__name__, "Run(path) reads one")
    return run


def describe_run(run: Run) -> list[str]:
    """Describe a run in a few lines: its method, norm, noise, budget, confidence, hashes and coverage.

    Args:
        run: a run of any kind.

    Returns:
        Lines of text; the first states what is certified or attacked.

    >>> from pyrobust.evaluation import certify_dataset
    >>> from pyrobust.smoothing import RandomizedSmoothing
    >>> from pyrobust.zoo import load_data, load_model
    >>> smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, sigma=0.25, grid=None)
    >>> run = certify_dataset(smoother, load_data("digits"), n=100, max_images=2, model_name="zoo:digits-smooth-0.25")
    >>> print(describe_run(run)[0])
    Smoothed classifier, gaussian noise of sigma 0.25; l2 radii, method fixed, guarantee real
    """
    header, parameters = checked_run(run).header, run.parameters
    unfinished = "" if run.complete else f"; NOT FINISHED: {len(run)} of {len(run.expected)} images"
    return [
        *header.type.describe(header),
        describe_model(header.model, header.model_sha256, parameters["dtype"]),
        describe_data(header.data, header.data_sha256, parameters, len(run)) + unfinished,
        *describe_chunks(run.machines, run.set_aside),
    ]


def warnings_of(run: Run) -> list[str]:
    """Return the lines of `describe_run` that report missing results: an unfinished run, or chunks set aside."""
    return [line for line in describe_run(run) if "NOT FINISHED" in line or line.startswith("SET ASIDE")]


def describe_chunks(machines: dict[str, int], set_aside: dict[int, str]) -> list[str]:
    """Describe the machines if there are several, and any chunks that were set aside without a result.

    >>> describe_chunks({"cpu": 96, "gpu": 32}, {128: "worker lost: signal 9"})
    ['Machines: 96 images by cpu; 32 images by gpu', 'SET ASIDE: 1 chunk (from image 128: worker lost: signal 9)']
    """
    lines = []
    if len(machines) > 1:
        lines.append("Machines: " + "; ".join(f"{images} images by {name}" for name, images in machines.items()))
    if set_aside:
        chunks = "chunk" if len(set_aside) == 1 else "chunks"
        reasons = [f"from image {first}: {error[:_ERROR]}" for first, error in sorted(set_aside.items())[:_CHUNKS]]
        more = ["…"] if len(set_aside) > _CHUNKS else []
        lines.append(f"SET ASIDE: {len(set_aside)} {chunks} ({'; '.join(reasons + more)})")
    return lines


def describe_model(name: str, sha256: str, dtype: str) -> str:
    """Describe a model in one line: name, hash and dtype.

    >>> describe_model("net", "", "float32")
    'Model net, sha256 unknown, float32'
    """
    return f"Model {name}, sha256 {sha256[:_DIGITS] or 'unknown'}, {dtype}"


def describe_data(name: str, sha256: str, selection: dict[str, Any], used: int) -> str:
    """Describe a data set in one line: its name, its hash, the number of images used, and how they were selected.

    ``selection`` holds the parameters "images", "skip", "max" and "shard" of a run. ``used`` is the number of results
    of the run.

    >>> describe_data("digits", "b" * 64, {"images": 382, "skip": 2, "max": None, "shard": None}, 191)
    'Data digits, sha256 bbbbbbbbbbbb, 191 of 382 images (one in 2)'
    >>> describe_data("digits", "b" * 64, {"images": 300, "skip": 1, "max": 400, "shard": None}, 300)
    'Data digits, sha256 bbbbbbbbbbbb, 300 of 300 images'
    """
    phrases = [f"one in {selection['skip']}" if selection["skip"] > 1 else ""]
    # A maximum above the number of images does not limit the selection.
    limited = selection["max"] is not None and selection["max"] <= len(range(0, selection["images"], selection["skip"]))
    phrases.append(f"the first {selection['max']}" if limited else "")
    phrases.append("shard {}/{}".format(*selection["shard"]) if selection["shard"] is not None else "")
    phrases = [phrase for phrase in phrases if phrase]
    chosen = f" ({', '.join(phrases)})" if phrases else ""
    return f"Data {name}, sha256 {sha256[:_DIGITS]}, {used} of {selection['images']} images{chosen}"

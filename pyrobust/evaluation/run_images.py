"""Save the adversarial examples of a run as image files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from pyrobust.errors import InputError
from pyrobust.runs.run import Run
from pyrobust.zoo import save_images

#: The grid of image files.
BYTES = Fraction(1, 255)


def save_run_images(run: Run, path: str | os.PathLike[str], indices: Sequence[int] | None = None) -> None:
    """Save the adversarial examples of an attack with ``grid="1/255"`` as PNG files or as one .npz file.

    Each PNG file is named after the data-set index of its image. Next to the files is a table, images.tsv. Its columns
    are index, label, prediction (at the image itself), adversarial (the prediction at x_adv), distance and broken_by. A
    second call, for a resumed run or another shard, adds its images to the folder. ``load_data("folder:PATH")`` reads
    the images back, bit for bit.

    Args:
        run: run of an attack with ``grid="1/255"``, with stored examples.
        path: the folder or npz file, see ``pyrobust.zoo.save_images``.
        indices: data-set indices of the images to save. Default: all images of the run.

    Raises:
        InputError: another kind of run, an image that the run lacks, or a path that may not be written.
        MissingExtraError: PNG files are to be written, but Pillow is not installed.
        StoreError: a file cannot be written.

    >>> import tempfile
    >>> from pyrobust.attacks import PGD
    >>> from pyrobust.evaluation import attack_dataset
    >>> from pyrobust.zoo import load_data, load_model
    >>> digits = load_data("digits")
    >>> data = (digits.x.mul(255).round() / 255, digits.y)
    >>> run = attack_dataset(PGD(load_model("zoo:digits-smooth-0.25"), "20/255", grid="1/255"), data, max_images=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_run_images(run, folder)
    ...     bool((load_data(f"folder:{folder}").x == run.examples()).all())
    True
    """
    if (
        "broken_by" not in run.header.type.columns
        or run.parameters.get("grid") != str(BYTES)
        or not run.parameters["examples"]
    ):
        raise InputError(
            "run",
            "an attack with grid 1/255 and its examples: other images would change in a file",
            hint='attack again with grid="1/255" (--grid 1/255)',
        )
    x_adv = run.examples(indices)
    rows = slice(None) if indices is None else np.searchsorted(run.table["index"], np.asarray(indices))
    table = {name: column[rows].tolist() for name, column in run.table.items()}
    names = ("prediction", "adversarial", "distance", "broken_by")
    columns = {name: [_cell(value) for value in table[name]] for name in names}
    save_images(path, x_adv, table["label"], indices=table["index"], columns=columns, about=_about(run))


def _cell(value: object) -> object:
    """Return a table value unchanged, but empty text in place of NaN."""
    return "" if value != value else value


def _about(run: Run) -> str:
    """Describe the origin of the images; shards of one sweep have the same text, and may therefore share a folder."""
    header, parameters = run.header, run.parameters
    execution = header.type.execution(grid=False)
    common = {name: value for name, value in sorted(parameters.items()) if name not in execution}
    digest = hashlib.sha256(json.dumps([common, header.model_sha256, header.data_sha256]).encode()).hexdigest()
    size = "minimum" if header.type.stepwise else f"epsilon {parameters['epsilon']}"
    return (
        f"{parameters['attack']}, {parameters['norm']} {size}; model {header.model}, data "
        f"{header.data}; sweep {digest[:16]}"
    )

"""Drop-in replacement for RobustBench's evaluation loop (Croce et al., 2021), on local data.

Change ``from robustbench.eval import benchmark`` to ``from pyrobust.compat.robustbench import benchmark``. Differences:

- nothing is downloaded: the test set is a file, or is given with ``data=``;
- AutoAttack is that of ``pyrobust.compat.autoattack``: random numbers depend on seed 0 and an example's position, not
  on ``batch_size``, and an example counts as broken only if it is also misclassified in a batch of one;
- the threat model "corruptions" is not supported;
- with ``to_disk``, an existing file keeps its other fields, and a file that is not a model info is not overwritten.

The printed lines, the result and the file have RobustBench's form.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrobust.checks import count, kind, non_negative
from pyrobust.correctness import Judge
from pyrobust.errors import FileFormatError, InputError
from pyrobust.evaluation.arguments import Data, image_set
from pyrobust.runner import Classifier, Runner
from pyrobust.runs.settings import SweepSettings
from pyrobust.zoo import load_data
from pyrobust.zoo.files import write_atomically
from pyrobust.zoo.untrusted import existing_file

from .autoattack import AutoAttack

# RobustBench's fields, in its order.
_FIELDS = (
    "link",
    "name",
    "authors",
    "additional_data",
    "number_forward_passes",
    "dataset",
    "venue",
    "architecture",
    "eps",
    "clean_acc",
    "reported",
    "corruptions_acc",
    "autoattack_acc",
    "footnote",
)
_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class ModelInfo:
    """Accuracies of a model, from a model info file of RobustBench.

    Attributes:
        name: name of the model; if the file does not state it, the name of the file.
        dataset: name, such as "cifar10".
        eps: radius; None if the file has none. A fraction in the file, such as "8/255", is converted to a number.
        clean_accuracy, robust_accuracy: shares in [0, 1]; robust accuracy is the one under AutoAttack. None if the file
            has null or, for robust accuracy, no such field. A file without clean_acc is not a model info.
        fields: the whole content of the file.
    """

    name: str
    dataset: str | None
    eps: float | None
    clean_accuracy: float | None
    robust_accuracy: float | None
    fields: dict[str, Any]


def benchmark(
    model: Classifier,
    n_examples: int = 10_000,
    dataset: Any = "cifar10",
    threat_model: Any = "Linf",
    to_disk: bool = False,
    model_name: str | None = None,
    data_dir: str | os.PathLike[str] = "./data",
    device: torch.device | str | None = None,
    batch_size: int = 32,
    eps: float | None = None,
    log_path: str | os.PathLike[str] | None = None,
    preprocessing: Any = None,
    *,
    data: Data | str | None = None,
) -> tuple[float, float]:
    """Measure clean accuracy and robust accuracy under the standard AutoAttack.

    Args:
        model: maps images in [0, 1] to logits.
        n_examples: number of images to use, starting with the first.
        dataset: name of the data set, such as "cifar10", or RobustBench's enumeration.
        threat_model: "Linf" or "L2", or RobustBench's enumeration.
        to_disk: write ``model_info/DATASET/THREAT/MODEL_NAME.json`` in the working directory.
        model_name: required with to_disk.
        data_dir: folder with the test set: ``DATASET.npz`` with arrays x and y (``pyrobust.zoo.load_data``).
        device: where to run; the model is moved there. Default: where the model is.
        batch_size: rows per forward pass.
        eps: radius of the ball, required.
        log_path: file to which AutoAttack's lines are appended.
        preprocessing: not supported; give the images as the model takes them.
        data: the test set, instead of the file in ``data_dir``: any data that ``attack_dataset`` takes, or a spec such
            as "npz:FILE".

    Returns:
        (clean accuracy, robust accuracy), each in [0, 1].

    Raises:
        InputError: a value out of range, or a threat model or an argument that is not supported.
        FileFormatError: a missing or broken data file; or an existing file at the path of the model info that holds
            something else.
        StoreError: the model info cannot be written.

    >>> import contextlib, io
    >>> from pyrobust.zoo import load_model
    >>> net = load_model("zoo:digits-smooth-0.25")
    >>> with contextlib.redirect_stdout(io.StringIO()) as printed:
    ...     accuracies = benchmark(net, 10, "digits", eps=0.5, data="digits")
    >>> accuracies, printed.getvalue().splitlines()[-1]
    ((1.0, 0.0), 'Adversarial accuracy: 0.00%')
    """
    dataset, threat = getattr(dataset, "value", dataset), getattr(threat_model, "value", threat_model)
    if threat not in ("Linf", "L2"):
        raise InputError("threat_model", "Linf or L2", repr(threat))
    if eps is None:
        raise InputError("eps", "the radius of the ball", "None")
    if preprocessing is not None:
        raise InputError("preprocessing", "None", hint="give the images as the model takes them, with data=")
    path = None
    if to_disk:
        if not model_name:
            raise InputError("model_name", "a name with to_disk=True", "None")
        path = Path("model_info") / str(dataset) / threat / f"{model_name}.json"
    written = _fields_of(path) if path is not None and path.exists() else {}
    x, y = _images(data if data is not None else f"npz:{Path(data_dir) / f'{dataset}.npz'}", n_examples)
    runner = Runner(model, device=device, batch_size=count("batch_size", batch_size))
    judge = Judge(runner)
    clean = float(judge.correct(x, y).double().mean())
    print(f"Clean accuracy: {clean:.2%}")
    radius = non_negative("eps", eps)
    adversary = AutoAttack(model, norm=threat, eps=radius, version="standard", device=runner.device, log_path=log_path)
    x_adv: Any = adversary.run_standard_evaluation(x, y, bs=batch_size)
    robust = float(judge.correct(x_adv, y).double().mean())
    print(f"Adversarial accuracy: {robust:.2%}")
    if path is not None:
        measured = {"dataset": dataset, "eps": eps, "clean_acc": clean, "autoattack_acc": robust}
        content = {name: None for name in _FIELDS} | written | measured
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content, indent=2).encode())
    return clean, robust


def read_model_info(path: str | os.PathLike[str]) -> ModelInfo:
    """Read a model info file of RobustBench, from its leaderboard or written by ``benchmark``.

    The leaderboard writes percentages as text ("59.53"); ``benchmark`` writes shares as numbers (0.5953).

    Args:
        path: a JSON file, ``model_info/DATASET/THREAT/NAME.json``.

    Raises:
        FileFormatError: a file that is missing or too large, or is not a model info.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "Net2020.json"
    ...     _ = path.write_text('{"clean_acc": "89.69", "autoattack_acc": "59.53", "eps": "8/255"}')
    ...     info = read_model_info(path)
    >>> info.name, info.robust_accuracy, info.eps == 8 / 255
    ('Net2020', 0.5953, True)
    """
    path = existing_file(Path(path))
    fields = _fields_of(path)
    shares = {name: _share(path, name, fields.get(name)) for name in ("clean_acc", "autoattack_acc")}
    texts = {name: fields.get(name) for name in ("name", "dataset")}
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise FileFormatError(f"{path}: {name}: expected text, got {kind(text)}")
    return ModelInfo(
        texts["name"] or path.stem,
        texts["dataset"],
        _radius(path, fields.get("eps")),
        shares["clean_acc"],
        shares["autoattack_acc"],
        fields,
    )


def _images(data: Data | str, n_examples: int) -> tuple[Tensor, Tensor]:
    limit = count("n_examples", n_examples)
    images = image_set(load_data(data, limit) if isinstance(data, str) else data, SweepSettings(max_images=limit))
    return images.read(range(min(limit, len(images))))


def _fields_of(path: Path) -> dict[str, Any]:
    """Return the content of a model info file; raise FileFormatError for any other file."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
        content = json.loads(text) if len(text) <= _LARGEST_FILE else None
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: expected a model info file of RobustBench: {error}") from None
    if not isinstance(content, dict) or "clean_acc" not in content:
        raise FileFormatError(f"{path}: expected a model info file of RobustBench, a JSON object with clean_acc")
    return content


def _share(path: Path, name: str, value: Any) -> float | None:
    """Return an accuracy in [0, 1]; any text, and any number above 1, is read as a percentage."""
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    share = number / 100 if isinstance(value, str) or number > 1 else number
    if not 0 <= share <= 1:
        raise FileFormatError(f"{path}: {name}: expected an accuracy, in percent or in [0, 1], got {str(value)[:40]!r}")
    return share


def _radius(path: Path, value: Any) -> float | None:
    if value is None:
        return None
    numerator, slash, denominator = str(value).partition("/")
    try:
        radius = float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        radius = math.nan
    if not (math.isfinite(radius) and radius >= 0):
        raise FileFormatError(f"{path}: eps: expected a radius such as 0.5 or 8/255, got {str(value)[:40]!r}")
    return radius

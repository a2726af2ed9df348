"""Models of RobustBench (Croce et al., 2021), from local weight files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from torch import nn

from pyrobust.checks import choice, file_path
from pyrobust.errors import FileFormatError, InputError, MissingExtraError
from pyrobust.zoo.untrusted import existing_file
from pyrobust.zoo.weights import find_state_dict, fit_tensors, read_state_dict, read_torch

# Parts of parameter names that RobustBench inserts or leaves out.
_WRAPPERS = ("module", "_orig_mod", "model")
# Constants that the architectures set and some files lack, and tensors in some files that the architectures do not use.
_CONSTANTS = ("mu", "sigma", "mean", "std")
_UNUSED = ("model_preact_hl1", "scores")


def load_robustbench(name: str, weights: str | Path | None = None) -> nn.Module:
    """Load a model of RobustBench, in eval mode.

    Args:
        name: NAME or DATASET/THREAT/NAME, such as "Carmon2019Unlabeled" or "cifar10/L2/Rice2020Overfitting".
        weights: weight file. By default, it is ``models/DATASET/THREAT/NAME.pt`` in the working directory. If a model
            consists of several networks, ``weights`` cannot be given. Its files are ``NAME.pt_m0.pt``,
            ``NAME.pt_m1.pt``, … in the same folder.

    Raises:
        InputError: the model is unknown, or RobustBench has no file of its weights.
        FileFormatError: the weights are missing, damaged or refused, or do not fit the model.
        MissingExtraError: RobustBench or a package that it needs is not installed.
    """
    parts = name.split("/")
    if len(parts) not in (1, 3) or not all(parts):
        raise InputError("model", "robustbench:NAME or robustbench:DATASET/THREAT/NAME", f"robustbench:{name}")
    dataset, threat, name = parts if len(parts) == 3 else ["cifar10", "Linf", name]
    entry = _entry(dataset, threat, name)
    path = Path("models") / dataset / threat / f"{name}.pt"
    files = entry["gdrive_id"]
    if files is None or (dataset == "imagenet" and "Standard" in name):
        raise InputError(
            "model",
            "a model whose weights RobustBench keeps in a file",
            f"{name}, which another package downloads",
            "load it in a function of yours, --model module:callable",
        )
    if not isinstance(files, list):
        path = path if weights is None else file_path("weights", weights)
        _check_there(path, dataset, threat, name, passed=weights is not None)
        model: nn.Module = entry["model"]()
        _fit(model, path)
        return model.eval()
    if weights is not None:
        raise InputError("weights", f"None for {name}, which has {len(files)} files", repr(str(weights)))
    paths = [Path(f"{path}_m{i}.pt") for i in range(len(files))]
    for file in paths:
        _check_there(file, dataset, threat, name)
    ensemble: Any = entry["model"]()
    for member, file in zip(ensemble.models, paths, strict=True):
        _fit(member, file)
    ensemble.eval()
    result: nn.Module = ensemble
    return result


def _entry(dataset: str, threat: str, name: str) -> dict[str, Any]:
    """Return the model's entry in RobustBench's table; raise InputError if there is none."""
    try:
        model_dicts: Any = importlib.import_module("robustbench.model_zoo").model_dicts
    except ImportError as error:
        raise MissingExtraError(
            f"robustbench: its architectures need its package and those that it imports ({error}); install them with "
            "pip install git+https://github.com/RobustBench/robustbench"
        ) from error
    table = {key.value: {kind.value: models for kind, models in value.items()} for key, value in model_dicts.items()}
    models: dict[str, Any] = table[choice("model: dataset", dataset, tuple(table))][
        choice("model: threat model", threat, tuple(table[dataset]))
    ]
    if name not in models:
        near = [other for other in models if other.lower().startswith(name.lower()[:4])] or list(models)
        examples = ", ".join(near[:10])
        raise InputError(
            "model", problem=f"expected a model of RobustBench for {dataset}/{threat}, such as {examples}; got {name}"
        )
    entry: dict[str, Any] = models[name]
    return entry


def _check_there(path: Path, dataset: str, threat: str, name: str, *, passed: bool = False) -> None:
    if not path.exists():
        hint = "" if passed else ", or pass the file as weights (--weights)"
        raise FileFormatError(
            f"{path}: no such file; nothing is downloaded: fetch it with robustbench.load_model({name!r}, "
            f"dataset={dataset!r}, threat_model={threat!r}), which saves it there{hint}"
        )


def _fit(model: nn.Module, path: Path) -> None:
    """Load a weight file of RobustBench into a model."""
    if path.suffix == ".safetensors":
        tensors = read_state_dict(path)
    else:
        content = read_torch(existing_file(path))
        # Some files hold several checkpoints; RobustBench uses this one.
        last = content.get("last") if isinstance(content, dict) else None
        tensors = find_state_dict(content if last is None else last, path)
    fit_tensors(
        model,
        tensors,
        path,
        wrappers=_WRAPPERS,
        ignored=lambda name: name.split(".")[-1] in _CONSTANTS or any(word in name for word in _UNUSED),
    )

"""Files of adversarial images, in torchattacks' format."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from pyrobust.errors import FileFormatError
from pyrobust.zoo.files import write_atomically
from pyrobust.zoo.untrusted import existing_file
from pyrobust.zoo.weights import read_torch

if TYPE_CHECKING:
    from .attack import Attack


# Rounding error allowed between a value and a level k/255.
_ROUNDING = 1e-4


class Batches(Protocol):
    """A loader with a length, which yields batches (images, labels)."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


class Record:
    """The results of an attack on the batches of a loader."""

    def __init__(self, attack: Attack, save_type: str, verbose: bool) -> None:
        self.attack = attack
        self.save_type = save_type
        self.verbose = verbose
        self.labels: list[Tensor] = []
        self._adversarial: list[Tensor] = []
        self._clean: list[Tensor] = []
        self._predictions: list[Tensor] = []
        self._distances: list[Tensor] = []  # of the fooled images
        self._seconds = 0.0

    def add(self, images: Tensor, labels: Tensor, share: float) -> None:
        """Attack a batch and keep its results; ``share`` is the share of batches that are done after this batch."""
        begin = time.perf_counter()
        adversarial = self.attack(images, labels)
        unit = _unit_range(self.attack, adversarial)
        clean = _unit_range(self.attack, images.detach().to(unit.device))
        inputs = unit if self.attack.normalization_used is None else self.attack.normalize(unit)
        predictions = self.attack.get_output_with_eval_nograd(inputs).argmax(1).cpu()
        fooled = predictions != labels.cpu()
        self._distances.append((unit - clean).flatten(1).norm(dim=1).cpu()[fooled])
        self._adversarial.append(unit.cpu())
        self._clean.append(clean.cpu())
        self._predictions.append(predictions)
        self.labels.append(labels.detach().cpu())
        self._seconds = time.perf_counter() - begin
        if self.verbose:
            print(self.attack._progress_line(share, *self.summary()), end="\r")

    def summary(self) -> tuple[float, float, float]:
        """Return (robust accuracy in percent, mean l2 distance of the fooled images, seconds of the last batch)."""
        labels, predictions = torch.cat(self.labels), torch.cat(self._predictions)
        correct = 100 * float((labels == predictions).double().mean())
        return correct, float(torch.cat(self._distances).double().mean()), self._seconds

    def write(self, path: str | os.PathLike[str], *, predictions: bool, clean_inputs: bool) -> None:
        """Write the file."""
        content: dict[str, Any] = {"adv_inputs": torch.cat(self._adversarial), "labels": torch.cat(self.labels)}
        if predictions:
            content["preds"] = torch.cat(self._predictions)
        if clean_inputs:
            content["clean_inputs"] = torch.cat(self._clean)
        if self.save_type == "int":
            clean = torch.cat(self._clean)
            for name in content.keys() & {"adv_inputs", "clean_inputs"}:
                content[name] = levels(content[name], clean)
        stream = io.BytesIO()
        torch.save(content | {"save_type": self.save_type}, stream)
        write_atomically(path, stream.getbuffer())


def read_record(path: str | os.PathLike[str], names: list[str]) -> dict[str, Tensor]:
    """Read the named parts of a file; images are returned as floats in [0, 1].

    Raises FileFormatError for a file that is missing or damaged, or lacks a part.
    """
    content = read_torch(existing_file(Path(path)))
    parts = dict(content) if isinstance(content, Mapping) else {}
    missing = [name for name in names if not isinstance(parts.get(name), Tensor)]
    if missing:
        raise FileFormatError(f"{path}: expected a file of save with {', '.join(names)}, found no {missing[0]}")
    lengths = {name: len(parts[name]) if parts[name].dim() else 0 for name in names}
    if len(set(lengths.values())) > 1:
        raise FileFormatError(f"{path}: expected parts of one length, got {lengths}")
    return {name: parts[name].float() / 255 if parts[name].dtype == torch.uint8 else parts[name] for name in names}


def levels(images: Tensor, clean: Tensor) -> Tensor:
    """Return the levels 0 … 255 of images in [0, 1], rounded toward the clean images.

    >>> levels(torch.tensor([0.503, 0.497]), torch.tensor([0.5, 0.5]))
    tensor([128, 127], dtype=torch.uint8)
    """
    scaled = images.double() * 255
    down, up = (scaled + _ROUNDING).floor(), (scaled - _ROUNDING).ceil()
    return torch.where(images > clean, down, up).to(torch.uint8)


def _unit_range(attack: Attack, images: Tensor) -> Tensor:
    """Return a call's inputs or results as images in [0, 1]."""
    if images.dtype == torch.uint8:
        return images.float() / 255
    return images if attack.normalization_used is None else attack.inverse_normalize(images)

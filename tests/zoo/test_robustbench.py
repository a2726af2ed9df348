"""Models of RobustBench, with a stand-in for its package: names, files, prefixes, errors."""

from __future__ import annotations

import enum
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pyrobust.errors import FileFormatError, InputError, MissingExtraError
from pyrobust.zoo import load_model

Dataset = enum.Enum("Dataset", {"cifar_10": "cifar10", "imagenet": "imagenet"})
Threat = enum.Enum("Threat", {"Linf": "Linf", "L2": "L2"})


class Net(nn.Module):
    """A net whose normalization is a constant of the architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mu", torch.full((3, 1, 1), 0.5))
        self.conv = nn.Conv2d(3, 2, 1)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.models = nn.ModuleList([Net(), Net()])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with RobustBench's package importable."""
    table = {
        Dataset.cifar_10: {
            Threat.Linf: {
                "Net2020": {"model": Net, "gdrive_id": "abc"},
                "Two2021": {"model": Pair, "gdrive_id": ["a", "b"]},
                "Timm2022": {"model": Net, "gdrive_id": None},
            },
            Threat.L2: {"Net2020": {"model": Net, "gdrive_id": "abc"}},
        },
        Dataset.imagenet: {Threat.Linf: {"Standard_R50": {"model": Net, "gdrive_id": ""}}},
    }
    package, zoo = types.ModuleType("robustbench"), types.ModuleType("robustbench.model_zoo")
    zoo.model_dicts = table  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "robustbench", package)
    monkeypatch.setitem(sys.modules, "robustbench.model_zoo", zoo)
    monkeypatch.chdir(tmp_path)
    for threat in ("Linf", "L2"):
        (tmp_path / "models" / "cifar10" / threat).mkdir(parents=True)
    return tmp_path


def saved(path: Path, wrap: Any = lambda tensors: tensors, prefix: str = "", seed: int = 0) -> dict[str, torch.Tensor]:
    """Save a net's weights, without its constant, and return them."""
    torch.manual_seed(seed)
    tensors = {name: tensor for name, tensor in Net().state_dict().items() if name != "mu"}
    torch.save(wrap({prefix + name: tensor for name, tensor in tensors.items()}), path)
    return tensors


def same(model: nn.Module, tensors: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(model.state_dict()[name], tensor) for name, tensor in tensors.items())


def test_weights_as_robustbench_stores_them(folder: Path) -> None:
    path = folder / "models/cifar10/Linf/Net2020.pt"
    for wrap, prefix in (
        (lambda tensors: tensors, ""),
        (lambda tensors: {"state_dict": tensors}, "module."),
        (lambda tensors: tensors, "module.model."),
        (lambda tensors: {"last": tensors, "best": {name: t + 1 for name, t in tensors.items()}}, ""),
    ):
        tensors = saved(path, wrap, prefix)
        model = load_model("robustbench:Net2020")
        assert same(model, tensors)
        assert torch.equal(model.mu, torch.full((3, 1, 1), 0.5))  # the file lacks it
        assert not any(module.training for module in model.modules())


def test_data_sets_threats_weights_and_ensembles(folder: Path) -> None:
    for seed, (file, spec, weights) in enumerate(
        (
            ("models/cifar10/Linf/Net2020.pt", "cifar10/Linf/Net2020", None),
            ("models/cifar10/L2/Net2020.pt", "cifar10/L2/Net2020", None),
            ("mine.pt", "Net2020", "mine.pt"),
        )
    ):
        tensors = saved(folder / file, seed=seed)
        assert same(load_model(f"robustbench:{spec}", weights), tensors)
    parts = [saved(folder / f"models/cifar10/Linf/Two2021.pt_m{i}.pt", seed=i) for i in range(2)]
    model = load_model("robustbench:Two2021")
    assert not any(module.training for module in model.modules())
    assert all(same(member, part) for member, part in zip(model.models, parts, strict=True))
    with pytest.raises(InputError, match=r"^weights: expected None for Two2021, which has 2 files"):
        load_model("robustbench:Two2021", "mine.pt")
    (folder / "models/cifar10/Linf/Two2021.pt_m1.pt").unlink()
    with pytest.raises(FileFormatError, match=r"Two2021.pt_m1.pt: no such file; nothing is downloaded"):
        load_model("robustbench:Two2021")


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("Net2020", FileFormatError, r"^models/cifar10/Linf/Net2020.pt: no such file; nothing is downloaded"),
        ("", InputError, r"^model: expected robustbench:NAME or robustbench:DATASET/THREAT/NAME, got"),
        ("a/b", InputError, r"^model: expected robustbench:NAME or"),
        ("Net2030", InputError, r"^model: expected a model of RobustBench for cifar10/Linf, such as Net20"),
        ("svhn/Linf/Net2020", InputError, r"^model: dataset: expected one of cifar10, imagenet, got"),
        ("cifar10/L1/Net2020", InputError, r"^model: threat model: expected one of Linf, L2, got 'L1'"),
        ("Timm2022", InputError, r"^model: expected a model whose weights RobustBench keeps in a file"),
        ("imagenet/Linf/Standard_R50", InputError, r"^model: expected a model whose weights RobustBench keeps"),
    ],
)
def test_errors(folder: Path, spec: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_model(f"robustbench:{spec}")


def test_weights_that_do_not_fit_or_need_pickle(folder: Path) -> None:
    path = folder / "models/cifar10/Linf/Net2020.pt"
    torch.save({"conv.weight": torch.zeros(2, 3, 1, 1)}, path)
    with pytest.raises(FileFormatError, match=r"does not fit the model Net: conv.bias: missing"):
        load_model("robustbench:Net2020")
    torch.save(Net(), path)
    with pytest.raises(FileFormatError, match=r"holds Python objects"):
        load_model("robustbench:Net2020")
    path.write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match=r"Net2020.pt: "):
        load_model("robustbench:Net2020")


def test_package_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "robustbench", None)
    monkeypatch.setitem(sys.modules, "robustbench.model_zoo", None)
    with pytest.raises(MissingExtraError, match=r"^robustbench: its architectures need its package"):
        load_model("robustbench:Net2020")

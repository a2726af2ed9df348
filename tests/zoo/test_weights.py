"""Checkpoints of weights, and models of RobustBench, with a stand-in for its package."""

from __future__ import annotations

import enum
import os
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pyrobust.errors import FileFormatError, InputError, MissingExtraError, StoreError
from pyrobust.zoo import digits_convnet, load_model, load_weights, model_hash, read_state_dict, save_state_dict


def small(seed: int = 0) -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*net.parameters(), net[1].running_mean, net[1].running_var):
            tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return net


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"epoch": 3, "arch": "small", "state_dict": state, "optimizer": {"lr": 0.1}},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {"net": {f"_orig_mod.module.{name}": tensor for name, tensor in state.items()}},
        lambda state: {name.replace("1.", "1.module."): tensor for name, tensor in state.items()},
        lambda state: {name: tensor for name, tensor in state.items() if "num_batches" not in name},
    ],
    ids=["plain", "state_dict", "twice", "module", "compiled", "inside", "old batch norm"],
)
@pytest.mark.parametrize("legacy", [False, True])
def test_supported_checkpoints(tmp_path: Path, wrap: Any, legacy: bool) -> None:
    source, target = small(1), small(2)
    path = tmp_path / "a.pth"
    torch.save(wrap(source.state_dict()), path, _use_new_zipfile_serialization=not legacy)
    load_weights(target, path)
    assert model_hash(target) == model_hash(source)


def test_model_with_a_submodule_named_module(tmp_path: Path) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.module = nn.ModuleDict({"a": nn.Linear(2, 2)})

    source, target = Both(), Both()
    save_state_dict(source, tmp_path / "a.pt")
    load_weights(target, tmp_path / "a.pt")
    assert model_hash(target) == model_hash(source)


def test_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    source, target = small(1), small(2)
    path = tmp_path / "a.safetensors"
    safetensors.save_file(source.state_dict(), path)
    load_weights(target, path)
    assert model_hash(target) == model_hash(source)
    whole = path.read_bytes()
    for size in range(0, len(whole), 20):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match="not a readable safetensors"):
            read_state_dict(path)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingExtraError, match=r"pyrobust\[safetensors\]"):
        read_state_dict(path)


def test_mismatches_are_listed_and_the_model_is_unchanged(tmp_path: Path) -> None:
    target = small()
    before = model_hash(target)
    state = small(1).state_dict()
    del state["0.bias"]
    state["extra"] = torch.zeros(1)
    state["0.weight"] = torch.zeros(2, 4)
    state["1.bias"] = torch.zeros(2, dtype=torch.int8)
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(FileFormatError) as caught:
        load_weights(target, tmp_path / "a.pt")
    for text in (
        "a.pt",
        "0.bias: missing",
        "extra: unexpected",
        "0.weight: expected torch.float32 [2, 3], got torch.float32 [2, 4]",
        "1.bias: expected torch.float32 [2], got torch.int8 [2]",
    ):
        assert text in str(caught.value)
    assert model_hash(target) == before


def test_tensors_without_dense_data_are_refused(tmp_path: Path) -> None:
    state = small().state_dict()
    weight = state["0.weight"]
    for tensor, kind in (
        (weight.to_sparse(), "a tensor of torch.sparse_coo"),
        (weight.to("meta"), "a meta tensor, without data"),
    ):
        torch.save(state | {"0.weight": tensor}, tmp_path / "a.pt")
        with pytest.raises(FileFormatError, match=f"0.weight: expected a dense tensor, got {kind}; pass"):
            load_weights(small(), tmp_path / "a.pt")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pyrobust_was_here",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("write", [torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))])
def test_pickles_are_rejected_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for thing in (Evil(), {"state_dict": Evil()}, small()):
        write(thing, tmp_path / "a.pt")
        with pytest.raises(FileFormatError, match=r'c\["state_dict"\], NEW.*c\.state_dict\(\)'):
            read_state_dict(tmp_path / "a.pt")
    assert os.listdir(tmp_path) == ["a.pt"]


def test_files_without_a_state_dict_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with pytest.raises(FileFormatError, match="found nothing"):
        read_state_dict(path)
    for thing in (3, [torch.ones(2)], {}, {"a": 1}, {3: torch.ones(1)}, {"state_dict": 3}, {"state_dict": {"a": [1]}}):
        torch.save(thing, path)
        with pytest.raises(FileFormatError, match="expected a state dict"):
            read_state_dict(path)
    for content in (b"", b"\x89PNG" * 10, bytes(300), b"PK\x03\x04" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"a\.pt"):
            read_state_dict(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_truncated_files_are_rejected(tmp_path: Path, legacy: bool) -> None:
    path = tmp_path / "a.pt"
    torch.save(small().state_dict(), path, _use_new_zipfile_serialization=not legacy)
    whole = path.read_bytes()
    for size in range(0, len(whole), 100):
        path.write_bytes(whole[:size])
        with pytest.raises(FileFormatError, match=r"a\.pt"):
            read_state_dict(path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@given(position=st.integers(0, 10**6), value=st.integers(1, 255), legacy=st.booleans())
def test_flipped_bytes_raise_no_other_exception(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, legacy: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "flip.pt"
    torch.save(small().state_dict(), path, _use_new_zipfile_serialization=not legacy)
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= value
    path.write_bytes(content)
    target = small(2)
    before = model_hash(target)
    try:
        load_weights(target, path)
    except FileFormatError:
        assert model_hash(target) == before


def test_compressed_archive_is_rejected(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1 << 20)}, tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as old,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    with pytest.raises(FileFormatError, match="declares more bytes"):
        read_state_dict(tmp_path / "b.pt")


def test_saved_files_are_reproducible_and_written_atomically(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        save_state_dict(small(), tmp_path / "no" / "a.pt")
    save_state_dict(digits_convnet(), tmp_path / "a.pt")
    save_state_dict(digits_convnet(), tmp_path / "b.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    state = torch.load(tmp_path / "a.pt", weights_only=True)
    assert list(state) == list(digits_convnet().state_dict())
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "a.pt").stat().st_mode & 0o777 == 0o666 & ~umask


# --- RobustBench


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
    zoo.model_dicts = table  # type: ignore[attr-defined]  # a stand-in module
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
    assert all(same(member, state) for member, state in zip(model.models, parts, strict=True))
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

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pyrobust.errors import FileFormatError, MissingExtraError, StoreError
from pyrobust.zoo import digits_convnet, load_weights, model_hash, read_state_dict, save_state_dict


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

"""``pyrobust bench``: its table, its JSON and its errors. Figures are not judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pyrobust.ops import build_info


def test_table_and_json(pyrobust: Any, tmp_path: Path) -> None:
    chosen = ("bench", "--only", "count_votes 1000x10", "--device", "cpu", "--seconds", "0")
    done = pyrobust.ok(*chosen, "--json", "times.json")
    for words in ("count_votes 1000x10, 1 image", "PyTorch: argmax + bincount; floor: sum", "device cpu, torch"):
        assert words in " ".join(done.out.split())
    content = json.loads((tmp_path / "times.json").read_text())
    assert content["machine"]["threads"] >= 1
    assert content["machine"]["simd"] in content["machine"]["simd_levels"]
    (result,) = content["results"]
    assert (result["group"], result["plain"], result["floor"]) == (
        "smoothing",
        "argmax + bincount",
        "sum of the same bytes",
    )
    native = result["seconds"]["native"]
    assert native["repeats"] == 7
    assert 0 < native["low"] <= native["median"] <= native["high"]
    assert result["times_native"]["argmax + bincount"] == (
        result["seconds"]["argmax + bincount"]["median"] / native["median"]
    )
    pyrobust.ok(*chosen, "--json", "times.json")  # its own file is written again
    done = pyrobust(*chosen, "--json", "-")
    assert json.loads(done.out)["results"][0]["case"] == "count_votes 1000x10, 1 image"
    assert "ratio" in done.err


@pytest.mark.skipif(build_info()["cuda"] is not None, reason="the build has CUDA kernels")
def test_a_gpu_without_kernels(pyrobust: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrobust.machine.existing_device", torch.device)
    assert "--device: expected cpu, got cuda, for which this build has no kernels" in (
        pyrobust("bench", "--device", "cuda").error
    )

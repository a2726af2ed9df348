"""Make the helpers of this folder importable, and sweeps that several files audit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pyrobust.evaluation import certify_dataset, verify_dataset
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runs")]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a fixed number of samples, of Laplace noise, sequential, of bounds, and the three shards of one."""
    folder = tmp_path_factory.mktemp("runs")
    net, data = load_model("zoo:digits-smooth-0.25"), load_data("digits")
    gaussian = RandomizedSmoothing(net, 10, sigma=0.5)
    laplace = RandomizedSmoothing(net, 10, sigma=0.5, noise="laplace", norm="l1")
    shared: dict[str, Any] = {"n": 300, "skip": 20}
    certify_dataset(gaussian, data, alpha=0.01, out=folder / "fixed.db", **shared)
    certify_dataset(laplace, data, out=folder / "laplace.db", **shared)
    certify_dataset(gaussian, data, method="sequential", radii=[0.1, 0.3], out=folder / "sequential.db", **shared)
    verify_dataset(net, data, epsilons=[0.01, 0.02], skip=40, out=folder / "verify.db")
    for i in (1, 2, 3):
        certify_dataset(gaussian, data, shard=(i, 3), out=folder / f"part-{i}.db", **shared)
    return folder

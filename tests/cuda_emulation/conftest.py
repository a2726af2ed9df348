"""The emulators, built once."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from support.emulation import ELEMENTS, Blocks, Elements, Launches, Rows, build


class Shared:
    """Emulators that the workers of a run (``pytest -n``) build once for all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, dtype: torch.dtype = torch.float32) -> ctypes.CDLL:
        folder = self.folder / f"{name}_{ELEMENTS[dtype]}"
        with FileLock(f"{folder}.lock"):
            library = folder / f"{name}.so"
            if library.exists():
                return ctypes.CDLL(str(library))
            return build(f"{name}.cpp", folder, dtype)


@pytest.fixture(scope="session")
def emulator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    folder = tmp_path_factory.getbasetemp()
    return Shared(folder.parent if hasattr(request.config, "workerinput") else folder)


@pytest.fixture
def rows(request: pytest.FixtureRequest, emulator: Shared) -> Rows:
    """The ops of rows of the test's dtype, by default float32."""
    copies = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    dtype = copies.get("dtype", torch.float32)
    return Rows(emulator("rows", dtype), dtype)


@pytest.fixture(scope="session")
def elements(emulator: Shared) -> Elements:
    return Elements(emulator("elements"))


@pytest.fixture(scope="session")
def blocks(emulator: Shared) -> Blocks:
    return Blocks(emulator("blocks"))


@pytest.fixture(scope="session")
def launches(emulator: Shared) -> Launches:
    return Launches(emulator("launches"))

"""The emulators, built once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "ops"))  # for inputs and checks
from emulation import Blocks, Elements, Rows, build


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return Rows(build("rows.cpp", tmp_path_factory.mktemp("emulation")))


@pytest.fixture(scope="session")
def elements(tmp_path_factory: pytest.TempPathFactory) -> Elements:
    return Elements(build("elements.cpp", tmp_path_factory.mktemp("emulation")))


@pytest.fixture(scope="session")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Blocks:
    return Blocks(build("blocks.cpp", tmp_path_factory.mktemp("emulation")))

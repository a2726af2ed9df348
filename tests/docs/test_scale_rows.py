"""The example of docs/extending/op.md, with its reference in place of the kernels, which tests/full builds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pyrobust import ops, reference

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs/extending/scale_rows"
FILES = sorted(path.relative_to(EXAMPLE).as_posix() for path in EXAMPLE.rglob("*.*") if "__pycache__" not in path.parts)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{Path(name).parent.name}", EXAMPLE / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield the example's tests, on an op that calls the reference."""
    multiply = load("pyrobust/reference/scale_rows.py").scale_rows
    with torch.library._scoped_library("pyrobust", "FRAGMENT") as library:
        library.define("scale_rows(Tensor x, Tensor scale) -> Tensor")
        library.impl("scale_rows", multiply, "CPU")
        monkeypatch.setattr(reference, "scale_rows", multiply, raising=False)
        monkeypatch.setattr(ops, "scale_rows", load("pyrobust/ops/scale_rows.py").scale_rows, raising=False)
        yield load("tests/ops/test_scale_rows.py")


def test_the_page_links_every_file() -> None:
    page = (ROOT / "docs/extending/op.md").read_text()
    assert len(FILES) == 9
    assert not [name for name in FILES if f"(scale_rows/{name})" not in page]
    assert not [name for name in FILES if (ROOT / name).exists()]  # a copy over the repository replaces no file


def test_the_example_passes_its_tests(tests: ModuleType) -> None:
    for dtype in tests.DTYPES:
        tests.test_agrees_with_the_reference(torch.device("cpu"), dtype)
        tests.test_opcheck(torch.device("cpu"), dtype)
    tests.test_by_hand(torch.device("cpu"))
    tests.test_tensors_that_are_not_contiguous()
    tests.test_gradient()
    for case in tests.test_refused.pytestmark[0].args[1]:
        tests.test_refused(*case)
    (case,) = load("bench/cases/scale_rows.py").cases(torch.device("cpu"))
    assert len(case.variants) == 3

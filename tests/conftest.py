"""The devices and the instruction sets that tests run on."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import torch

from pyrobust import _C
from pyrobust.attacks import Square, autoattack
from pyrobust.attacks.minimum import ensemble

if TYPE_CHECKING:
    from support.fake_cuda import FakeCuda

ROOT = Path(__file__).parent
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # no trials of threads, whose passes depend on the machine

# Each run draws examples of its own, so that few add up; those of "ci" are the same in every run of a commit.
hypothesis.settings.register_profile("default", max_examples=50, deadline=None)
hypothesis.settings.load_profile("default")
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("ci"), max_examples=50, deadline=None)


# Collecting makes millions of objects that all stay: searching them for garbage takes half of its time, and each later
# search would visit them again.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from the garbage collector's searches."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Divide the cores among parallel workers (``pytest -n``), whose torch threads would else wait for each other."""
    if hasattr(config, "workerinput"):
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))


def parts() -> dict[str, list[tuple[str, int]]]:
    """For each test of parts.txt, "file::function": its other parts; of how many cases one stays in the default."""
    moved: dict[str, list[tuple[str, int]]] = {}
    for line in (ROOT / "parts.txt").read_text().splitlines():
        if not line.startswith("#"):
            test, mark, kept = line.split()
            every = {"none": 0, "first": sys.maxsize}[kept] if kept.isalpha() else int(kept.removeprefix("1/"))
            moved.setdefault(test, []).append((mark, every))
    return moved


def has_gpu() -> bool:
    """Whether tests can run on a GPU here."""
    return _C.build_info()["cuda"] is not None and torch.cuda.is_available()


#: Collected cases by the part of the suite that they are in; the files that they are of.
CASES, FILES = pytest.StashKey[Counter[str]](), pytest.StashKey[set[Path]]()


@pytest.hookimpl(tryfirst=True)  # before pytest selects by mark
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases of parts.txt, and the tests that use a GPU, through ``cuda`` or the cases of ``device`` for it.

    Without a GPU, only the first of each test's GPU cases stays: the others would be skipped, or repeat the CPU's
    kernels.
    """
    moved, seen, cases, gpu_cases = parts(), Counter[str](), Counter[str](), set[tuple[str, str]]()
    kept: list[pytest.Item] = []
    repeated: list[pytest.Item] = []
    for item in items:
        file = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
        name = f"{file}::{getattr(item, 'originalname', item.name)}"
        for mark, every in moved.get(name, ()):
            if not every or seen[name] % every:
                item.add_marker(mark)
        seen[name] += 1
        marks = {mark.name for mark in item.iter_markers()}
        suite = next((suite for suite in ("full", "slow") if suite in marks), "default")
        copies = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "cuda" in getattr(item, "fixturenames", ()) or copies.get("device") == "cuda":
            item.add_marker("gpu")
            if (name, suite) in gpu_cases and not has_gpu():
                repeated.append(item)
                continue
            gpu_cases.add((name, suite))
        kept.append(item)
        cases[suite] += 1
    items[:] = kept
    config.hook.pytest_deselected(items=repeated)
    config.stash[CASES], config.stash[FILES] = cases, {item.path for item in kept}


@pytest.fixture
def cases_by_part(request: pytest.FixtureRequest) -> Counter[str]:
    """The collected cases by part; the test is skipped where files were left out."""
    if len(request.config.stash[FILES]) < 0.9 * len(list(ROOT.rglob("test_*.py"))):
        pytest.skip("only some of the files were collected")
    return request.config.stash[CASES]


@pytest.fixture
def cuda() -> torch.device:
    """The first GPU; the test is skipped where there is none, or pyrobust was built without CUDA."""
    if _C.build_info()["cuda"] is None:
        pytest.skip("pyrobust was built without CUDA")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    return torch.device("cuda", 0)


@pytest.fixture
def second_cuda(cuda: torch.device) -> torch.device:
    """A GPU that is not the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA GPU only")
    return torch.device("cuda", 1)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Two GPUs that do not exist, see ``fake_cuda``."""
    from support.fake_cuda import FakeCuda

    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # the kernels are the CPU's, whose products are float32

    with FakeCuda().installed() as devices:
        yield devices


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, then the GPU, or, for one case, a fake GPU: a test expects the same of both devices."""
    if request.param == "cpu":
        return torch.device("cpu")
    if has_gpu():
        return request.getfixturevalue("cuda")
    request.getfixturevalue("fake_cuda")
    return torch.device("cuda", 0)


@pytest.fixture(params=_C.simd_levels())
def simd_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this machine can run, one after the other."""
    before = _C.simd_level()
    _C.set_simd_level(request.param)
    assert _C.simd_level() == request.param
    yield request.param
    _C.set_simd_level(before)


@pytest.fixture
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No passes of the row probe, for tests that record or count what a model receives."""
    monkeypatch.setattr(
        "pyrobust.row_independence.RowProbe._probed", lambda self, batch, *_, **__: self._forward(batch)
    )


def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = autoattack.published_attack

    def short(*arguments: Any) -> Any:
        attack = publish(*arguments)
        if isinstance(attack, Square):
            attack.n_queries = 100
        else:
            attack.steps = 5
        return attack

    monkeypatch.setattr(autoattack, "published_attack", short)
    few = {name: {**ensemble._BUDGETS.get(name, {}), "steps": 10} for name in ("fab-t", "fmn", "ddn")}
    monkeypatch.setattr(ensemble, "_BUDGETS", few)
    monkeypatch.setattr(ensemble, "_SAMPLED", 1)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps in AutoAttack and in minimum-norm ensembles, for tests that only process their results."""
    _few_steps(monkeypatch)


@pytest.fixture
def few_restarts(few_steps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """``few_steps``, and two starts of FMN in minimum-norm ensembles."""
    monkeypatch.setitem(ensemble._BUDGETS["fmn"], "restarts", 2)


@pytest.fixture(scope="module")
def few_steps_in_module() -> Iterator[None]:
    """``few_steps`` for the fixtures of a module too."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _few_steps(monkeypatch)
        yield


@pytest.fixture(scope="session")
def document() -> Callable[[str], str]:
    """The text of a document that defines the terms, "000" to "004"; the test is skipped where it is missing."""
    folder = os.environ.get("PYROBUST_DATA")

    def read(number: str) -> str:
        texts = sorted((Path(folder).parent / "documents").glob(f"{number}_*.txt")) if folder else []
        if not texts:
            pytest.skip(f"no document {number} beside PYROBUST_DATA")
        return texts[0].read_text()

    return read


@pytest.fixture(scope="session")
def run_blocks(document: Callable[[str], str]) -> Callable[..., dict[str, Any]]:
    """Run the Python blocks of a document, given names that they leave undefined; return the names that they define."""

    def run(number: str, **undefined: Any) -> dict[str, Any]:
        blocks = re.findall(r"^```python\n(.*?)^```", document(number), re.MULTILINE | re.DOTALL)
        assert blocks
        names: dict[str, Any] = {"torch": torch, **undefined}
        exec("\n".join(blocks), names)
        return names

    return run

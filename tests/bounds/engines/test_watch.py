"""Work that takes long: its estimate, its progress, and what is known when it ends early."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.bounds.engines import forced
from torch import Tensor, nn

from pyrobust import BoundedModel
from pyrobust.bounds import BoundOptions, Bounds, Verdicts
from pyrobust.bounds.engines import chunks, native, watch
from pyrobust.bounds.engines.native_packing import native_network
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.engines.watch import Watch, duration
from pyrobust.bounds.methods import CROWN, CROWN_IBP, IBP
from pyrobust.errors import InputError, ModelError

ENGINES = ("native", "torch")
METHODS = ("ibp", "crown-ibp", "crown", "alpha-crown")


@functools.cache
def made(engine: str = "native") -> tuple[BoundedModel, Tensor, Tensor]:
    """A bounded net whose CROWN takes several passes, inputs, and their labels."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 30),
        nn.ReLU(),
        nn.Linear(30, 20),
    )
    x = torch.rand(5, 12)
    return BoundedModel(net.eval().requires_grad_(False), x, engine=engine), x, net(x).argmax(1)


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines look at the clock, and tell their progress, whenever they can."""
    monkeypatch.setattr(watch, "EVERY", 0.0)
    monkeypatch.setattr(native, "EVERY", 0.0)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, always_looking: None) -> Callable[[int], None]:
    """Have the time of the next calls end after that many looks at the clock."""

    def end_after(count: int) -> None:
        remaining = [count]

        def goes_on(self: Watch) -> bool:
            remaining[0] -= 1
            return self.interrupt is None and remaining[0] > 0

        monkeypatch.setattr(Watch, "goes_on", goes_on)

    return end_after


def between(bounds: Bounds, least: Bounds, most: Bounds) -> None:
    """Bounds are no looser than some, unless they are unknown, and no tighter than others."""
    rounding = 1e-6 * (1 + most.lower.abs())
    reached = bounds.lower > -torch.inf
    assert ((bounds.lower >= least.lower - rounding) | ~reached).all()
    assert ((bounds.upper <= least.upper + rounding) | (bounds.upper == torch.inf)).all()
    assert (bounds.lower <= most.lower + rounding).all()
    assert (bounds.upper >= most.upper - rounding).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_proved_when_the_time_ends_is_proved(engine: str, method: str, looks: Callable[[int], None]) -> None:
    bounded, x, _ = made(engine)
    least = bounded.bounds(x, 0.1, method="ibp")  # of the boxes around the balls
    for norm in ("linf", "l2"):
        options = BoundOptions(norm=norm, method=method, iterations=2)
        most = bounded.bounds(x, 0.1, options=options)
        seen = set()
        for count in (0, 1, 2, 3, 6, 14, 30, 70, 10**9):
            looks(count)
            bounds = bounded.bounds(x, 0.1, options=options)
            between(bounds, least, most)
            seen.add(float(bounds.lower.where(bounds.lower > -torch.inf, -1e3).sum()))
            if count == 0:
                assert (bounds.lower == -torch.inf).all()
                assert (bounds.upper == torch.inf).all()
        assert torch.equal(bounds.lower, most.lower)
        assert len(seen) >= (2 if method == "ibp" else 3)  # unknown, by intervals, and all of it


def test_rows_that_library_products_do_not_reach_have_bounds_of_intervals(looks: Callable[[int], None]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 1 << 18), nn.ReLU(), nn.Linear(1 << 18, 20)).eval()  # 8 rows at a time
    x = torch.rand(2, 12)
    bounded = BoundedModel(net, x)
    with forced(library=True):
        least, most = (bounded.bounds(x, 0.1, method=name) for name in ("ibp", "crown-ibp"))
        tight = []
        for count in range(8):
            looks(count)
            bounds = bounded.bounds(x, 0.1, method="crown-ibp")
            between(bounds, least, most)
            tight.append(int(((bounds.lower_by == "crown-ibp") & bounds.lower.isfinite().numpy()).sum()))
    assert 0 < tight[3] < tight[-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_time_limit_ends_every_call(engine: str) -> None:
    bounded, x, y = made(engine)
    assert not bounded.certify(x, y, 0.0, time_limit=0).any()
    assert bounded.certify(x, y, 0.0, time_limit=1e9).all()
    assert set(bounded.verify(x, y, 0.0, time_limit=0).status) == {"unknown"}
    assert set(bounded.verify(x, y, 0.0, time_limit=1e9).status) == {"verified"}
    assert (bounded.certified_radius(x, y, time_limit=0) == 0).all()
    assert (bounded.linear_bounds(x, 0.1, time_limit=0).lower_b == -torch.inf).all()
    assert all((z.lower == -torch.inf).all() for z in bounded.intermediate_bounds(x, 0.1, time_limit=0).values())
    for limit in (None, 10**6):
        partial = bounded.margins(x, y, 0.1, time_limit=0, memory_limit=limit)
        assert partial.lower.shape == (5, 19)
        assert (partial.lower == -torch.inf).all()


def test_chunks_are_small_where_intervals_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk's intervals are computed between two looks at the clock."""
    bounded, x, y = made()
    whole = bounded.margins(x, y, 0.1, method="crown").lower
    chunks: list[int] = []
    add_examples = Watch.tell
    monkeypatch.setattr(native, "_STRETCH", 1.0)
    monkeypatch.setattr(native, "EVERY", 0.0)
    monkeypatch.setattr(
        Watch, "tell", lambda self, rows, spared, done: chunks.append(done) or add_examples(self, rows, spared, done)
    )
    assert torch.equal(bounded.margins(x, y, 0.1, method="crown", time_limit=1e9).lower, whole)
    assert set(range(1, len(x) + 1)) <= set(chunks)


def test_margins_of_earlier_methods_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded, x, y = made()
    first = bounded.margins(x, y, 0.3, method="crown-ibp").lower.amin(1)
    assert (first < 0).any()
    prove = bounded._prove

    def late(x: Tensor, y: Tensor, epsilon: Any, options: BoundOptions, progress: Any) -> Bounds:
        limit = 0.0 if options.method == "crown" else options.time_limit
        return prove(x, y, epsilon, dataclasses.replace(options, time_limit=limit), progress)

    monkeypatch.setattr(bounded, "_prove", late)
    verdicts = bounded.verify(x, y, 0.3, methods=("crown-ibp", "crown"), time_limit=1e9)
    torch.testing.assert_close(verdicts.margin, first)


def stopped(share: int) -> Callable[[int, int], None]:
    """Progress that is interrupted at a share of the work."""

    def progress(done: int, total: int) -> None:
        if done >= share:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("engine", ENGINES)
def test_bounds_so_far_are_in_the_interrupt(engine: str, always_looking: None) -> None:
    bounded, x, y = made(engine)
    least, most = (bounded.bounds(x, 0.1, method=name) for name in ("ibp", "crown"))
    for share in (1, 300, 900):
        with pytest.raises(KeyboardInterrupt) as caught:
            bounded.bounds(x, 0.1, progress=stopped(share))
        result: Any = caught.value.__dict__["result"]
        assert isinstance(result, Bounds)
        between(result, least, most)
    with pytest.raises(KeyboardInterrupt) as caught:
        bounded.verify(x, y, 0.0, methods=("crown",), progress=stopped(1))
    verdicts: Any = caught.value.__dict__["result"]
    assert isinstance(verdicts, Verdicts)
    assert len(verdicts.status) == 5
    for limit in (None, 10**5):  # of one chunk, and of several
        with pytest.raises(KeyboardInterrupt) as caught:
            bounded.margins(x, y, 0.1, progress=stopped(1), memory_limit=limit)
        assert caught.value.__dict__["result"].lower.shape == (5, 19)


def test_an_interrupt_ends_the_other_parts_of_a_batch(always_looking: None) -> None:
    """Inputs so large that the memory limit takes them one by one."""
    bounded, x = BoundedModel(nn.Linear(2000, 3), torch.zeros(1, 2000)), torch.zeros(6, 2000)
    done: list[int] = []

    def stop(count: int, total: int) -> None:
        done.append(count)
        if len(done) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        bounded.bounds(x, 0.1, progress=stop, memory_limit=1_300_000)
    assert caught.value.__dict__["result"].lower[-1].isneginf().all()


def test_radii_so_far_are_in_the_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded, x, y = made()
    complete = bounded.certified_radius(x, y, method="crown-ibp")
    runs, run = [0], native.Engine.run

    def interrupted(self: native.Engine, inputs: Any, rows: Any, query: Any, **options: Any) -> Any:
        runs[0] += 1
        if runs[0] == 4:
            query.watch.interrupt = KeyboardInterrupt()
        return run(self, inputs, rows, query, **options)

    monkeypatch.setattr(native.Engine, "run", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        bounded.certified_radius(x, y, method="crown-ibp")
    radii = caught.value.__dict__["result"]
    assert radii.shape == complete.shape
    assert (radii <= complete + 1e-4).all()
    assert (radii > 0).any()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_progress_grows_to_its_end(engine: str, method: str, always_looking: None) -> None:
    bounded, x, _ = made(engine)
    calls: list[tuple[int, int]] = []
    bounded.bounds(x, 0.1, method=method, iterations=2, progress=lambda done, total: calls.append((done, total)))
    done = [call[0] for call in calls]
    assert {call[1] for call in calls} == {1000}
    assert done == sorted(set(done))
    assert done[-1] == 1000
    assert len(done) >= (1 if method == "ibp" else 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_estimate_is_logged_once(
    engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bounded, x, _ = made(engine)

    def messages() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == watch.__name__]

    bounded.bounds(x, 0.1)
    assert not messages()  # a short call
    for module, name in ((watch, "EVERY"), (native, "EVERY"), (watch, "MEASURED"), (watch, "LONG")):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(time, "monotonic", itertools.count().__next__)
    bounded.bounds(x, 0.1, method="crown-ibp", time_limit=1e9)
    first = messages()
    assert first[0].startswith("crown-ibp of 5 examples takes about ")
    assert "MB of memory; time_limit= ends it with what is proved by then" in first[0]
    bounded.bounds(x, 0.1, method="crown-ibp", time_limit=1e9)
    assert messages() == first
    bounded.bounds(x, 0.1, method="crown")
    assert messages()[len(first)].startswith("crown of 5 examples takes about ")
    bounded.bounds(x[:1], 0.1, method="alpha-crown", time_limit=60)
    assert messages()[-1].startswith("alpha-crown of 1 example takes about ")
    bounded._announced["crown-ibp"] = 1e9  # which proves far too long
    bounded.bounds(x, 0.1, method="crown-ibp")
    assert messages()[-1].startswith("crown-ibp of 5 examples takes about ")
    assert bounded._announced["crown-ibp"] < 1e8


def test_work_is_counted_in_multiplications() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)).eval()
    bounded = BoundedModel(net, torch.zeros(1, 1, 4, 4))
    work = native_network(bounded.output, torch.float32).work
    assert work.intervals == 2 * (16 + 32 * 9 + 32 + 32 * 5)
    # a neuron of the convolution reads 9 inputs; an output all 32 neurons, each through its function
    assert work.row(1) == 9
    assert work.row(3) == 32 + 32 + 32 * 9
    assert work.row(3, to_input=False) == 32  # on the ranges of the function
    assert work.rows(IBP, "linf", 5) == [0, 0, 0, 5]
    assert work.rows(CROWN_IBP, "l2", 5) == [0, 64, 0, 5]
    assert work.rows(CROWN, "linf", 5) == [0, 64, 0, 5]
    durations = [duration(seconds) for seconds in (99, 101, 5999, 6001, 172_801)]
    assert durations == ["99 s", "2 min", "100 min", "1.7 h", "2.0 days"]


def test_spared_rows_shorten_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)).eval()
    work = native_network(BoundedModel(net, torch.zeros(1, 1, 4, 4)).output, torch.float32).work
    for name in ("EVERY", "MEASURED", "LONG"):
        monkeypatch.setattr(watch, name, 0.0)
    monkeypatch.setattr(time, "monotonic", itertools.count().__next__)
    announced: dict[str, float] = {}
    watched = Watch("crown", 1, None, lambda shown: None, announced, searches=False)
    watched.begin(work, Query("crown", True, "real", None), "linf", 1, 5, 0)
    watched.tell([0, 16, 0, 0], [0, 16, 0, 0], 0)
    needed = work.intervals + (64 - 16) * work.row(1) + 5 * work.row(3)
    assert announced["crown"] == pytest.approx(1 + (needed / (16 * work.row(1)) - 1) / 2)


def test_a_network_beyond_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded, x, _ = made()
    monkeypatch.setattr(chunks, "total_memory", lambda: 1000.0)
    with pytest.raises(
        ModelError, match=r"^model: the bounds of one example need about 0\.\d GB, this machine has 0\.0"
    ):
        bounded.bounds(x, 0.1)


def test_a_search_that_does_not_fit_is_refused_before_it_begins() -> None:
    bounded, x, _ = made()
    least = []
    for method in ("crown", "alpha-crown"):
        with pytest.raises(InputError, match="memory_limit: expected at least") as caught:
            bounded.bounds(x, 0.1, method=method, memory_limit=1)
        least.append(int(str(caught.value).split()[4]))
    assert least[1] > least[0]
    bounded.bounds(x, 0.1, method="alpha-crown", memory_limit=least[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_bounds_name_the_method_that_gave_them(engine: str) -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 4)).eval()
    with torch.no_grad():
        net.get_parameter("2.weight")[:2].abs_()
    x = torch.randn(3, 6)
    bounded = BoundedModel(net, x, engine=engine)
    for method in ("crown-ibp", "crown", "alpha-crown"):
        intervals, bounds = (bounded.bounds(x, 3.0, method=name) for name in ("ibp", method))
        assert set(intervals.lower_by.flat) == set(intervals.upper_by.flat) == {"ibp"}
        for by, tight, wide in (
            (bounds.lower_by, bounds.lower, intervals.lower),
            (bounds.upper_by, -bounds.upper, -intervals.upper),
        ):
            better = (tight - wide).numpy() > 1e-4
            assert set(by.flat) <= {"ibp", method, "crown"}
            assert (by[better] != "ibp").all()
            assert better[by != "ibp"].any()
        assert method == "alpha-crown" or "ibp" in bounds.lower_by
        assert bounds.to_dict()["lower_by"] == bounds.lower_by.tolist()
        assert bounds.to_pandas()["upper_by"].tolist() == bounds.upper_by.ravel().tolist()
    plain = bounded.bounds(x, 3.0, sound=False)
    assert set(plain.lower_by.flat) == {"crown"}
    assert set(bounded.bounds(x, 3.0, method="lipschitz").lower_by.flat) == {"lipschitz"}

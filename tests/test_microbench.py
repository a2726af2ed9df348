"""Cases of the microbenchmarks: the native variant and PyTorch's give the same results. Nothing is timed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyrobust import Certificates
from pyrobust.microbench import attacks, bounds, projections, smoothing
from pyrobust.microbench.timing import Case, measure, row

SUBJECTS = {"smoothing": smoothing, "projections": projections, "attacks": attacks, "bounds": bounds}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_variants_agree(subject: str) -> None:
    """Compare the variants of all cases; the tensors of a case are made when its turn comes."""
    names = []
    for case in SUBJECTS[subject].cases(torch.device("cpu")):
        names.append(case.name)
        assert list(case.variants) == ["native", case.plain, case.floor]
        check(subject, case)
    assert len(names) == len(set(names))
    assert sum("batch 1" in name or " 1x" in name or "1 image" in name for name in names) >= 2


def check(subject: str, case: Case) -> None:
    name = case.name
    native, plain = case.variants["native"](), case.variants[case.plain]()
    if isinstance(native, Certificates):
        assert native.prediction.tolist() == [label for label, _ in plain]  # type: ignore[attr-defined]  # variants return any type
        assert np.allclose(native.radius, [radius for _, radius in plain], atol=0.15)  # type: ignore[attr-defined]  # as above
        return
    if isinstance(native, tuple):  # grid noise, and which of its rows overflowed
        native = native[0]
    assert isinstance(native, torch.Tensor)
    assert isinstance(plain, torch.Tensor)
    assert native.shape == plain.shape
    assert native.dtype == (torch.float64 if subject == "bounds" else plain.dtype)
    if "noise" in name:
        if native.numel() > 1e5:
            assert float(native.mean() - plain.mean()) == pytest.approx(0, abs=0.01)
            assert float(native.std() - plain.std()) == pytest.approx(0, abs=0.01)
    elif name.startswith("PGD"):  # they begin at different points of the ball
        assert float((native - plain).abs().max()) <= 2.001e-4
    elif name.startswith("crown"):  # ours are never looser, and tighter where intervals are
        assert bool((native >= plain - 1e-4).all())
        assert float((native - plain).max()) < 2
    else:
        assert torch.allclose(native, plain.to(native.dtype), atol=1e-3 if subject == "bounds" else 1e-6)


def test_measuring_takes_turns() -> None:
    calls: list[str] = []
    variants = {name: lambda name=name: calls.append(name) for name in ("native", "plain")}
    case = Case("case", variants, less={"plain": lambda: None}, plain="plain", floor="plain")
    times = measure(case, 3, torch.device("cpu"))
    assert {timing.repeats for timing in times.values()} == {3}
    for timing in times.values():
        assert timing.low <= timing.quartiles[0] <= timing.median <= timing.quartiles[1] <= timing.high
    turns = [name for name, before in zip(calls, ["", *calls], strict=False) if name != before]
    assert turns[-6:] == ["native", "plain"] * 3
    result = row(case, times)
    assert result["times_native"]["native"] == 1.0  # type: ignore[index]  # a row's values are of any type
    assert measure(case, 1, torch.device("cpu"), seconds=0.3)["native"].repeats > 1

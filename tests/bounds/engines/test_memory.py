"""Calls stay within memory_limit."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch
from torch import nn

from pyrobust.bounds import BoundedModel
from pyrobust.errors import InputError

_LIMIT, _WIDE_LIMIT, _CLASSES_LIMIT = 24_000_000, 80_000_000, 30_000_000
_START = r"""
import ctypes, gc, os, re, torch
from pathlib import Path
from torch import nn
from pyrobust.bounds import BoundedModel

def resident(field):
    return 1024 * int(re.search(field + r":\s+(\d+)", Path("/proc/self/status").read_text()).group(1))

def used(call):
    # the most memory that a call takes beside what was there before
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before

torch.manual_seed(0)
torch.set_num_threads(1)
BoundedModel(nn.Linear(2, 2).eval(), torch.zeros(1, 2))  # imports what captures need
"""
# What one process has freed would change the memory that the next part takes: each has a process, with the imports.
_FORK = """
    if os.fork() == 0:
        exec(part)
        break
    os.wait()
"""
_MEASURE = f"""
x, y = torch.rand(64, 3, 16, 16), torch.zeros(64).long()
layers = [nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)]
wide = [nn.Conv2d(3, 48, 3, 1, 1), nn.ReLU(), nn.Conv2d(48, 64, 3, 1, 1), nn.Flatten(), nn.ReLU(), nn.Linear(16384, 10)]
for net, engine, limit in ((layers, "native", {_LIMIT}), (layers, "torch", {_LIMIT}), (wide, "native", {_WIDE_LIMIT})):
    bounded = BoundedModel(nn.Sequential(*net).eval(), x[:1], engine=engine)
    for method in ("ibp", "crown-ibp", "crown")[: 2 if net is wide else 3]:
        bounded.margins(x[:1], y[:1], 0.01, method=method)
        print(limit, method, used(lambda: bounded.margins(x, y, 0.01, method=method, memory_limit=limit)))

classes, limit = 4_000, {_CLASSES_LIMIT}  # a matrix of classes squared has 128 MB
x, y = torch.rand(2, 8), torch.tensor([0, 7])
for engine in ("native", "torch"):
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, classes)).eval()
    bounded = BoundedModel(net, x[:1], engine=engine)
    for method in ("ibp", "crown-ibp"):
        bounded.bounds(x[:1], 0.01, method="ibp")
        print(limit, method, used(lambda: bounded.margins(x, y, 0.01, method=method, memory_limit=limit)))
"""


_ESTIMATES = """
from pyrobust.bounds.engines.watch import Watch

class Block(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        convs = [nn.Conv2d(channels, out, 3, stride, 1), nn.ReLU(), nn.Conv2d(out, out, 3, 1, 1)]
        self.body, self.short = nn.Sequential(*convs), nn.Conv2d(channels, out, 1, stride)

    def forward(self, x):
        return torch.relu(self.body(x) + self.short(x))

def residual(width):
    blocks = [Block(width << i >> bool(i), width << i, 1 + bool(i)) for i in range(4)]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10)]
    return nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks, *pool)

def wide(width):
    sizes = [784, width, width, width]
    hidden = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))

estimates = []
begin = Watch.begin
def noted(self, work, query, norm, examples, rows, memory):
    estimates.append(memory)
    begin(self, work, query, norm, examples, rows, memory)
Watch.begin = noted
for make, width, shape, methods in (
    (residual, 32, (3, 64, 64), ["ibp", "crown-ibp"]),
    (residual, 16, (3, 64, 64), ["crown"]),
    (wide, 2048, (784,), ["ibp", "crown-ibp", "crown"]),
):
    x, y = torch.rand(1, *shape), torch.tensor([0])
    bounded = BoundedModel(make(width).eval(), x)
    for method in methods:
        bounded.margins(x, y, 1e-7, method=method)
        estimates.clear()
        peak = used(lambda: bounded.margins(x, y, 1e-4, method=method))
        print(make.__name__, method, max(estimates), peak)
"""


@functools.cache
def measured() -> tuple[list[list[str]], list[list[str]]]:
    """The words of the lines that processes print about their memory: about estimates, and about limits."""
    script = f"{_START}\nfor part in ({_ESTIMATES!r}, {_MEASURE!r}):{_FORK}"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if "Permission denied" in run.stderr:
        pytest.skip("/proc/self/clear_refs cannot be written")
    lines = [line.split() for line in run.stdout.splitlines()]
    assert len(lines) == 18, run.stderr
    return lines[:6], lines[6:]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_call_stays_within_its_limit() -> None:
    _, lines = measured()
    assert all(0 < int(peak) <= int(limit) for limit, _, peak in lines), lines


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_large_networks_is_estimated_closely() -> None:
    """A limit refuses little that would fit: estimates are above what a call uses, and below three times that.

    Up to a megabyte, which threads keep from earlier calls; half a megabyte varies from run to run.
    """
    lines, _ = measured()
    for *_, estimate, peak in lines:
        assert int(peak) - (1 << 19) <= int(estimate) < 3 * int(peak) + (1 << 20), lines


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_parts_of_a_batch_have_the_bounds_of_all_of_it(engine: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(300, 20), nn.ReLU(), nn.Linear(20, 3)).eval()
    x, y = torch.rand(40, 300), torch.arange(40) % 3
    bounded = BoundedModel(net, x, engine=engine)
    rows = torch.randn(40, 2, 3).double()
    epsilon = torch.rand(40, 300) / 10
    with pytest.raises(InputError, match="memory_limit: expected at least") as caught:
        bounded.bounds(x, epsilon, C=rows, memory_limit=1)
    least = int(str(caught.value).split()[4])
    with pytest.raises(InputError, match=f"memory_limit: expected at least {least} bytes, .* got {least - 1}$"):
        bounded.bounds(x, epsilon, C=rows, memory_limit=least - 1)
    for radius in (epsilon, 0.01, epsilon[:, 0]):
        whole, parts = (bounded.bounds(x, radius, C=rows, memory_limit=limit) for limit in (None, least))
        torch.testing.assert_close(parts.lower, whole.lower, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(parts.upper, whole.upper, rtol=1e-12, atol=1e-12)
    boxes = {"x_lower": x - 0.1, "x_upper": x + 0.1}
    whole, parts = (bounded.margins(**boxes, y=y, memory_limit=limit) for limit in (None, least))
    torch.testing.assert_close(parts.lower, whole.lower, rtol=1e-12, atol=1e-12)
    right = net(x).argmax(1)
    radii = [bounded.certified_radius(x, right, method="ibp", memory_limit=limit) for limit in (None, 2 * least)]
    torch.testing.assert_close(*radii, rtol=1e-2, atol=1e-5)  # a second try in float64 does not fit `least`
    for bad, words in (({"C": rows[:3]}, "^C: expected shape"), ({"C": None, "x": x[:, :3]}, "^x: expected shape")):
        with pytest.raises(InputError, match=words):
            bounded.bounds(**({"x": x, "epsilon": 0.1, "memory_limit": least} | bad))
    with pytest.raises(InputError, match=r"^y: expected shape"):
        bounded.margins(x, y[:3], 0.1, memory_limit=least)
    with pytest.raises(InputError, match=r"^epsilon: expected one radius for each of the 40 examples"):
        bounded.margins(x, y, [0.1, 0.2], memory_limit=least)

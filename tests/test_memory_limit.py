"""In a process whose address space is limited, batches are halved and the results stay the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LIMITED = """
import logging, re, resource
from pathlib import Path
import numpy as np
import torch
from torch import nn
from pyrobust import FAB, RandomizedSmoothing, attack_dataset, certify_dataset, ops
from pyrobust.machine import in_batches

class Corner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x * self.weight).flatten(1)[:, :3] * 4

class Count(logging.Handler):
    def emit(self, record):
        halved.extend([1] * ("out of memory" in record.getMessage()))

def limited(call, room):
    size = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + room, before[1]))
    try:
        return call()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

def swept(sweep):
    table = sweep().table
    return {name: column for name, column in table.items() if column.dtype.kind in "bif" and "second" not in name}

halved = []
logging.getLogger("pyrobust").addHandler(Count())
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.rand(128, 1, 128, 256)
y = Corner()(x).argmax(1)
rows, z = x[:64].flatten(1), torch.full((64, 1 << 15), 0.25)
want, got, sizes = ops.add_perturbation(rows, z), torch.zeros(64, 1 << 15), [64]

def step(begin, end):
    got[begin:end] = ops.add_perturbation(rows[begin:end], z[begin:end])

limited(lambda: in_batches(64, lambda: sizes[-1], step, lambda rows, error: sizes.append(rows // 2)), 4 << 20)
print("op", len(sizes) - 1, torch.equal(got, want))

sweeps = {
    "fab": lambda: attack_dataset(FAB(Corner(), 0.02, steps=2, targets=1, batch_size=128), (x, y)),
    "smoothing": lambda: certify_dataset(
        RandomizedSmoothing(Corner(), 3, 0.5, batch_size=2048, grid=None), (x[:8], y[:8]), n0=8, n=512
    ),
}
for name, sweep in sweeps.items():
    want = swept(sweep)
    halved.clear()
    got = limited(lambda: swept(sweep), 100 << 20)
    same = [np.array_equal(got[column], want[column], equal_nan=True) for column in want]
    print(name, len(halved), set(got) == set(want) and all(same))

"""


@pytest.mark.full  # what else takes address space meanwhile differs from machine to machine
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_batches_are_halved_and_results_are_the_same() -> None:
    run = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [name for name, *_ in lines] == ["op", "fab", "smoothing"]
    assert all(int(times) > 0 and same == "True" for _, times, same in lines), run.stdout

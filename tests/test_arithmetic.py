"""Rounding units of what a model computes in."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust.arithmetic import product_units, watched
from pyrobust.runner import Runner

SINGLE, HALF, BRAIN, DOUBLE = (
    torch.finfo(t).eps for t in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
)
NET = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)).requires_grad_(False)
SCRIPT = torch.jit.trace(NET, torch.zeros(2, 1, 6, 6))
MASK = torch.zeros(3, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("model", "dtype", "unit"),
    [
        (NET, torch.float32, SINGLE),
        (lambda x: NET(x.float()), torch.float64, SINGLE),
        (lambda x: NET(x.float()).double(), torch.float64, SINGLE),
        (lambda x: SCRIPT(x.float()).double(), torch.float64, SINGLE),
        (lambda x: x.flatten(1)[:, :3], torch.float64, DOUBLE),
        (lambda x: NET(x.half().float()), torch.float32, HALF),
        (lambda x: NET(x) + MASK.float(), torch.float32, SINGLE),  # no arithmetic of the input
        (lambda x: NET(torch.zeros_like(x).copy_(x)).bfloat16(), torch.float32, BRAIN),
        (lambda x: torch.func.vmap(lambda row: NET(row[None].float())[0].double())(x), torch.float64, SINGLE),
        (
            lambda x: torch.from_numpy(x.detach().numpy().reshape(len(x), -1)[:, :3] * 1),
            torch.float32,
            BRAIN,
        ),  # unknown
    ],
)
@pytest.mark.parametrize("gradients", [False, True])
def test_the_coarsest_arithmetic_is_found(model: object, dtype: torch.dtype, unit: float, gradients: bool) -> None:
    x = torch.rand(4, 1, 6, 6, dtype=dtype)
    runner = Runner(model)
    runner.follow(x)
    with runner.session(gradients=gradients), torch.set_grad_enabled(gradients):
        assert runner.unit == torch.finfo(dtype).eps  # not known yet
        leaf = x.requires_grad_(gradients)
        logits = runner.logits(leaf, watch=True)
        assert runner.unit == unit
        if logits.requires_grad:
            assert torch.autograd.grad(logits.sum(), leaf)[0].shape == x.shape


def test_a_module_outside_torch_has_the_unit_of_its_parameters() -> None:
    class Numpy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(np.asarray(x.flatten(1)) @ self.weight.detach().numpy().T)

    runner = Runner(Numpy(36, 3))
    with runner.session():
        runner.logits(torch.rand(4, 1, 6, 6), watch=True)
        assert runner.unit == SINGLE


def test_a_session_watches_its_first_batch_of_several_rows_only() -> None:
    rows: list[tuple[int, bool]] = []

    def model(x: Tensor) -> Tensor:
        rows.append((len(x), torch._C._len_torch_dispatch_stack() > 0))
        return x

    runner = Runner(model)
    for _ in range(2):
        with runner.session():
            for count in (1, 4, 3):
                runner.logits(torch.rand(count, 2), watch=True)
    assert rows == [(1, False), (4, True), (3, False)] * 2


def test_units_follow_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert product_units(cpu) == (SINGLE, SINGLE)
    assert product_units(cuda) == (2.0**-10, SINGLE)  # torch's defaults
    for place, value in (
        (torch.backends.mkldnn.conv, "bf16"),
        (torch.backends.mkldnn.matmul, "tf32"),
        (torch.backends.cudnn.conv, "ieee"),
        (torch.backends.cuda.matmul, "tf32"),
    ):
        before = place.fp32_precision
        place.fp32_precision = value
        try:
            units = {unit for device in (cpu, cuda) for unit in product_units(device)}
        finally:
            place.fp32_precision = before
        expected = {"bf16": BRAIN, "tf32": 2.0**-10, "ieee": SINGLE}[value]
        assert expected in units
        assert product_units(cpu) == (SINGLE, SINGLE)
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert (product_units(cpu), product_units(cuda)) == ((BRAIN, BRAIN), (2.0**-10, 2.0**-10))
    x = torch.rand(2, 1, 6, 6)
    with watched(x) as arithmetic:
        logits = NET(x)
    assert arithmetic.unit(logits) == BRAIN
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert product_units(cuda) == (SINGLE, SINGLE)


def test_a_compiled_model_is_still_compiled_after_it_was_watched() -> None:
    code = """
import torch
from pyrobust.arithmetic import watched
compiled = []
def backend(graph, inputs):
    compiled.append(len(inputs))
    return graph.forward
model = torch.compile(lambda x: x * 2, backend=backend)
x = torch.rand(3, 2)
with torch.no_grad():
    with watched(x) as arithmetic:
        model(x)
    assert not compiled
    model(x)
assert compiled
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]

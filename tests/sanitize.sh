#!/usr/bin/env bash
# Run the CPU kernels under the address and undefined-behaviour sanitizers. Needs a build with PYROBUST_SANITIZE=1 in the source
# tree (PYROBUST_SANITIZE=1 python setup.py build_ext --inplace), which is imported ahead of an installed pyrobust.
set -euo pipefail
cd "$(dirname "$0")/.."
asan=$(gcc -print-file-name=libasan.so) ubsan=$(gcc -print-file-name=libubsan.so)
# Preload libstdc++ as well: the sanitizer looks up the C++ runtime's throw before torch has loaded it.
LD_PRELOAD="$asan $ubsan $(gcc -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
  PYTHONPATH=$PWD PYTHONMALLOC=malloc OMP_NUM_THREADS=2 \
  python - <<'PY'
"""Compare shapes around every tile, vector and block boundary at every SIMD level to the scalar code."""
import itertools
from fractions import Fraction

import torch

import pyrobust
from pyrobust import _C, ops
from pyrobust.bounds import BoundedModel
from pyrobust.ops import FAMILIES, count_votes, sample_grid_noise, sample_noise
from pyrobust.ops.logits import LOSSES

assert pyrobust.__file__.startswith(__import__("os").getcwd()), pyrobust.__file__
runs = [(1, 7, 0, 3), (0, 2**32 - 1, 2**32 - 2, 2)]
shapes = [(1,), (3,), (15,), (64,), (65,), (1023,), (1025,), (2049,), (3, 5, 7), (1, 28, 28), (3, 32, 32), (33, 9, 9), (700, 2, 3), (2, 0)]
checked = 0
for shape, noise, dtype in itertools.product(shapes, FAMILIES, (torch.float32, torch.float64, torch.float16, torch.bfloat16)):
    x = torch.rand(2, *shape)
    formats = [torch.contiguous_format, *([torch.channels_last] if len(shape) == 3 else [])]
    normalizations = [None, *([([0.5] * shape[0], [0.25] * shape[0])] if len(shape) > 1 else [])]
    for memory_format, normalize in itertools.product(formats, normalizations):
        batches = []
        for level in _C.simd_levels():
            _C.set_simd_level(level)
            batches.append(
                sample_noise(x, runs, sigma=0.3, noise=noise, dtype=dtype, memory_format=memory_format, normalize=normalize)
            )
        assert all(torch.equal(batches[0], batch) for batch in batches), (shape, noise, dtype, memory_format)
        checked += len(batches)
for shape, dtype, sigma in itertools.product(shapes, (torch.float32, torch.float64, torch.float16, torch.bfloat16), (0.25, 30.0)):
    k = torch.randint(256, (2, *shape), dtype=torch.int32)
    for memory_format in (torch.contiguous_format, *([torch.channels_last] if len(shape) == 3 else [])):
        batches = []
        for level in _C.simd_levels():
            _C.set_simd_level(level)
            batches.append(sample_grid_noise(k, runs, sigma=sigma, step=Fraction(1, 255), dtype=dtype, memory_format=memory_format)[0])
        assert all(torch.equal(batches[0], batch) for batch in batches), (shape, dtype, memory_format)
        checked += len(batches)
for rows, classes, dtype in itertools.product((0, 1, 7, 5000), (1, 2, 10, 1000), (torch.float32, torch.float64, torch.float16, torch.bfloat16)):
    logits = torch.randn(rows, classes).to(dtype)
    logits[::3] = float("nan")
    counts = count_votes(logits, torch.arange(rows) % 3, torch.zeros(3, classes + 1, dtype=torch.int64))
    assert int(counts.sum()) == rows
    checked += 1
    if dtype in (torch.float32, torch.float64):
        y = torch.arange(rows) % classes
        for loss, least in LOSSES.items():
            if classes >= least:
                assert ops.logit_loss(logits, y, (y + 1) % classes, loss).slope.shape == logits.shape
                checked += 1
        assert ops.logit_verdict(logits, y).shape == (rows,)
        checked += 1
sizes = (1, 2, 7, 8, 9, 10, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 511, 512, 1000, 3072, 16383, 16385, 40000)
kinds = [lambda v: v, lambda v: v.round(), lambda v: v * 1e30, lambda v: v * 0, lambda v: torch.where(v > 1.5, v, 0), lambda v: v * 1e-41]
for size, dtype, (number, kind) in itertools.product(sizes, (torch.float32, torch.float64, torch.float16, torch.bfloat16), enumerate(kinds)):
    if number in (2, 5) and dtype in (torch.float16, torch.bfloat16):
        continue
    rows = 19 if size < 65 else 3
    v = kind(torch.randn(rows, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))).to(dtype)
    x = torch.rand(rows, size).to(dtype)
    step, keep = torch.full((1,), 0.25, dtype=torch.float64), torch.tensor([max(1, size // 20)])
    for radius in (0.0, 1.0, 0.01 * size):
        results = []
        for level in _C.simd_levels():
            _C.set_simd_level(level)
            results.append([
                ops.project_simplex(v, radius), ops.project_l1_ball(v, radius), ops.project_l2_ball(v, radius),
                ops.project_linf_ball(v, radius), ops.project_l1_ball_box(v, x, radius), ops.add_perturbation(x, v),
                ops.linf_step(x, v, x, step, 0.1), ops.l1_step(x, v, x, step, keep),
                ops.linf_momentum_step(x, v, x, x, step, 0.1), ops.l1_step_in_ball(x, v, x, step, keep, 0.1),
                ops.count_changed(x, v), ops.put_rows(v[:, 0] > 0, x, v.clone()),
            ])
            checked += 12
        assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other)), (size, dtype, number, radius)


class Residual(torch.nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def conv(*sizes, **options):
    return torch.nn.Conv2d(*sizes, **options)


relu, flat = torch.nn.ReLU, torch.nn.Flatten
nets = [
    ((7,), lambda: [torch.nn.Linear(7, 33), relu(), torch.nn.Linear(33, 17), torch.nn.LeakyReLU(0.1), torch.nn.Linear(17, 3)]),
    ((3, 9, 8), lambda: [conv(3, 9, 3, stride=2, padding=1), relu(), conv(9, 6, (2, 3), groups=3, padding=(0, 1), dilation=(1, 2)),
                         torch.nn.Hardtanh(), torch.nn.MaxPool2d(2, 1), flat(), torch.nn.LazyLinear(4)]),
    ((1, 6, 5), lambda: [conv(1, 5, 3, padding=1), torch.nn.BatchNorm2d(5), relu(), Residual(conv(5, 5, 1), relu(), conv(5, 5, 3, padding=1)),
                         relu(), torch.nn.AvgPool2d(3, 2, 1), torch.nn.Sigmoid(), flat(), torch.nn.LazyLinear(2)]),
]
for (shape, layers), dtype in itertools.product(nets, (torch.float32, torch.float64)):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*layers())
    net(torch.rand(2, *shape))
    net = net.to(dtype).eval()
    x = torch.rand(19, *shape, dtype=dtype)
    bounded, logits = BoundedModel(net, x), net(x).detach().double()
    for method, norm, level in itertools.product(("ibp", "crown-ibp", "crown"), ("linf", "l2", "l1"), _C.simd_levels()):
        _C.set_simd_level(level)
        bounds = bounded.bounds(x, 0.05, norm=norm, method=method, clip=(0, 1))
        assert bool((bounds.lower <= logits + 1e-4).all() and (logits - 1e-4 <= bounds.upper).all()), (shape, method, norm, level)
        checked += 1
for size, rows, dtype in itertools.product((1, 7, 8, 15, 16, 17, 33, 511, 512, 513, 1100), (1, 3), (torch.float32, torch.float64)):
    a, lower = torch.randn(2, rows, size).to(dtype), torch.randn(2, size).to(dtype)
    upper = lower + torch.rand(2, size).to(dtype)
    results = []
    for level in _C.simd_levels():
        _C.set_simd_level(level)
        results.append([*ops.relax_coefficients(a, lower, upper, 0.1)])
        results[-1] += torch.ops.pyrobust.relax_coefficients_backward(a, a[..., 0].contiguous(), a, lower, upper, 0.1)
        checked += 2
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other)), (size, rows, dtype)
    image = torch.tensor([1, 0, 1])[:rows]
    concretized = ops.concretize_rows(a[0], image, lower, upper)
    assert torch.equal(ops.relax_rows(a[0].clone(), image, lower, upper, lower, upper), concretized), (size, rows, dtype)
    checked += 2
for examples, planes, kernel, stride in itertools.product((0, 1, 7, 9, 16, 17, 145), ((1, 1), (3, 8), (5, 11)), (1, 3, 4), (1, 2)):
    for dtype, level in itertools.product((torch.float32, torch.float64), _C.simd_levels()):
        _C.set_simd_level(level)
        options = {"stride": (stride, 1), "padding": (1, kernel - 1), "dilation": (1, 2)}
        x, weight = torch.randn(planes[0], 8, 9, examples).to(dtype), torch.randn(planes[1], planes[0], kernel, kernel).to(dtype)
        y = ops.batch_last_conv(x, weight, weight[:, 0, 0, 0].contiguous(), x[0, 0, 0], **options)
        assert ops.batch_last_conv_transposed(y, weight, (8, 9), **options).shape == x.shape
        assert ops.batch_last_conv_weight(x, y, (kernel, kernel), **options).shape == weight.shape
        checked += 3
for examples, rows, shared in itertools.product((0, 1, 7, 8, 15, 16, 17, 127, 129, 300), (0, 1, 3), (False, True)):
    for dtype, level in itertools.product((torch.float32, torch.float64), _C.simd_levels()):
        _C.set_simd_level(level)
        a, center, radius = (torch.rand(65, *shape).to(dtype) - 0.3 for shape in ((rows, examples), (examples,), (1 if shared else examples,)))
        tensors = [t.requires_grad_() for t in (a, center, radius)]
        results = [*ops.batch_last_relu_intervals(*tensors[1:], 0.1), *ops.batch_last_relax(*tensors, 0.1), ops.batch_last_concretize(*tensors)]
        assert all(g.shape == t.shape for g, t in zip(torch.autograd.grad(sum(r.sum() for r in results), tensors), tensors))
        checked += 6
print(f"sanitizers: {checked} calls, nothing reported")
PY

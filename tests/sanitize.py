"""Call every CPU kernel at shapes around its tile, vector and block boundaries, at each SIMD level.

Run by sanitize.sh under the address and undefined-behaviour sanitizers. Each function checks one subject, and compares
the levels bit for bit where these promise equal bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn

import pyrobust
from pyrobust import _C, ops
from pyrobust.bounds import BoundedModel
from pyrobust.bounds.methods import METHODS
from pyrobust.ops import FAMILIES, count_votes, sample_grid_noise, sample_noise
from pyrobust.ops.logits import LOSSES

FLOATS = (torch.float32, torch.float64)
ALL_FLOATS = (*FLOATS, torch.float16, torch.bfloat16)


def simd_levels() -> Iterator[str]:
    """Set each level of this machine in turn."""
    for level in _C.simd_levels():
        _C.set_simd_level(level)
        yield level


def same_bits(results: list[list[Tensor]]) -> bool:
    """Whether all levels gave the same tensors as the first one."""
    return all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


# (row, image, first sample, count): the smallest and the largest indices.
RUNS = [(1, 7, 0, 3), (0, 2**32 - 1, 2**32 - 2, 2)]
IMAGE_SHAPES = (
    *((size,) for size in (1, 3, 15, 64, 65, 1023, 1025, 2049)),
    *((3, 5, 7), (1, 28, 28), (3, 32, 32), (33, 9, 9), (700, 2, 3), (2, 0)),
)


def memory_formats(shape: tuple[int, ...]) -> list[torch.memory_format]:
    return [torch.contiguous_format] + [torch.channels_last] * (len(shape) == 3)


def noise() -> None:
    for shape, family, dtype in itertools.product(IMAGE_SHAPES, FAMILIES, ALL_FLOATS):
        x = torch.rand(2, *shape)
        normalizations = [None] if len(shape) == 1 else [None, ([0.5] * shape[0], [0.25] * shape[0])]
        for memory_format, normalize in itertools.product(memory_formats(shape), normalizations):
            options = {"dtype": dtype, "memory_format": memory_format, "normalize": normalize}
            batches = [[sample_noise(x, RUNS, sigma=0.3, noise=family, **options)] for _ in simd_levels()]
            assert same_bits(batches), (shape, family, options)


def grid_noise() -> None:
    for shape, dtype, sigma in itertools.product(IMAGE_SHAPES, ALL_FLOATS, (0.25, 30.0)):
        k = torch.randint(256, (2, *shape), dtype=torch.int32)
        for memory_format in memory_formats(shape):
            options = {"sigma": sigma, "dtype": dtype, "memory_format": memory_format}
            batches = [[sample_grid_noise(k, RUNS, step=Fraction(1, 255), **options)[0]] for _ in simd_levels()]
            assert same_bits(batches), (shape, options)


def logits() -> None:
    for rows, classes, dtype in itertools.product((0, 1, 7, 5000), (1, 2, 10, 1000), ALL_FLOATS):
        values = torch.randn(rows, classes).to(dtype)
        values[::3] = float("nan")
        counts = count_votes(values, torch.arange(rows) % 3, torch.zeros(3, classes + 1, dtype=torch.int64))
        assert int(counts.sum()) == rows
        if dtype not in FLOATS:
            continue
        y = torch.arange(rows) % classes
        for loss, fewest_classes in LOSSES.items():
            if classes >= fewest_classes:
                assert ops.logit_loss(values, y, (y + 1) % classes, loss).slope.shape == values.shape
        assert ops.logit_verdict(values, y).shape == (rows,)


ROW_SIZES = (1, 2, 7, 8, 9, 10, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 511, 512, 1000, 3072, 16383, 16385, 40000)
# Spread values, ties, zeros, sparse rows; magnitudes that overflow and underflow, also in the 16-bit floats.
ROW_KINDS = {
    "spread": lambda v: v,
    "ties": lambda v: v.round(),
    "zeros": lambda v: v * 0,
    "sparse": lambda v: torch.where(v > 1.5, v, 0),
    "large": lambda v: v * 1e30,
    "denormal": lambda v: v * 1e-41,
}


def projections_and_steps() -> None:
    for size, dtype, (kind, values) in itertools.product(ROW_SIZES, ALL_FLOATS, ROW_KINDS.items()):
        if kind in ("large", "denormal") and dtype not in FLOATS:
            continue
        rows = 19 if size < 65 else 3
        draw = torch.Generator().manual_seed(size)
        v = values(torch.randn(rows, size, dtype=torch.float64, generator=draw)).to(dtype)
        x = torch.rand(rows, size).to(dtype)
        step, keep = torch.full((1,), 0.25, dtype=torch.float64), torch.tensor([max(1, size // 20)])
        side = -(-size // 2)
        patterns = torch.ones(2, side, dtype=torch.float64)
        for radius in (0.0, 1.0, 0.01 * size):
            results = [
                [
                    ops.project_simplex(v, radius),
                    ops.project_l1_ball(v, radius),
                    ops.project_l2_ball(v, radius),
                    ops.project_linf_ball(v, radius),
                    ops.project_l1_ball_box(v, x, radius),
                    ops.add_perturbation(x, v),
                    ops.linf_step(x, v, x, step, 0.1),
                    ops.l1_step(x, v, x, step, keep),
                    ops.linf_momentum_step(x, v, x, x, step, 0.1),
                    ops.l1_step_in_ball(x, v, x, step, keep, 0.1),
                    *(ops.hyperplane_step(x, x, v, step.expand(rows), norm) for norm in ("linf", "l2", "l1")),
                    *(
                        ops.square_window(x, x, v[:, :1].expand(-1, 6), patterns, radius, (1, side), norm)
                        for norm in ("l2", "l1")
                    ),
                    ops.count_changed(x, v),
                    ops.put_rows(v[:, 0] > 0, x, v.clone()),
                ]
                for _ in simd_levels()
            ]
            assert same_bits(results), (size, dtype, kind, radius)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def dense_net() -> list[nn.Module]:
    return [nn.Linear(7, 33), nn.ReLU(), nn.Linear(33, 17), nn.LeakyReLU(0.1), nn.Linear(17, 3)]


def grouped_net() -> list[nn.Module]:
    first = nn.Conv2d(3, 9, 3, stride=2, padding=1)
    grouped = nn.Conv2d(9, 6, (2, 3), groups=3, padding=(0, 1), dilation=(1, 2))
    return [first, nn.ReLU(), grouped, nn.Hardtanh(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.LazyLinear(4)]


def residual_net() -> list[nn.Module]:
    block = Residual(nn.Conv2d(5, 5, 1), nn.ReLU(), nn.Conv2d(5, 5, 3, padding=1))
    head = [nn.AvgPool2d(3, 2, 1), nn.Sigmoid(), nn.Flatten(), nn.LazyLinear(2)]
    return [nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), block, nn.ReLU(), *head]


NETS = [((7,), dense_net), ((3, 9, 8), grouped_net), ((1, 6, 5), residual_net)]


def bounds() -> None:
    for (shape, layers), dtype in itertools.product(NETS, FLOATS):
        net = nn.Sequential(*layers())
        net(torch.rand(2, *shape))  # gives the lazy layers their shapes
        net = net.to(dtype).eval()
        x = torch.rand(19, *shape, dtype=dtype)
        bounded, outputs = BoundedModel(net, x), net(x).detach().double()
        for method, norm in itertools.product(METHODS, ("linf", "l2", "l1")):
            for level in simd_levels():
                result = bounded.bounds(x, 0.05, norm=norm, method=method, clip=(0, 1), iterations=2)
                assert (result.lower <= outputs + 1e-4).all(), (shape, method, norm, level)
                assert (outputs - 1e-4 <= result.upper).all(), (shape, method, norm, level)


def relaxations() -> None:
    sizes = (1, 7, 8, 15, 16, 17, 33, 511, 512, 513, 1100)
    for size, rows, dtype in itertools.product(sizes, (1, 3), FLOATS):
        a, lower = torch.randn(2, rows, size).to(dtype), torch.randn(2, size).to(dtype)
        upper = lower + torch.rand(2, size).to(dtype)
        results = []
        for _ in simd_levels():
            gradients = torch.ops.pyrobust.relax_coefficients_backward(a, a[..., 0].contiguous(), a, lower, upper, 0.1)
            results.append([*ops.relax_coefficients(a, lower, upper, 0.1), *gradients])
        assert same_bits(results), (size, rows, dtype)
        image = torch.tensor([1, 0, 1])[:rows]
        concretized = ops.concretize_rows(a[0], image, lower, upper)
        relaxed = ops.relax_rows(a[0].clone(), image, lower, upper, lower, upper)
        assert torch.equal(relaxed, concretized), (size, rows, dtype)


def batch_last_convolutions() -> None:
    sizes = itertools.product((0, 1, 7, 9, 16, 17, 145), ((1, 1), (3, 8), (5, 11)), (1, 3, 4), (1, 2), FLOATS)
    for examples, (inputs, outputs), kernel, stride, dtype in sizes:
        options = {"stride": (stride, 1), "padding": (1, kernel - 1), "dilation": (1, 2)}
        shapes = (inputs, 8, 9, examples), (outputs, inputs, kernel, kernel)
        x, weight = (torch.randn(shape).to(dtype) for shape in shapes)
        for _ in simd_levels():
            y = ops.batch_last_conv(x, weight, weight[:, 0, 0, 0].contiguous(), x[0, 0, 0], **options)
            assert ops.batch_last_conv_transposed(y, weight, (8, 9), **options).shape == x.shape
            assert ops.batch_last_conv_weight(x, y, (kernel, kernel), **options).shape == weight.shape


def batch_last_relaxations() -> None:
    sizes = itertools.product((0, 1, 7, 8, 15, 16, 17, 127, 129, 300), (0, 1, 3), (False, True), FLOATS)
    for examples, rows, shared_radius, dtype in sizes:
        shapes = ((rows, examples), (examples,), (1 if shared_radius else examples,))
        tensors = [(torch.rand(65, *shape).to(dtype) - 0.3).requires_grad_() for shape in shapes]
        a, center, radius = tensors
        for _ in simd_levels():
            results = [
                *ops.batch_last_relu_intervals(center, radius, 0.1),
                *ops.batch_last_relax(a, center, radius, 0.1),
                ops.batch_last_concretize(a, center, radius),
            ]
            gradients = torch.autograd.grad(sum(result.sum() for result in results), tensors)
            assert all(g.shape == t.shape for g, t in zip(gradients, tensors, strict=True))


SUBJECTS = (
    noise,
    grid_noise,
    logits,
    projections_and_steps,
    bounds,
    relaxations,
    batch_last_convolutions,
    batch_last_relaxations,
)

if __name__ == "__main__":
    source = Path(__file__).resolve().parent.parent / "pyrobust"
    assert Path(pyrobust.__file__).parent == source, f"expected the build in {source}, got {pyrobust.__file__}"
    torch.manual_seed(0)
    for subject in SUBJECTS:
        subject()
        print(f"sanitizers: {subject.__name__}, nothing reported")

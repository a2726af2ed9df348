"""Every lowering rule against the module itself, and refused models."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support.bounds.engines import NAMES, engine_of
from support.bounds.layers import FLAT, LAYERS, LINE, PLANE, Called, Recurrent, Steps, normalized
from torch import Tensor, nn
from torch.nn import functional as f

from pyrobust.bounds import BoundedModel
from pyrobust.bounds.engines.query import Query
from pyrobust.bounds.graph.capture import capture
from pyrobust.bounds.graph.evaluate import forward
from pyrobust.bounds.graph.lowering.registry import RULES
from pyrobust.bounds.graph.nodes import Activation, Gather, Reshape, Sum, in_order
from pyrobust.bounds.input_set import ball
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.runner import logits_of


class Each(nn.Module):
    """Several modules and functions of one input, their outputs side by side."""

    def __init__(self, *bodies: nn.Module | Callable[..., Tensor]) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(body if isinstance(body, nn.Module) else Called(body) for body in bodies)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([body(x).flatten(1) for body in self.bodies], 1)


GROUPS, TWICE = torch.tensor([0, 2, 0, 1]), torch.tensor([1, 1, 4])
index_put = torch.ops.aten.index_put


def rows(z: Tensor, *places: int) -> Tensor:
    """The same indices for each example."""
    return torch.tensor([places]).expand(len(z), -1)


CASES: list[tuple[tuple[int, ...], nn.Module | Callable[..., Tensor]]] = [
    # affine
    (FLAT, Each(nn.Linear(6, 3), nn.Linear(6, 3, bias=False))),
    (PLANE, nn.Linear(5, 2)),
    (FLAT, Each(lambda x, m: x @ m.matrix, lambda x, m: torch.addmm(m.row, torch.mm(x, m.matrix), m.matrix))),
    (LINE, Each(lambda x, m: m.matrix[:3, :4] @ x, lambda x, m: torch.matmul(x.mT, m.matrix[:4]))),
    (LINE, Each(nn.Conv1d(4, 6, 3, 2, 1, 2, 2), nn.Conv1d(4, 6, 4, padding="same"))),
    (PLANE, Each(nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0)), nn.Conv2d(4, 6, 3, 1, 2, (2, 1), 2))),
    (PLANE, Each(nn.Conv2d(4, 8, 3, groups=4, bias=False), nn.Conv2d(4, 3, (2, 3), padding="same", dilation=(1, 2)))),
    (
        PLANE,
        lambda x, m: torch.convolution(
            x, m.matrix[:3, :4, None, None], m.row[:3], (2, 1), (1, 0), (1, 1), False, (0, 0), 1
        ),
    ),
    (FLAT, normalized(nn.BatchNorm1d(6))),
    (PLANE, normalized(nn.BatchNorm2d(4, affine=False))),
    (FLAT, Each(lambda x, m: x + m.row, lambda x, m: torch.add(x, m.row, alpha=3), lambda x, m: m.row - x)),
    (FLAT, Each(lambda x: 1 - x, lambda x: torch.rsub(x, 2.0, alpha=3), lambda x, m: torch.rsub(x, m.row))),
    (FLAT, Each(lambda x, m: torch.sub(x, m.row, alpha=0.5), lambda x: torch.sub(x, x.flip(1), alpha=0.5))),
    (FLAT, Each(lambda x: x + 2 * x, lambda x: -x, lambda x, m: x * m.row, lambda x: 0.3 * x, lambda x: x / 3)),
    (FLAT, Each(lambda x: torch.ops.aten.mul.Scalar(x, 0.3), lambda x: torch.ops.aten.div.Scalar(x, 3))),
    (FLAT, Each(lambda x, m: x / m.row, lambda x, m: (x - m.row) / (m.row * m.row + 1).sqrt())),
    (FLAT, lambda x, m: x * (m.row + 1).rsqrt() - (-m.row).reciprocal()),
    (PLANE, lambda x: x[:, :1] + x),
    (PLANE, lambda x, m: x * m.row[:4].view(1, 4, 1, 1) + m.row[:4].view(4, 1, 1)),
    # elementwise functions
    (FLAT, nn.Sequential(nn.Hardtanh(-9, 9), nn.ReLU(inplace=True))),
    (PLANE, Each(nn.LeakyReLU(0.3), nn.PReLU(4))),
    (FLAT, Each(nn.Hardtanh(), nn.Hardtanh(-0.5, 0.25), lambda x: f.hardtanh(x, -0.25), nn.ReLU6())),
    (FLAT, Each(lambda x: x.clamp(-0.5, 0.5), lambda x: x.clamp(min=-0.5), lambda x: x.clamp(max=0.5))),
    (FLAT, Each(lambda x: torch.clamp_min(x, 0.1), lambda x: torch.clamp_max(x, 0.1), lambda x: f.relu6(x))),
    (FLAT, Each(nn.Sigmoid(), nn.Tanh(), lambda x: torch.erf(x), nn.PReLU())),
    (FLAT, lambda x: f.leaky_relu(x, 1.5) + f.leaky_relu(x, -0.1) + f.rrelu(x)),
    (FLAT, lambda x: torch.maximum(x, x.flip(1)) - torch.max(x, x.abs())),
    (FLAT, lambda x: torch.minimum(x, x.flip(1)) - torch.min(torch.tensor(0.5, dtype=x.dtype), x)),
    (FLAT, nn.Sequential(nn.GELU(), nn.GELU("tanh"))),
    (FLAT, nn.Sequential(nn.SiLU(), nn.Mish(inplace=True), nn.Hardswish(), nn.Hardsigmoid())),
    (FLAT, nn.Sequential(nn.ELU(2.0), nn.CELU(0.5), nn.SELU(), nn.Softplus(2, 10), nn.LogSigmoid())),
    (FLAT, nn.Sequential(nn.Tanhshrink(), nn.Softshrink(0.25), nn.Threshold(0.5, 0.5), nn.Softsign())),
    (FLAT, lambda x: x.sin() + x.cos() + x.atan() + (x.relu() + 1).log2() + x.relu().log1p() + x.expm1() + x.exp2()),
    (FLAT, lambda x: (x.abs() + 1).sqrt() + (x.relu() + 1).rsqrt() + x.clamp(-2, 2).exp() + (x.abs() + 1).log()),
    (FLAT, lambda x: 3 / (x.abs() + 1) + x**3 + x.square() + (x.abs() + 1) ** 0.7),
    # products, quotients and contractions of two tensors
    (FLAT, Each(lambda x: x * x.flip(1), lambda x: x * x, lambda x: x / (9 + x.flip(1)), lambda x, m: m.row / (9 + x))),
    (LINE, Each(lambda x: x @ x.mT, lambda x: torch.bmm(x.mT, x), lambda x: torch.baddbmm(x @ x.mT, x, x.mT))),
    (LINE, lambda x: torch.einsum("bij,bkj->bki", x, x.flip(1))),
    (PLANE, Each(lambda x: x[:, :1] @ x.mT, lambda x: torch.einsum("bcij,bckj->bik", x, x.flip(1)))),
    (PLANE, Each(lambda x: f.glu(x, 2), lambda x: x * x.sum((2, 3), keepdim=True))),
    (FLAT, Each(lambda x: f.glu(x, 1), lambda x: torch.addcmul(x, x, x.flip(1), value=-0.5))),
    (FLAT, lambda x: torch.addcdiv(x, x, 9 + x.flip(1))),
    # softmax, attention, normalisation by the input's own statistics
    (PLANE, Each(lambda x: x.softmax(1), lambda x: x[:, :1].softmax(1), lambda x: x.log_softmax(-1))),
    (PLANE, Each(lambda x: x.logsumexp((1, 3)), lambda x: x.var((2, 3), correction=0))),
    (LINE, lambda x: f.scaled_dot_product_attention(x, x.flip(2), x.flip(1))),
    (LINE, lambda x: f.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.3)),
    (LINE, lambda x, m: f.scaled_dot_product_attention(x, x, x, m.matrix[:4, :4])),
    (PLANE, nn.LayerNorm(5)),
    (LINE, lambda x, m: f.layer_norm(x, (4, 7), None, x.new_ones(4, 7))),
    (PLANE, lambda x, m: f.group_norm(x, 2, m.row[:4], m.row[:4])),
    (LINE, lambda x: f.instance_norm(x)),
    (LINE, normalized(nn.InstanceNorm1d(4, affine=True, track_running_stats=True))),
    (LINE, nn.RMSNorm(7)),
    (PLANE, nn.RMSNorm((6, 5), eps=0.1, elementwise_affine=False)),
    (FLAT, lambda x: f.normalize(x, dim=1)),
    (PLANE, Each(lambda x: x.norm(p=1, dim=(1, 3)), lambda x: x.norm(p=math.inf, dim=2, keepdim=True))),
    (LINE, lambda x: x.std((1, 2), correction=2)),
    # pooling and reductions
    (PLANE, Each(nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, dilation=2))),
    (PLANE, nn.MaxPool2d((2, 3), (1, 2), (1, 1), 1, ceil_mode=True)),
    (LINE, Each(nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(3, 2, 1), nn.AdaptiveAvgPool1d(3), lambda x: x.sum(-1))),
    (PLANE, Each(lambda x: x.amax((2, 3)), lambda x: x.amax(1, keepdim=True), lambda x: x.amin((1, 3)))),
    (PLANE, lambda x: x[:, :2].amin(1, keepdim=True) - x[:, 1:3].amax(1, keepdim=True)),
    (PLANE, lambda x: x.max(2)[0].min(1, keepdim=True).values),
    (LINE, lambda x: x.sort(1)[0] + x.sort(descending=True).values + torch.sort(x, dim=1, stable=True)[0]),
    (PLANE, lambda x: torch.cat([torch.max(*x.chunk(2, 1)), torch.min(*x.chunk(2, 1))], 1)),
    (PLANE, lambda x: torch.maximum(x, x[:, :1]) - torch.minimum(torch.ones(5, dtype=x.dtype), x)),
    (PLANE, lambda x: torch.linalg.vector_norm(x, dim=(2, 3)) + x.norm(1, (2, 3)) - x.norm(torch.inf, (2, 3))),
    (PLANE, lambda x: torch.linalg.vector_norm(x, torch.inf, dim=1).amax(1)),  # without the norm's dimension
    (PLANE, nn.LPPool2d(2, 3, 1)),
    (PLANE, Each(nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False))),
    (PLANE, Each(nn.AvgPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d((2, 3), divisor_override=5))),
    (PLANE, nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)),
    (PLANE, Each(nn.AdaptiveAvgPool2d((4, 3)), lambda x: x.mean((2, 3)), lambda x: x.mean(-1, keepdim=True))),
    # rearrangements
    (
        FLAT,
        Each(
            lambda x: torch.hstack([x, x]),
            lambda x: torch.column_stack([x, x]),
            lambda x: x.repeat(1, 2) + x.tile(1, 2),
            lambda x, m: torch.where(m.mask, x, 0.5) + x.masked_fill(m.mask, m.row[0].detach()),
            lambda x, m: torch.take_along_dim(x, m.places[None].expand(len(x), -1), 1),
            lambda x, m: torch.lerp(x, m.row, 0.3),
        ),
    ),
    (
        PLANE,
        Each(lambda x: torch.dstack([x, x]), lambda x: torch.concat([x, x], 2), lambda x: x.reshape(len(x), 8, 15)),
    ),
    (PLANE, Each(lambda x: x.movedim(1, 3).swapaxes(1, 2), lambda x: x.rot90(1, (2, 3)))),
    (PLANE, Each(lambda x: x.var((1, 2), unbiased=False), lambda x: x.std(1, keepdim=True))),
    (PLANE, nn.Flatten()),
    (FLAT, nn.Unflatten(1, (2, 3))),
    (PLANE, lambda x: x.view(x.shape[0], -1)),
    (PLANE, Each(lambda x: x.permute(0, 3, 1, 2), lambda x: x.transpose(1, 2).contiguous().view(len(x), -1))),
    (PLANE, Each(lambda x: x[:, 1:3, ::2], lambda x: x[:, 2], lambda x: x.narrow(2, 1, 3), lambda x: x.flip(3))),
    (FLAT, lambda x: x.unsqueeze(1).expand(-1, 3, -1)),
    (FLAT, lambda x: x[:, None].squeeze(1) + x[:, None, :, None].squeeze((1, 3)) + x[:, None].squeeze()),
    (PLANE, Each(lambda x: x.roll((1, 2), (2, 3)), nn.PixelShuffle(2), nn.ChannelShuffle(2))),
    (LINE, lambda x: f.pixel_unshuffle(x.view(len(x), 1, 4, 7)[:, :, :, :6], 2)),
    (PLANE, Each(lambda x: torch.cat([x, x[:, :1], x], 1), lambda x: torch.stack([x, x.flip(1)], 2))),
    (PLANE, Each(lambda x: torch.cat(x.split([1, 3], 1)[::-1], 1), lambda x: x.chunk(2, 1)[1])),
    (LINE, lambda x: x.unbind(1)[2]),
    (PLANE, Each(lambda x: f.pad(x, (1, 2, 0, 1)), lambda x: f.pad(x, (-1, 1)), nn.ReflectionPad2d(1))),
    (PLANE, Each(nn.ReplicationPad2d((1, 0, 2, 1)), nn.CircularPad2d(1), nn.Upsample(scale_factor=2))),
    (PLANE, lambda x: torch.constant_pad_nd(x, (1, 2, 0, 1))),
    (FLAT, Each(lambda x: x.detach(), lambda x: torch.ops.aten.alias(x))),
    (FLAT, lambda x: torch.ops.aten._unsafe_view(x, (-1, 2, 3))),
    (PLANE, Each(nn.Dropout(), nn.Dropout2d(), nn.Identity())),
    # sums and writes at constant places
    (LINE, lambda z: torch.zeros(len(z), 3, 7).to(z).index_add(1, GROUPS, z)),
    (LINE, lambda z: z.new_ones(len(z), 3, 7).index_add_(1, GROUPS, z)),
    (LINE, lambda z: z.index_add(2, TWICE[:2], z[:, :, :2], alpha=-0.7)),
    (FLAT, lambda z: (2 * z).scatter_add(1, rows(z, 0, 5, 5, 2), z.relu())),
    (FLAT, lambda z: z.scatter(1, rows(z, 3, 1), z.relu()) + z.scatter(1, rows(z, 3, 3), 5.0)),
    (FLAT, lambda z: torch.zeros_like(z).index_copy(1, TWICE[1:], z[:, :2])),
    (FLAT, lambda z: index_put(z, [None, TWICE[1:]], z[:, :2].relu(), False)),
    (FLAT, lambda z: index_put(z, [None, TWICE], torch.tensor(0.5).to(z), False)),  # one number twice
    (FLAT, lambda z: index_put(z, [None, TWICE], z[:, :3].relu(), True)),
    (FLAT, lambda z: index_put(z, [None, TWICE], z[:, :1].relu(), True)),
    *LAYERS,
    # masks that leave elements out of a softmax
    (LINE, lambda x: x.masked_fill(torch.ones(4, 7, dtype=torch.bool).triu(1), -torch.inf).softmax(2)),
    (LINE, lambda x, m: (x + m.row[:1] + torch.full((4, 7), -torch.inf).triu(1)).view(-1, 4, 7).softmax(-1)),
    # recurrence
    (LINE, Recurrent(nn.RNN(7, 3, batch_first=True))),
    (LINE, Recurrent(nn.RNN(7, 3, nonlinearity="relu", bias=False), last=True)),
    (LINE, Recurrent(nn.GRU(7, 3, bidirectional=True, batch_first=True))),
    (LINE, Recurrent(nn.GRU(7, 3, num_layers=2), last=True)),
    (LINE, Recurrent(nn.LSTM(7, 3, num_layers=2, bidirectional=True, batch_first=True))),
    (LINE, Recurrent(nn.LSTM(7, 4, proj_size=2, batch_first=True), last=True)),
    (LINE, Steps(nn.RNNCell(7, 3), torch.tensor([0.5, -2.0, 0.0]))),
    (LINE, Steps(nn.RNNCell(7, 3, nonlinearity="relu"))),
    (LINE, Steps(nn.GRUCell(7, 3), torch.tensor([0.5, -2.0, 0.0]))),
    (LINE, Steps(nn.LSTMCell(7, 3, bias=False))),
]


class Noted(dict[object, object]):
    """The lowering rules, with a record of those that were looked up."""

    def __init__(self) -> None:
        super().__init__(RULES)
        self.asked: set[object] = set()

    def get(self, key: object, default: object = None) -> object:
        self.asked.add(key)
        return super().get(key, default)


NOTED, RAN = Noted(), set()


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_graph_matches_the_module(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrobust.bounds.graph.capture.RULES", NOTED)
    shape, module = CASES[case]
    model = (module if isinstance(module, nn.Module) else Called(module)).eval().double()
    x = torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    expected = logits_of(model(x.clone())).detach()
    output = capture(model, x)
    assert output.shape == tuple(expected.shape[1:])
    torch.testing.assert_close(forward(output, x), expected, rtol=1e-12, atol=1e-12)
    # The engines compute the graph, too; a sum of one term covers graphs without any operation.
    graph = Sum(name="sum", shape=output.shape, inputs=(output,), signs=(1,))
    corners = torch.randint(2, (8, *x.shape), generator=torch.Generator().manual_seed(2)).double() * 0.25 - 0.125
    values = [logits_of(model(x + corner)).detach().reshape(3, -1) for corner in corners]
    # Each method in one engine on a small ball, in the other on a large one.
    for name, (small, large) in zip(NAMES, (("ibp", "crown"), ("crown", "ibp")), strict=True):
        engine = engine_of(graph, torch.float64, name)
        lower, upper = engine.run(ball(x, 1e-9, "linf", None, shape), None, Query(small, True, "real", None))
        value = expected.reshape(3, -1)
        assert ((lower <= value + 1e-12) & (value <= upper + 1e-12)).all()
        assert ((upper - lower) < 1e-4).all()
        lower, upper = engine.run(ball(x, 0.125, "linf", None, shape), None, Query(large, True, "real", None))
        assert all(((lower <= value + 1e-12) & (value <= upper + 1e-12)).all() for value in values)
    RAN.add(case)


class Stemmed(nn.Module):
    """A module after a linear layer; its logits are flattened."""

    def __init__(self, features: int, body: nn.Module) -> None:
        super().__init__()
        self.stem, self.body = nn.Linear(features, features), body

    def forward(self, x: Tensor) -> Tensor:
        return logits_of(self.body(self.stem(x))).unsqueeze(1).flatten(1)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_deployed_values_are_inside(case: int) -> None:
    """Check float32 values in balls, half of them at corners; an operator whose rounding is unknown is refused."""
    shape, module = CASES[case]
    torch.manual_seed(0)
    model = Stemmed(shape[-1], module if isinstance(module, nn.Module) else Called(module)).float().eval()
    x, epsilon = torch.rand(2, *shape) * 2 - 1, 0.05
    signs = torch.rand(128, *x.shape) * 2 - 1
    signs[::2] = signs[::2].sign()
    with torch.no_grad():
        values = model((x + epsilon * signs).flatten(0, 1)).view(128, 2, -1)
    bounded, tolerance = BoundedModel(model, x), 1e-5 * (1 + values.abs())
    for method in ("ibp", "crown-ibp", "crown"):
        bounds = bounded.bounds(x, epsilon, method=method)
        assert ((bounds.lower <= values + tolerance) & (values - tolerance <= bounds.upper)).all()
    try:
        bounds = bounded.bounds(x, epsilon * (1 + 1e-6), semantics="float32")
    except InputError as error:
        assert "float32" in str(error)  # noqa: PT017 - of the dtypes, some are taken
    else:
        assert ((bounds.lower <= values) & (values <= bounds.upper)).all()


#: Rules that name what cannot be bounded.
REFUSING = {f"aten.{name}.Scalar" for name in ("eq", "ge", "gt", "le", "lt", "ne")} | {"aten.sign.default"}
#: Operators that this torch replaces by others while it traces.
OF_OTHER_TORCHES = {
    f"aten.{name}"
    for name in (
        *("contiguous.default", "fill.Scalar", "lift_fresh_copy.default", "vstack.default", "split.Tensor"),
        *("_assert_tensor_metadata.default", "_native_batch_norm_legit_no_training.default"),
    )
}


def test_every_rule_was_used() -> None:
    """Check that the cases cover every operator with a lowering rule."""
    if len(RAN) < len(CASES):
        pytest.skip("only some of the cases were run")
    unused = set(map(str, set(RULES) - NOTED.asked))
    assert unused - REFUSING - OF_OTHER_TORCHES == set()


REFUSED: list[tuple[tuple[int, ...], Callable[..., Tensor], str]] = [
    (FLAT, lambda x: x.softmax(0), "softmax"),
    (FLAT, lambda x: x.lgamma(), "lgamma"),
    (FLAT, lambda x: f.hardshrink(x), "jumps"),
    (FLAT, lambda x: f.threshold(x, 1.0, 2.0), "it jumps at 1.0"),
    (FLAT, lambda x: x.sign(), "jumps"),
    (FLAT, lambda x: f.elu(x, 1.0, -1.0), "elu"),
    (FLAT, lambda x: f.softplus(x, -1.0), "softplus"),
    (FLAT, lambda x: f.softplus(x, 1.0, 100.0), "threshold in"),
    (FLAT, lambda x: f.celu(x, -1.0), "celu"),
    (FLAT, lambda x: x**0, "pow"),
    (FLAT, lambda x: x.norm(p=3, dim=1, keepdim=True), "norm"),
    (FLAT, lambda x: f.rms_norm(x, (6,)), "rms_norm"),
    (PLANE, lambda x: torch.einsum("bchw,dchw->bd", x, x), "einsum"),
    (PLANE, lambda x: x.var((0, 1)), "var"),
    (FLAT, lambda x: f.leaky_relu(x, math.nan), "leaky_relu"),
    (FLAT, lambda x: f.rrelu(x, training=True), "rrelu"),
    (FLAT, lambda x: f.linear(x, x), "linear"),
    (FLAT, lambda x: f.dropout(x, 0.5, training=True), "dropout"),
    (FLAT, lambda x: x.double(), r"to.dtype.*float32 to torch.float64; convert the whole model"),
    (LINE, lambda x: torch.einsum("bij,kl->bk", x, torch.ones(2, 2)), "einsum"),
    (LINE, lambda x, m: torch.einsum("bij,ijk->kb", x, m.cube), "batch as the first"),
    (FLAT, lambda x: f.batch_norm(x, None, None, training=True), "batch_norm"),
    (FLAT, lambda x: torch.cat([x, torch.ones(2, 6)], 1), "forward pass failed"),
    (FLAT, lambda x: torch.cat([x, torch.arange(12.0).view(2, 6)], 1), "differs between the examples"),
    (PLANE, lambda x: f.interpolate(x, scale_factor=2, mode="bilinear", antialias=True), "upsample"),
    (FLAT, lambda x: torch.where(x > 0, x, 0.2 * x), "gt"),
    (FLAT, lambda x: 2**x, "pow"),
    (FLAT, lambda x, m: x.clamp(m.row - 2, m.row), "clamp"),
    (FLAT, lambda x: x + 0.1 * torch.randn_like(x), "randn_like"),
    (FLAT, lambda x, m: f.embedding((x.abs() * 3).long(), m.matrix), "it converts"),
    # mixes the examples of a batch
    (FLAT, lambda x: x - x.mean(0), "mean"),
    (FLAT, lambda x: x.view(3, 4), "view"),
    (FLAT, lambda x: x.cumsum(0), "mixes"),
    (FLAT, lambda x, m: m.cube[0, :2].mT @ x, "mixes"),
    (LINE, lambda x, m: torch.einsum("bij,ijk->k", x, m.cube), "mixes"),
    (FLAT, lambda x: x.sort(0)[0], "sort"),
    (FLAT, lambda x: x + x.max(1, keepdim=True)[1], "add"),
]


@pytest.mark.parametrize(("shape", "function", "operator"), REFUSED)
def test_operators_without_a_rule_are_refused(
    shape: tuple[int, ...], function: Callable[..., Tensor], operator: str
) -> None:
    with pytest.raises(ModelError, match=operator):
        capture(Called(function), torch.zeros(1, *shape))


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.lgamma(x)


def test_the_error_names_operator_module_and_line() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.ReLU(), Inner())).eval()
    with pytest.raises(ModelError, match=r"(?s)1\.1 \(aten.lgamma\).*test_capture.py.*torch.lgamma\(x\)"):
        capture(model, torch.zeros(1, 6))


@pytest.mark.parametrize("branch", [lambda x: x if x.sum() > 0 else -x, lambda x: x * x.max().item()])
def test_a_branch_on_the_data_is_refused(branch: Callable[..., Tensor]) -> None:
    with pytest.raises(ModelError, match="cannot"):
        capture(Called(branch), torch.zeros(1, 6))


@pytest.mark.parametrize("function", [lambda x: (x, x), lambda x: (x,), lambda x: torch.ones(2, 3)])
def test_outputs_that_are_not_logits_are_refused(function: Callable[..., Tensor]) -> None:
    with pytest.raises(ModelError, match="logits"):
        capture(Called(function), torch.zeros(1, 6))


def test_in_place_changes_are_refused_with_their_place() -> None:
    inplace = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)).eval()
    with pytest.raises(ModelError, match=r"model: 0 \(aten.relu\) changes the input in place.* inplace=False"):
        capture(inplace, torch.zeros(1, 6))
    capture(nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)).eval(), torch.zeros(1, 6))

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return 2 * x

    with pytest.raises(ModelError, match="changes the buffer calls in place"):
        capture(Counting().eval(), torch.zeros(1, 6))


@pytest.mark.parametrize(
    ("model", "example", "error"),
    [
        (lambda x: x, torch.zeros(1, 6), InputTypeError),
        (torch.jit.trace(nn.Linear(6, 2).eval(), torch.zeros(1, 6)), torch.zeros(1, 6), InputTypeError),
        (nn.Identity().eval(), "text", InputTypeError),
        (nn.Identity().eval(), torch.zeros(1, 6, dtype=torch.int64), InputTypeError),
        (nn.Identity().eval(), torch.zeros(6), InputError),
        (nn.Identity().eval(), torch.zeros(1, 6, device="meta"), InputTypeError),
    ],
)
def test_other_types_of_model_or_example_are_refused(model: object, example: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        capture(model, example)


def test_the_model_is_unchanged() -> None:
    """Check that parameters, their requires_grad flags and the mode are unchanged."""
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    BoundedModel(model, torch.zeros(1, 6))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert not model.training


#: Movements between a function and a sum of pairs.
MOVEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "there and back": lambda z: z.transpose(1, 2).contiguous().transpose(1, 2),
    "several": lambda z: torch.cat([z.mT, z.flip(1, 2).mT], 1)[:, ::2].repeat(1, 1, 2),
    "padded": lambda z: f.pad(z.mT, (1, 0)).mT,
}


@pytest.mark.parametrize("movement", MOVEMENTS)
def test_one_movement_is_left_and_moves_the_same(movement: str) -> None:
    net = Called(lambda x: (MOVEMENTS[movement](x.relu()).flatten(1) - 1).relu())
    x = torch.arange(12.0).view(2, 3, 2) - 4
    output = capture(net, x)
    moved = [type(node) for node in in_order(output) if isinstance(node, Gather | Reshape)]
    assert moved == ([Reshape] if movement == "there and back" else [Gather, Reshape])  # the last flattens
    assert torch.equal(forward(output, x), net(x))
    for name in NAMES:
        for method in ("ibp", "crown"):
            query = Query(method, True, "real", None)
            bounds = engine_of(output, torch.float32, name).run(ball(x, 0.0, "linf", None, (3, 2)), None, query)
            assert all(torch.allclose(bound, net(x).double(), atol=1e-5) for bound in bounds)


@pytest.mark.parametrize(
    ("function", "recognised"),
    [
        (lambda x: f.softsign(x), True),
        (lambda x: x / (1 + x.abs()), True),
        (lambda x, m: x * f.softsign(m.row), False),  # of a parameter
        (lambda x: (lambda size: x / size + size)(x.abs() + 1), False),  # of which a part is used elsewhere
        (lambda x: x / (x.abs() + 2), False),
    ],
)
def test_softsign_is_recognised(function: Callable[..., Tensor], recognised: bool) -> None:
    nodes = in_order(capture(Called(function), torch.zeros(1, 6)))
    assert any(isinstance(node, Activation) and node.function == "softsign" for node in nodes) == recognised


class InPlace(nn.Module):
    """A residual block with batch norm, changed in place where nothing else reads it, and a flattened view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(120, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.conv(x)).relu_()
        z = self.norm(self.conv(z))
        z += x
        z = f.dropout(f.relu(z, inplace=True), training=self.training)
        return self.last(z.reshape(len(x), -1))


def masked(x: Tensor, m: nn.Module) -> Tensor:
    """A state of zeros, a mask made of numbers, and views that nothing uses."""
    z = f.linear(x, m.matrix)
    (torch.arange(6)[None] + 1).unsqueeze(0).unsqueeze(3)
    z.unsqueeze(1).transpose(1, 2)
    z = torch.cat([z, torch.zeros(len(x), 6)], 1)
    return z.view(-1, 2, 6) @ torch.full((6, 6), 0.5).triu(1)


@pytest.mark.parametrize(("net", "shape"), [(InPlace(), PLANE), (Called(masked), (6,))])
def test_common_layers_are_traced_once(net: nn.Module, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's decompositions take several times as long as its trace."""
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    x = torch.randn(3, *shape)
    torch.testing.assert_close(forward(capture(net.eval(), x), x), net(x))


def test_changes_in_place_reach_every_view() -> None:
    def body(x: Tensor, m: nn.Module) -> Tensor:
        y = f.linear(x, m.matrix)
        z = y.view(-1, 3, 2)
        z[:, :2].add_(0.5)
        y.relu_()
        mask = torch.zeros(len(x), 6)
        mask[:, 1:3].fill_(2.0)
        return torch.cat([y, z.flatten(1), x * mask], 1)

    x = torch.randn(4, 6)
    torch.testing.assert_close(forward(capture(Called(body), x), x), Called(body)(x))

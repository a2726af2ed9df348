"""One row a probe: modules and functions with lowering rules, and the shapes of one example of their input."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm
from torch.utils.checkpoint import checkpoint

FLAT, LINE, PLANE, SPACE, TOKENS = (6,), (4, 7), (4, 6, 5), (2, 4, 3, 5), (5, 8)


class Called(nn.Module):
    """A module that calls a function with parameters."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(6, 6, generator=generator))
        self.row = nn.Parameter(torch.rand(6, generator=generator) + 0.5)
        self.cube = nn.Parameter(torch.randn(4, 7, 3, generator=generator))
        self.register_buffer("mask", torch.tensor([True, False, True, True, False, True]))
        self.register_buffer("places", torch.tensor([2, 0, 1]))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self) if self.function.__code__.co_argcount == 2 else self.function(x)


def normalized(layer: nn.Module) -> nn.Module:
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.1, 3)
    if layer.affine:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return layer


class Bjorck(nn.Module):
    """Iterations towards an orthogonal matrix; every step reads the last one four times."""

    def forward(self, w: Tensor) -> Tensor:
        w = w / w.norm()
        for _ in range(12):
            w = 1.5 * w - 0.5 * w @ w.mT @ w
        return w

    @classmethod
    def of(cls, layer: nn.Module) -> nn.Module:
        parametrize.register_parametrization(layer, "weight", cls())
        return layer


class Answering(nn.Module):
    """A module that returns several tensors by name."""

    def __init__(self, outputs: dict[str, Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: function(x) for name, function in self.outputs.items()}


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.named = nn.ModuleDict({"relu": nn.ReLU(), "head": nn.Linear(6, 3)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.named["relu"](layer(x))
        return self.named["head"](x)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x.sigmoid()


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return torch.relu(x) + 1


def transformer_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)


def written(x: Tensor, m: nn.Module) -> Tensor:
    """Write to parts of a constant and of a copy of the input."""
    canvas = x.new_full((len(x), 3, 6), 0.25)
    canvas[:, 1] = x
    canvas[:, 2, 1:3] = x[:, :2]
    copy = x.clone()
    copy[:, 2] = 0.5
    copy[:, [0, 1]] = x[:, [1, 0]]
    copy[:, 4:].copy_(m.row[:2])
    return canvas + copy[:, None]


LAYERS: list[tuple[tuple[int, ...], nn.Module | Callable[..., Any]]] = [
    # conversions and checks that change nothing
    (FLAT, lambda x: x.to(x.dtype).to("cpu").contiguous()),
    (FLAT, lambda x, m: x.type_as(m.row)),
    (FLAT, lambda x: torch.ops.aten._to_copy(x, dtype=x.dtype)),
    (FLAT, lambda x: torch.ops.aten.contiguous(x)),
    (FLAT, lambda x: torch.ops.aten.lift_fresh_copy(x)),
    (FLAT, lambda x, m: x + m.places.sum().to(x.dtype)),
    # arithmetic on parameters alone
    (PLANE, parametrizations.weight_norm(nn.Conv2d(4, 3, 3))),
    (FLAT, old_weight_norm(nn.Linear(6, 3))),
    (PLANE, old_spectral_norm(nn.Conv2d(4, 3, 3))),
    (FLAT, parametrizations.orthogonal(nn.Linear(6, 3), orthogonal_map="householder")),
    (FLAT, parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley")),
    (FLAT, lambda x, m: f.linear(x, f.normalize(m.matrix, dim=1))),
    (FLAT, lambda x, m: f.embedding(m.places, m.matrix)[0] + x),
    (FLAT, lambda x, m: x * torch.linalg.svd(m.matrix)[1]),
    # convolutions
    (LINE, nn.ConvTranspose1d(4, 2, 3, 2, 1, 1)),
    (PLANE, nn.ConvTranspose2d(4, 6, (2, 3), (2, 1), (0, 2), (1, 0), 2, dilation=(1, 2))),
    (SPACE, nn.ConvTranspose3d(2, 3, 2, 2)),
    (SPACE, nn.Conv3d(2, 4, (2, 1, 3), (2, 3, 1), (1, 0, 1), groups=2)),
    (SPACE, nn.Conv3d(2, 2, 2, padding="same")),
    (LINE, nn.Conv1d(4, 3, 3, padding=1, padding_mode="circular")),
    (PLANE, nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect")),
    (
        LINE,
        lambda x, m: torch.convolution(x, m.matrix[:4, :3, None], None, (2,), (0,), (1,), True, (1,), 1),
    ),
    (SPACE, normalized(nn.BatchNorm3d(2))),
    # up-sampling
    (LINE, lambda x: f.interpolate(x, scale_factor=2)),
    (SPACE, lambda x: f.interpolate(x, scale_factor=2)),
    (LINE, lambda x: f.interpolate(x, size=5, mode="nearest-exact")),
    (PLANE, lambda x: f.interpolate(x, size=(9, 4), mode="nearest-exact")),
    (SPACE, lambda x: f.interpolate(x, size=(3, 3, 3), mode="nearest-exact")),
    (LINE, lambda x: f.interpolate(x, scale_factor=1.5, mode="linear")),
    (PLANE, nn.Upsample(scale_factor=2, mode="bilinear")),
    (PLANE, lambda x: f.interpolate(x, size=(9, 4), mode="bicubic")),
    (PLANE, lambda x: f.interpolate(x, size=(3, 4), mode="bicubic", align_corners=True)),
    (SPACE, lambda x: f.interpolate(x, scale_factor=2, mode="trilinear")),
    # pooling
    (PLANE, nn.AdaptiveMaxPool2d((4, 3))),
    (LINE, nn.AdaptiveMaxPool1d(3)),
    (SPACE, nn.AdaptiveMaxPool3d((2, 2, 2))),
    (SPACE, nn.AdaptiveAvgPool3d((2, 2, 3))),
    (SPACE, nn.AvgPool3d(2, 1, 1, count_include_pad=False)),
    (SPACE, nn.MaxPool3d((2, 1, 2), 1)),
    (LINE, lambda x: f.max_pool1d(x, 2, return_indices=True)[0]),
    (PLANE, lambda x: f.max_pool2d(x, 2, return_indices=True)[0]),
    (SPACE, lambda x: f.max_pool3d(x, 2, return_indices=True)[0]),
    (PLANE, nn.Unfold((2, 3), padding=1)),
    ((8, 4), nn.Fold((5, 5), (2, 2), padding=1, stride=3)),
    # paddings
    (PLANE, nn.ConstantPad2d((1, 2, 0, 1), 2.5)),
    (SPACE, nn.ReplicationPad3d(1)),
    # selections
    (FLAT, lambda x: x[:, [0, 2, 2]]),
    (FLAT, lambda x, m: x[:, m.mask]),
    (PLANE, lambda x: x[:, [0, 1], [2, 3]]),
    (FLAT, lambda x, m: x.index_select(1, m.places)),
    (FLAT, lambda x, m: x.gather(1, m.places.expand(len(x), -1))),
    (FLAT, lambda x: x.repeat_interleave(2, 1)),
    (FLAT, lambda x: x.repeat_interleave(torch.tensor([1, 2, 1, 0, 1, 1]), 1)),
    (LINE, lambda x: x.unfold(2, 3, 2)),
    (PLANE, lambda x: x.diagonal(dim1=2, dim2=3)),
    (FLAT, lambda x: torch.diag_embed(x)),
    (LINE, lambda x: x.tril() + 2 * x.triu(1)),
    # the batch is elsewhere in between
    (LINE, lambda x: torch.stack(x.view(len(x), 4, 1, 7).expand(-1, -1, 3, -1).permute(2, 0, 1, 3).unbind(0), 1)),
    (FLAT, lambda x: x.ravel().view(-1, 6) + x.unsqueeze(0).squeeze(0) + x.expand(3, -1, -1)[0] + x.t().t()),
    (FLAT, lambda x, m: torch.cat([x.t(), m.row[:2, None].expand(2, len(x))]).t()),
    # several tensors, constants among them
    (LINE, lambda x, m: torch.cat([m.cube[:1, :, 0].expand(len(x), 1, -1), x], 1)),
    (FLAT, lambda x, m: torch.stack([m.row.expand_as(x), x], 1)),
    (FLAT, lambda x: torch.cat([x, x.new_zeros(len(x), 2), x.new_full((len(x), 1), 0.3)], 1)),
    (FLAT, lambda x, m: x.masked_fill(m.mask, -2.0)),
    (FLAT, lambda x, m: torch.where(m.mask, x, m.row)),
    (FLAT, lambda x, m: torch.where(m.mask, 0.5, x)),
    (FLAT, written),
    (FLAT, lambda x, m: x.index_copy(1, m.places, x[:, :3])),
    # products with constants
    (LINE, lambda x, m: torch.einsum("bij,ijk->bik", x, m.cube)),
    (LINE, lambda x, m: torch.einsum("ijk,bij->bkj", m.cube, x)),
    (LINE, lambda x, m: torch.einsum("...j,kj", x, m.cube[:3, :, 0])),
    (LINE, lambda x: torch.einsum("bij->bj", x)),
    (LINE, lambda x, m: torch.bmm(x, m.cube[:1].expand(len(x), -1, -1))),
    ((4, 2, 7), lambda x, m: x @ m.cube),
    ((3, 2, 7), lambda x, m: x @ m.cube[:1]),
    (FLAT, lambda x, m: x @ m.row),
    (FLAT, lambda x, m: x.mv(m.row)),
    (FLAT, lambda x, m: torch.inner(x, m.matrix)),
    (LINE, lambda x, m: torch.tensordot(x, m.cube, 2)),
    (LINE, lambda x: x.cumsum(1)),
    (LINE, lambda x: x.diff(n=2, dim=1)),
    # arithmetic with constants
    (FLAT, lambda x, m: torch.addcmul(m.row, x, m.row, value=2)),
    (FLAT, lambda x, m: torch.addcdiv(x, x, m.row)),
    (FLAT, lambda x, m: torch.lerp(m.row, x, m.row)),
    (FLAT, lambda x: x * torch.ones_like(x) + torch.full_like(x, 2) - torch.zeros_like(x)),
    (FLAT, lambda x: x + x.new_ones(6) * torch.arange(6)),
    (FLAT, lambda x: (x - torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])) / torch.tensor(0.3)),
    # outputs that hold the logits
    (FLAT, Answering({"logits": lambda x: 2 * x, "hidden": lambda x: x.exp()})),
    (FLAT, lambda x: SimpleNamespace(logits=2 * x)),
    # layers of several operators
    (FLAT, nn.AlphaDropout()),
    (PLANE, nn.Sequential(nn.Softmin(1), nn.Softmax2d())),
    (PLANE, nn.LocalResponseNorm(3)),
    (TOKENS, transformer_layer(norm_first=True, activation="gelu")),
    # models' own ways to write them
    (FLAT, Listed()),
    (FLAT, torch.compile(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), backend="eager")),
    (FLAT, nn.DataParallel(nn.Linear(6, 6))),
    (FLAT, lambda x, m: f.linear(x, (m.matrix - m.matrix.mean(1, True)) / (m.matrix.std(1, keepdim=True) + 1e-5))),
    (FLAT, lambda x, m: x.to(m.row)),
    (FLAT, lambda x: x.unflatten(1, (6, 1, 1)).to(memory_format=torch.channels_last) * 2),
    (LINE, lambda x: x.view(len(x), -1).view_as(x)[..., -1]),
    (LINE, lambda x: torch.vstack([x, x])[: len(x)]),
    (LINE, lambda x: x.tensor_split(3, 2)[0]),
    (FLAT, lambda x, m: torch.lerp(x, x.flip(1), m.row)),
    (FLAT, lambda x, m: f.linear(f.normalize(x), f.normalize(m.matrix))),
    (FLAT, lambda x, m: ((x[:, None] - m.matrix) ** 2).sum(2)),
    (FLAT, lambda x: x if x.shape[1] == 6 else -x),
    (FLAT, lambda x: Swish.apply(x)),
    (FLAT, lambda x: scripted(x)),
    (FLAT, lambda x, m: checkpoint(lambda z: f.linear(z, m.matrix), x, use_reentrant=False)),
    (FLAT, torch.no_grad()(lambda x: 2 * x)),
    (PLANE, lambda x: f.interpolate(x, (3, 2), mode="area")),
]


class Recurrent(nn.Module):
    """A recurrent layer: its outputs, or with ``last`` its last state, which other dimensions may precede."""

    def __init__(self, layer: nn.RNNBase, *, last: bool = False) -> None:
        super().__init__()
        self.layer, self.last = layer, last

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.layer(x if self.layer.batch_first else x.transpose(0, 1))
        if self.last:
            return (state[0] if isinstance(state, tuple) else state)[-1]
        return (outputs if self.layer.batch_first else outputs.transpose(0, 1)).flatten(1)


class Steps(nn.Module):
    """A cell that runs over a sequence from a first state, zeros where there is none."""

    def __init__(self, cell: nn.RNNCellBase, first: Tensor | None = None) -> None:
        super().__init__()
        self.cell = cell
        self.register_buffer("first", first)

    def forward(self, x: Tensor) -> Tensor:
        state = None if self.first is None else self.first.expand(len(x), -1)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state

"""Probes of the operators of users' models: layers, functions, parametrizations and moves, one row each.

A row is drawn up from what models contain, not from what has a lowering rule.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f
from torch.nn.utils import parametrizations, parametrize, prune

FLAT, LINE, PLANE, SOLID, TOKENS = (6,), (4, 8), (4, 6, 6), (2, 4, 4, 4), (5, 8)

Body = nn.Module | Callable[[Tensor], Any]


@dataclasses.dataclass(frozen=True)
class Probe:
    """A body that is applied to features [B, *shape].

    Attributes:
        raw: the body's output is the model's; otherwise it is flattened.
        first: the body receives the input itself; otherwise an affine layer comes before it.
    """

    name: str
    shape: tuple[int, ...]
    make: Callable[[], Body]
    raw: bool = False
    first: bool = False

    def model(self) -> nn.Module:
        """Build the module in evaluation mode, with the same weights at every call."""
        torch.manual_seed(0)
        model = Probed(self)
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.running_mean is not None:
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
        return model.eval()


class Probed(nn.Module):
    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.stem = nn.Identity() if probe.first else nn.Linear(probe.shape[-1], probe.shape[-1])
        self.body = probe.make()
        self.raw = probe.raw

    def forward(self, x: Tensor) -> Any:
        z = self.body(self.stem(x))
        return z if self.raw else z.flatten(1)


class With(nn.Module):
    """A function of features and of named layers or tensors."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self)


def of(function: Callable[..., Any], **parts: Callable[[], Any]) -> Callable[[], Body]:
    """Make the function's module anew at each call; one without parts is called on the features alone."""
    if not parts:
        return lambda: With(lambda x, _: function(x))
    return lambda: With(function, **{name: part() for name, part in parts.items()})


def draw(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*shape))


def affine(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Give a normalisation layer random scales and shifts."""

    def make() -> nn.Module:
        made = layer()
        for parameter in made.parameters():
            nn.init.normal_(parameter)
        return made

    return make


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x


class Twice(nn.Module):
    """One layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).relu())


class Symmetric(nn.Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).mT


class Exponential(nn.Module):
    """A parametrization with a function that has no lowering rule on constants."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.exp()


def parametrized(layer: nn.Module, parametrization: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", parametrization)


class Excitation(nn.Module):
    """A squeeze-and-excitation block (Hu et al., 2018)."""

    def __init__(self, channels: int, gate: nn.Module) -> None:
        super().__init__()
        self.reduce, self.expand, self.gate = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1), gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.reduce(x.mean((2, 3), keepdim=True)).relu()))


class Attention(nn.Module):
    """Self-attention by matrix products."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.fused = heads, fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            z = f.scaled_dot_product_attention(q, k, v)
        else:
            z = ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.out(z.transpose(1, 2).flatten(2))


class ClassToken(nn.Module):
    """Concatenation with a class token, and addition of position embeddings."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, tokens + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.named = nn.ModuleDict({"relu": nn.ReLU(), "head": nn.Linear(6, 3)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.named["relu"](layer(x))
        return self.named["head"](x)


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def scripted(x: Tensor) -> Tensor:
    return torch.relu(x) + 1


def pixel_mean(x: Tensor) -> Tensor:
    mean = torch.tensor([0.4, 0.5, 0.6, 0.7], dtype=x.dtype, device=x.device).view(1, 4, 1, 1)
    return (x - mean) / torch.full_like(mean, 0.25)


def filled(x: Tensor) -> Tensor:
    z = x.clone()
    z[:, :2] = 0
    return z


def added_in_place(x: Tensor) -> Tensor:
    z = x * 2
    z += x
    z.mul_(0.5)
    return z.relu_()


def repeated_sum(x: Tensor) -> Tensor:
    return sum((x.roll(i, 1) for i in range(1, 3)), x)


def group_sort(x: Tensor, size: int) -> Tensor:
    return x.unflatten(1, (-1, size)).sort(2).values.flatten(1, 2)


def max_min(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1)


def blur(x: Tensor) -> Tensor:
    kernel = torch.ones(4, 1, 3, 3, dtype=x.dtype) / 9
    return f.conv2d(x, kernel, padding=1, groups=4)


def positive(x: Tensor) -> Tensor:
    return x.clamp(min=0.25)


def transformer_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)


ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    lambda: nn.PReLU(4),
    nn.RReLU,
    nn.ELU,
    lambda: nn.ELU(0.5),
    nn.CELU,
    nn.SELU,
    nn.GELU,
    lambda: nn.GELU("tanh"),
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Softplus,
    lambda: nn.Softplus(2, 1),
    nn.Softsign,
    nn.Softshrink,
    nn.Hardshrink,
    nn.Tanhshrink,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    lambda: nn.Threshold(0.1, 0.1),
    lambda: nn.Threshold(0.1, -1.0),
    lambda: nn.GLU(1),
    lambda: nn.Softmax(1),
    lambda: nn.Softmin(1),
    lambda: nn.LogSoftmax(1),
    nn.Softmax2d,
]

LAYERS: list[tuple[tuple[int, ...], Callable[[], nn.Module]]] = [
    # linear
    (FLAT, lambda: nn.Linear(6, 3)),
    (TOKENS, lambda: nn.Linear(8, 3, bias=False)),
    (FLAT, nn.Identity),
    # convolutions
    (LINE, lambda: nn.Conv1d(4, 6, 3, 2, 1, 2, 2)),
    (PLANE, lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0))),
    (PLANE, lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")),
    (PLANE, lambda: nn.Conv2d(4, 4, 3, padding="same", dilation=2, groups=4)),
    (SOLID, lambda: nn.Conv3d(2, 3, 3, padding=1)),
    (SOLID, lambda: nn.Conv3d(2, 4, (1, 2, 3), (1, 2, 1), (0, 1, 1), groups=2)),
    (LINE, lambda: nn.ConvTranspose1d(4, 3, 3, 2)),
    (LINE, lambda: nn.ConvTranspose1d(4, 6, 4, 3, 1, 1, 2, dilation=2)),
    (PLANE, lambda: nn.ConvTranspose2d(4, 3, 2, 2)),
    (PLANE, lambda: nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (1, 0), (1, 2), 2, False, (1, 3))),
    (SOLID, lambda: nn.ConvTranspose3d(2, 2, 2, 2)),
    # normalisation
    (FLAT, affine(lambda: nn.BatchNorm1d(6))),
    (PLANE, affine(lambda: nn.BatchNorm2d(4))),
    (SOLID, affine(lambda: nn.BatchNorm3d(2))),
    (PLANE, affine(lambda: nn.BatchNorm2d(4, affine=False))),
    (PLANE, affine(lambda: nn.BatchNorm2d(4, track_running_stats=False))),
    (PLANE, affine(lambda: nn.GroupNorm(2, 4))),
    (FLAT, affine(lambda: nn.LayerNorm(6))),
    (TOKENS, affine(lambda: nn.LayerNorm(8))),
    (PLANE, affine(lambda: nn.LayerNorm((4, 6, 6), bias=False))),
    (PLANE, affine(lambda: nn.InstanceNorm2d(4, affine=True))),
    (PLANE, lambda: nn.InstanceNorm2d(4, track_running_stats=True)),
    (LINE, lambda: nn.InstanceNorm1d(4)),
    (TOKENS, affine(lambda: nn.RMSNorm(8))),
    (PLANE, lambda: nn.LocalResponseNorm(3)),
    # pooling
    (LINE, lambda: nn.MaxPool1d(3, 2, 1)),
    (PLANE, lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
    (SOLID, lambda: nn.MaxPool3d(2)),
    (LINE, lambda: nn.AvgPool1d(3, 2, 1)),
    (PLANE, lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    (SOLID, lambda: nn.AvgPool3d(2)),
    (LINE, lambda: nn.LPPool1d(2, 2)),
    (PLANE, lambda: nn.LPPool2d(2, 2)),
    (LINE, lambda: nn.AdaptiveAvgPool1d(3)),
    (PLANE, lambda: nn.AdaptiveAvgPool2d((4, None))),
    (SOLID, lambda: nn.AdaptiveAvgPool3d(1)),
    (LINE, lambda: nn.AdaptiveMaxPool1d(3)),
    (PLANE, lambda: nn.AdaptiveMaxPool2d(1)),
    (PLANE, lambda: nn.AdaptiveMaxPool2d((4, 3))),
    (SOLID, lambda: nn.AdaptiveMaxPool3d(2)),
    (PLANE, lambda: nn.FractionalMaxPool2d(2, output_size=3)),
    # padding
    (PLANE, lambda: nn.ZeroPad2d(1)),
    (PLANE, lambda: nn.ConstantPad2d((1, 0, 2, 1), -0.5)),
    (LINE, lambda: nn.ConstantPad1d(2, float("-inf"))),
    (LINE, lambda: nn.ReflectionPad1d(2)),
    (PLANE, lambda: nn.ReflectionPad2d((1, 2, 0, 1))),
    (SOLID, lambda: nn.ReflectionPad3d(1)),
    (PLANE, lambda: nn.ReplicationPad2d(1)),
    (SOLID, lambda: nn.ReplicationPad3d(1)),
    (PLANE, lambda: nn.CircularPad2d(2)),
    # up-sampling and rearrangement
    (LINE, lambda: nn.Upsample(scale_factor=2)),
    (PLANE, lambda: nn.Upsample(size=(9, 8))),
    (SOLID, lambda: nn.Upsample(scale_factor=2)),
    (LINE, lambda: nn.Upsample(scale_factor=2, mode="linear")),
    (PLANE, lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    (PLANE, lambda: nn.Upsample(size=(4, 7), mode="bilinear", align_corners=True)),
    (PLANE, lambda: nn.Upsample(scale_factor=2, mode="bicubic")),
    (SOLID, lambda: nn.Upsample(scale_factor=2, mode="trilinear")),
    (PLANE, lambda: nn.PixelShuffle(2)),
    (PLANE, lambda: nn.PixelUnshuffle(2)),
    (PLANE, lambda: nn.ChannelShuffle(2)),
    (PLANE, nn.Flatten),
    (FLAT, lambda: nn.Unflatten(1, (2, 3))),
    (PLANE, lambda: nn.Unfold(3, padding=1)),
    (TOKENS, lambda: nn.Fold((2, 8), (1, 5))),
    # dropout
    (FLAT, nn.Dropout),
    (PLANE, nn.Dropout2d),
    (FLAT, nn.AlphaDropout),
    # of two operands, recurrent, attention
    (TOKENS, lambda: nn.MultiheadAttention(8, 2, batch_first=True)),
    (TOKENS, transformer_layer),
    (TOKENS, lambda: transformer_layer(norm_first=True, activation="gelu")),
    (TOKENS, lambda: nn.TransformerEncoder(transformer_layer(), 2, enable_nested_tensor=False)),
    (TOKENS, lambda: nn.LSTM(8, 3, batch_first=True)),
    (TOKENS, lambda: nn.GRU(8, 3, batch_first=True)),
    (TOKENS, lambda: nn.RNN(8, 3, batch_first=True)),
]


def _result(layer: nn.Module) -> Body:
    """Call attention on three equal operands, and take the first of several results."""
    if isinstance(layer, nn.MultiheadAttention):
        return With(lambda x, m: m.layer(x, x, x, need_weights=False)[0], layer=layer)
    if isinstance(layer, nn.RNNBase):
        return With(lambda x, m: m.layer(x)[0], layer=layer)
    return layer


def _layer(shape: tuple[int, ...], make: Callable[[], nn.Module]) -> Probe:
    made = make()
    name = repr(made).split("\n")[0].removesuffix("(")
    name = re.sub(r"(in_features|out_features|kernel_size)=|, (eps|momentum|bias=True|affine=True)[^,)]*", "", name)
    if isinstance(made, nn.TransformerEncoderLayer):
        name += f"(norm_first={made.norm_first})"
    return Probe(f"{name} on {'x'.join(map(str, shape))}", shape, lambda: _result(make()))


def _functions(shape: tuple[int, ...], table: dict[str, Callable[[], Body]], **options: bool) -> list[Probe]:
    return [Probe(name, shape, make, **options) for name, make in table.items()]


PARAMETRIZED: dict[str, Callable[[], Body]] = {
    "weight_norm of torch.nn.utils": lambda: nn.utils.weight_norm(nn.Linear(6, 4)),
    "weight_norm as a parametrization": lambda: parametrizations.weight_norm(nn.Linear(6, 4)),
    "weight_norm over all dimensions": lambda: parametrizations.weight_norm(nn.Linear(6, 4), dim=None),
    "spectral_norm of torch.nn.utils": lambda: nn.utils.spectral_norm(nn.Linear(6, 4)),
    "spectral_norm as a parametrization": lambda: parametrizations.spectral_norm(nn.Linear(6, 4)),
    "orthogonal as a parametrization": lambda: parametrizations.orthogonal(nn.Linear(6, 6)),
    "orthogonal by Householder": lambda: parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="householder"),
    "custom parametrization, moves": lambda: parametrized(nn.Linear(6, 6), Symmetric()),
    "custom parametrization, exp": lambda: parametrized(nn.Linear(6, 6), Exponential()),
    "two parametrizations": lambda: parametrized(parametrized(nn.Linear(6, 6), Symmetric()), Exponential()),
    "pruned layer": lambda: prune.l1_unstructured(nn.Linear(6, 4), "weight", 0.5),
    "weight standardisation in forward": of(
        lambda x, m: f.linear(x, (m.w - m.w.mean(1, keepdim=True)) / (m.w.std(1, keepdim=True) + 1e-5)), w=draw(4, 6)
    ),
    "normalised weight in forward": of(lambda x, m: f.linear(x, f.normalize(m.w, dim=1)), w=draw(4, 6)),
    "scale of a softplus parameter": of(lambda x, m: x * f.softplus(m.w), w=draw(6)),
    "matrix product of parameters": of(lambda x, m: x @ (m.a @ m.b), a=draw(6, 2), b=draw(2, 6)),
}

CASTS: dict[str, Callable[[], Body]] = {
    "x.float()": of(lambda x: x.float()),
    "x.to(x.dtype)": of(lambda x: x.to(x.dtype)),
    "x.to(the weight)": of(lambda x, m: m.layer(x.to(m.layer.weight)), layer=lambda: nn.Linear(6, 6)),
    "x.to(device)": of(lambda x: x.to("cpu")),
    "x.type_as(weight)": of(lambda x, m: m.layer(x.type_as(m.layer.weight)), layer=lambda: nn.Linear(6, 6)),
    "x.to(memory_format)": of(lambda x: x.unflatten(1, (6, 1, 1)).to(memory_format=torch.channels_last) * 2),
    "x.double() and back": of(lambda x: x.double().mul(3).float()),
    "x.half() and back": of(lambda x: x.half().float()),
    "x.bfloat16() and back": of(lambda x: x.bfloat16().float()),
    "x.long()": of(lambda x: (3 * x).long().float()),
    "x.round()": of(lambda x: x.round()),
}

MOVES: dict[str, Callable[[], Body]] = {
    "list of indices": of(lambda x: x[:, [3, 0, 0]]),
    "index_select": of(lambda x, m: x.index_select(1, m.index), index=lambda: torch.tensor([2, 0])),
    "boolean mask of constants": of(lambda x, m: x[:, m.mask], mask=lambda: torch.tensor([True, False, True, True])),
    "gather of constants": of(
        lambda x, m: x.gather(2, m.index.expand(len(x), -1, -1)), index=lambda: torch.randint(8, (1, 4, 3))
    ),
    "take_along_dim": of(lambda x: x.take_along_dim(torch.tensor([[[1, 0]]]), 2)),
    "two lists of indices": of(lambda x: x[:, [0, 1], [2, 5]]),
    "negative index and ellipsis": of(lambda x: x[..., -1]),
    "one number an example": of(lambda x: torch.stack([x[:, 0, 1], x[:, 2, 0].sigmoid(), x.sum((1, 2)).relu()], 1)),
    "slice with a step": of(lambda x: x[:, ::2, 1:-1]),
    "new axis": of(lambda x: x[:, None, :, None] * 2),
    "permute": of(lambda x: x.permute(0, 2, 1)),
    "movedim": of(lambda x: x.movedim(1, 2)),
    "swapaxes": of(lambda x: x.swapaxes(1, 2)),
    "mT": of(lambda x: x.mT),
    "reshape by -1": of(lambda x: x.reshape(x.size(0), -1)),
    "view_as": of(lambda x: x.view(len(x), -1).view_as(x)),
    "contiguous channels_last": of(lambda x: x.unsqueeze(2).contiguous(memory_format=torch.channels_last).flatten(1)),
    "tile": of(lambda x: x.tile(1, 1, 2)),
    "repeat": of(lambda x: x.repeat(1, 2, 1)),
    "repeat_interleave": of(lambda x: x.repeat_interleave(2, dim=1)),
    "expand": of(lambda x: x[:, :1].expand(-1, 4, -1)),
    "expand_as": of(lambda x: x[:, :1].expand_as(x) + x),
    "flip": of(lambda x: x.flip((1, 2))),
    "roll": of(lambda x: x.roll((1, 2), (1, 2))),
    "rot90": of(lambda x: x.rot90(1, (1, 2))),
    "cat": of(lambda x: torch.cat([x, x.flip(1)], 2)),
    "cat with parameters": of(
        lambda x, m: torch.cat([m.p.expand(len(x), -1, -1), x], 1), p=lambda: nn.Parameter(torch.randn(1, 1, 8))
    ),
    "cat with zeros_like": of(lambda x: torch.cat([x, torch.zeros_like(x)], 1)),
    "cat with new_ones": of(lambda x: torch.cat([x, x.new_ones(len(x), 1, 8)], 1)),
    "stack": of(lambda x: torch.stack([x, -x], -1)),
    "stack with a constant": of(lambda x: torch.stack([x, torch.ones_like(x)], 1)),
    "hstack": of(lambda x: torch.hstack([x, x[:, :2]])),
    "vstack of batches": of(lambda x: torch.vstack([x, x])[: len(x)]),
    "dstack": of(lambda x: torch.dstack([x, x])),
    "column_stack": of(lambda x: torch.column_stack([x[:, 0], x[:, 1]])),
    "split": of(lambda x: torch.cat(x.split([1, 3], 1)[::-1], 1)),
    "chunk": of(lambda x: x.chunk(3, 2)[2]),
    "tensor_split": of(lambda x: x.tensor_split(3, 2)[0]),
    "unbind": of(lambda x: x.unbind(1)[2]),
    "unfold of a tensor": of(lambda x: x.unfold(2, 3, 2)),
    "diagonal": of(lambda x: x[:, :, :4].diagonal(dim1=1, dim2=2)),
    "tril": of(lambda x: x.tril()),
    "triu": of(lambda x: x.triu(1)),
    "where of a constant mask": of(lambda x, m: torch.where(m.mask, x, 0.5), mask=lambda: torch.rand(4, 8) > 0.5),
    "where of two branches": of(lambda x, m: torch.where(m.mask, x, -x), mask=lambda: torch.rand(4, 8) > 0.5),
    "where of the data": of(lambda x: torch.where(x > 0, x, 0.2 * x)),
    "masked_fill by constants": of(lambda x, m: x.masked_fill(m.mask, -1.0), mask=lambda: torch.rand(4, 8) > 0.5),
    "masked_fill by the data": of(lambda x: x.masked_fill(x < 0, 0.0)),
    "mask times x": of(lambda x: x * (x > 0).float()),
    "mask of constants times x": of(lambda x, m: x * m.mask, mask=lambda: torch.rand(4, 8) > 0.5),
    "pad by a constant": of(lambda x: f.pad(x, (1, 2), value=2.0)),
    "pad negatively": of(lambda x: f.pad(x, (-1, 1))),
    "scatter into zeros": of(lambda x: torch.zeros_like(x).index_copy(1, torch.tensor([0, 2]), x[:, :2])),
    "clone": of(lambda x: x.clone() + x),
    "detach": of(lambda x: x.detach() * 2),
    "assignment to a slice": of(filled),
    "in-place arithmetic": of(added_in_place),
    "sum of a list": of(repeated_sum),
}

ARITHMETIC: dict[str, Callable[[], Body]] = {
    "abs": of(lambda x: x.abs()),
    "neg": of(lambda x: -x),
    "exp": of(lambda x: x.exp()),
    "expm1": of(lambda x: x.expm1()),
    "log": of(lambda x: positive(x).log()),
    "log1p": of(lambda x: x.relu().log1p()),
    "sqrt": of(lambda x: positive(x).sqrt()),
    "rsqrt": of(lambda x: positive(x).rsqrt()),
    "reciprocal": of(lambda x: positive(x).reciprocal()),
    "number over x": of(lambda x: 2 / positive(x)),
    "square": of(lambda x: x.square()),
    "x ** 2": of(lambda x: x**2),
    "x ** 3": of(lambda x: x**3),
    "x ** 0.5": of(lambda x: positive(x) ** 0.5),
    "x ** -1": of(lambda x: positive(x) ** -1),
    "2 ** x": of(lambda x: 2**x),
    "sin": of(lambda x: x.sin()),
    "cos": of(lambda x: x.cos()),
    "atan": of(lambda x: x.atan()),
    "erf": of(lambda x: x.erf()),
    "sign": of(lambda x: x.sign()),
    "floor": of(lambda x: x.floor()),
    "clamp": of(lambda x: x.clamp(-0.5, 0.25)),
    "clamp by tensors": of(lambda x, m: x.clamp(m.low, m.low + 1), low=lambda: torch.rand(6) - 1),
    "functional forms": of(lambda x: f.leaky_relu(f.elu(f.hardtanh(f.relu6(x) - 1)), 0.2)),
    "maximum of two": of(lambda x: torch.maximum(x, x.flip(1))),
    "minimum of two": of(lambda x: torch.minimum(x, x.flip(1))),
    "maximum with a constant": of(lambda x, m: torch.maximum(x, m.p), p=draw(6)),
    "maximum by torch.max": of(lambda x: torch.max(x, -x)),
    "product of two": of(lambda x: x * x.roll(1, 1)),
    "product with itself": of(lambda x: x * x),
    "product of two branches": of(
        lambda x, m: m.a(x).sigmoid() * m.b(x), a=lambda: nn.Linear(6, 4), b=lambda: nn.Linear(6, 4)
    ),
    "quotient of two": of(lambda x: x / (1 + x.flip(1).relu())),
    "difference of two": of(lambda x: x - x.flip(1)),
    "addcmul": of(lambda x: torch.addcmul(x, x, x, value=0.5)),
    "lerp": of(lambda x, m: torch.lerp(x, x.flip(1), m.w), w=lambda: torch.rand(6)),
    "lerp by a number": of(lambda x: torch.lerp(x, x.flip(1), 0.3)),
    "Swish by hand": of(lambda x: x * torch.sigmoid(x)),
    "GELU by hand": of(lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
    "Hardswish by hand": of(lambda x: x * f.relu6(x + 3) / 6),
    "Bilinear": of(lambda x, m: m.layer(x, x.flip(1)), layer=lambda: nn.Bilinear(6, 6, 3)),
    "PairwiseDistance": of(lambda x, m: (x - m.p).norm(dim=1, keepdim=True), p=draw(6)),
    "CosineSimilarity": of(lambda x, m: f.cosine_similarity(x[:, None], m.p, dim=2), p=draw(3, 6)),
    "cosine classifier": of(lambda x, m: f.linear(f.normalize(x), f.normalize(m.p)), p=draw(3, 6)),
    "l2 norm": of(lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True)),
    "normalize by l2": of(lambda x: f.normalize(x, dim=1)),
    "distances to prototypes": of(lambda x, m: ((x[:, None] - m.p) ** 2).sum(2), p=draw(3, 6)),
    "cdist to prototypes": of(lambda x, m: torch.cdist(x, m.p), p=draw(3, 6)),
    "softmax of scaled logits": of(lambda x: (x / 0.5).softmax(-1)),
    "log_softmax": of(lambda x: x.log_softmax(-1)),
    "MaxMin by chunks": of(max_min),
    "GroupSort of 2": of(lambda x: group_sort(x, 2)),
    "GroupSort of 3": of(lambda x: group_sort(x, 3)),
    "full sort": of(lambda x: x.sort(1).values),
    "topk": of(lambda x: x.topk(2, 1).values),
    "median": of(lambda x: x.median(1, keepdim=True).values),
    "maxout": of(lambda x: x.unflatten(1, (2, 3)).max(1).values),
    "CReLU": of(lambda x: torch.cat([x.relu(), (-x).relu()], 1)),
    "F.gumbel_softmax": of(lambda x: f.gumbel_softmax(x)),
}

PRODUCTS: dict[str, Callable[[], Body]] = {
    "matmul with a parameter": of(lambda x, m: x @ m.p, p=draw(8, 3)),
    "parameter @ x": of(lambda x, m: m.p @ x, p=draw(3, 5)),
    "bmm of two": of(lambda x: torch.bmm(x, x.mT)),
    "matmul of two": of(lambda x: x.mT @ x),
    "einsum with a parameter": of(lambda x, m: torch.einsum("btc,cd->btd", x, m.p), p=draw(8, 3)),
    "einsum of two": of(lambda x: torch.einsum("btc,bsc->bts", x, x)),
    "tensordot": of(lambda x, m: torch.tensordot(x, m.p, 1), p=draw(8, 3)),
    "baddbmm": of(lambda x, m: torch.baddbmm(m.p, x, x.mT), p=draw(1, 5, 5)),
    "softmax attention": lambda: Attention(8, 2, fused=False),
    "scaled_dot_product_attention": lambda: Attention(8, 2, fused=True),
    "softmax along tokens": of(lambda x: x.softmax(1)),
    "class token and positions": lambda: ClassToken(5, 8),
    "embedding of positions": of(lambda x, m: x + m.e(torch.arange(5)), e=lambda: nn.Embedding(5, 8)),
}

REDUCTIONS: dict[str, Callable[[], Body]] = {
    "mean of axes": of(lambda x: x.mean((2, 3))),
    "mean of everything but the batch": of(lambda x: x.flatten(1).mean(1, keepdim=True)),
    "sum": of(lambda x: x.sum((1, 2), keepdim=True)),
    "amax": of(lambda x: x.amax((2, 3))),
    "amin": of(lambda x: x.amin((2, 3))),
    "max of a dim": of(lambda x: x.max(1).values),
    "min of a dim": of(lambda x: x.min(2)[0]),
    "var": of(lambda x: x.var((2, 3))),
    "std": of(lambda x: x.std((2, 3))),
    "prod": of(lambda x: x[:, :2, 0].prod(1)),
    "cumsum": of(lambda x: x.cumsum(1)),
    "logsumexp": of(lambda x: x.logsumexp((2, 3))),
    "norm of a plane": of(lambda x: x.flatten(2).norm(dim=2)),
    "l1 norm": of(lambda x: x.flatten(2).norm(1, dim=2)),
    "global max and mean": of(lambda x: torch.cat([x.amax((2, 3)), x.mean((2, 3))], 1)),
    "argmax": of(lambda x: x.argmax(1).float()),
}

IMAGES: dict[str, Callable[[], Body]] = {
    "normalisation by buffers": of(
        lambda x, m: (x - m.mean) / m.std, mean=lambda: torch.rand(4, 1, 1), std=lambda: torch.rand(4, 1, 1) + 0.5
    ),
    "normalisation by tensors of forward": of(pixel_mean),
    "constant kernel of forward": of(blur),
    "conv2d of a weight with groups": of(lambda x, m: f.conv2d(x, m.w, None, 2, 1, 1, 2), w=draw(4, 2, 3, 3)),
    "SE block, sigmoid": lambda: Excitation(4, nn.Sigmoid()),
    "SE block, hard sigmoid": lambda: Excitation(4, nn.Hardsigmoid()),
    "spatial attention": of(
        lambda x, m: x * m.c(torch.cat([x.mean(1, True), x.amax(1, True)], 1)).sigmoid(),
        c=lambda: nn.Conv2d(2, 1, 3, padding=1),
    ),
    "layer scale": of(lambda x, m: x + m.g.view(1, -1, 1, 1) * m.c(x), g=draw(4), c=lambda: nn.Conv2d(4, 4, 1)),
    "LayerNorm over channels": of(
        lambda x, m: m.n(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), n=affine(lambda: nn.LayerNorm(4))
    ),
    "LayerNorm by hand": of(
        lambda x: (x - x.mean(1, True)) / ((x - x.mean(1, True)).pow(2).mean(1, True) + 1e-5).sqrt()
    ),
    "GRN": of(lambda x, m: m.g * x * (x.norm(dim=(2, 3), keepdim=True)) + x, g=draw(1, 4, 1, 1)),
    "patch embedding": of(lambda x, m: m.c(x).flatten(2).transpose(1, 2), c=lambda: nn.Conv2d(4, 8, 3, 3)),
    "window partition": of(lambda x: x.view(len(x), 4, 2, 3, 2, 3).permute(0, 2, 4, 1, 3, 5).reshape(len(x), 4, -1)),
    "channels_last input": of(lambda x: f.relu(x.to(memory_format=torch.channels_last))),
    "interpolate to a size": of(lambda x: f.interpolate(x, (3, 3))),
    "interpolate, antialiased": of(lambda x: f.interpolate(x, (3, 3), mode="bilinear", antialias=True)),
    "interpolate by area": of(lambda x: f.interpolate(x, (3, 2), mode="area")),
    "grid_sample": of(
        lambda x, m: f.grid_sample(x, m.grid.expand(len(x), -1, -1, -1), align_corners=False),
        grid=lambda: torch.rand(1, 3, 3, 2) - 0.5,
    ),
    "space to depth by slices": of(lambda x: torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2]], 1)),
    "dense connection": of(lambda x, m: torch.cat([x, m.c(x).relu()], 1), c=lambda: nn.Conv2d(4, 2, 3, padding=1)),
    "max and average pooling summed": of(lambda x: f.max_pool2d(x, 2) + f.avg_pool2d(x, 2)),
    "max_pool2d with indices": of(lambda x: f.max_pool2d(x, 2, return_indices=True)[0]),
    "stochastic depth in evaluation": of(lambda x, m: x + m.d(x.relu()), d=lambda: nn.Dropout(0.2)),
}

STRUCTURE: dict[str, Callable[[], Body]] = {
    "ModuleList and ModuleDict": Listed,
    "one layer twice": Twice,
    "shared weight of two layers": of(
        lambda x, m: f.linear(m.a(x).relu(), m.a.weight), a=lambda: nn.Linear(6, 6, bias=False)
    ),
    "skip without a layer": of(lambda x: x + x),
    "constant added in forward": of(lambda x: x + torch.arange(6, dtype=x.dtype)),
    "branch on the data": Branch,
    "branch on a shape": of(lambda x: x if x.shape[1] == 6 else -x),
    "loop over a shape": of(lambda x: sum(x[:, i : i + 1] * i for i in range(x.shape[1]))),
    "custom autograd function": of(lambda x: Swish.apply(x)),
    "scripted function": of(torch.jit.script(scripted)),
    "checkpointed": of(
        lambda x, m: torch.utils.checkpoint.checkpoint(m.a, x, use_reentrant=False), a=lambda: nn.Linear(6, 6)
    ),
    "torch.no_grad in forward": of(torch.no_grad()(lambda x: 2 * x)),
    "FFT": of(lambda x: torch.fft.fft(x).abs()),
    "complex numbers": of(lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(1, (3, 2))) * 1j)),
    "noise in evaluation": of(lambda x: x + 0.1 * torch.randn_like(x)),
    "mean over the batch": of(lambda x: x - x.mean(0)),
    "embedding of integer inputs": of(lambda x, m: m.e((x.abs() * 3).long()), e=lambda: nn.Embedding(50, 2)),
    "cross term of a mask and data": of(lambda x: x * (x.sum(1, keepdim=True) > 0)),
}

OUTPUTS: dict[str, Callable[[], Body]] = {
    "dictionary with logits": of(lambda x: {"logits": x * 2}),
    "object with logits": of(lambda x: SimpleNamespace(logits=x * 2)),
    "tuple of one": of(lambda x: (x * 2,)),
    "tuple of logits and features": of(lambda x: (x * 2, x.relu())),
    "one logit [B]": of(lambda x: x.sum(1)),
}

FIRST: dict[str, Callable[[], Body]] = {
    "in-place ReLU of the input": lambda: nn.ReLU(inplace=True),
    "cloned input": of(lambda x: x.clone().relu_()),
    "identity of the input": nn.Identity,
    "scripted module": lambda: torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.ReLU())),
    "traced module": lambda: torch.jit.trace(nn.Linear(6, 6), torch.zeros(1, 6)),
    "quantised layer": lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(6, 6))),
    "compiled module": lambda: torch.compile(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), backend="eager"),
    "DataParallel": lambda: nn.DataParallel(nn.Linear(6, 6)),
}

PROBES: list[Probe] = [
    *(_layer(PLANE, make) for make in ACTIVATIONS),
    *(_layer(shape, make) for shape, make in LAYERS),
    *_functions(FLAT, PARAMETRIZED),
    *_functions(FLAT, CASTS),
    *_functions(LINE, MOVES),
    *_functions(FLAT, ARITHMETIC),
    *_functions(TOKENS, PRODUCTS),
    *_functions(PLANE, REDUCTIONS),
    *_functions(PLANE, IMAGES),
    *_functions(FLAT, STRUCTURE),
    *_functions(FLAT, OUTPUTS, raw=True),
    *_functions(FLAT, FIRST, first=True),
]

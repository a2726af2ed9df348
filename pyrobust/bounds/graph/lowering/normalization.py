"""Lowering rules of layers that normalise by their own input: softmax, attention, layer norm, group norm, norms.

Each layer becomes a graph of sums, elementwise functions and products. The layers themselves run as fused kernels,
whose rounding is not modelled, so bounds on the graphs hold for real numbers only (see ``Node.deployable``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.affine import batch_norm, scaled
from pyrobust.bounds.graph.lowering.elementwise import activation
from pyrobust.bounds.graph.lowering.layout import moved, reshaped
from pyrobust.bounds.graph.lowering.products import columns, contracted, summed
from pyrobust.bounds.graph.lowering.registry import Lowering, lowers, number
from pyrobust.bounds.graph.lowering.sorting import largest
from pyrobust.bounds.graph.nodes import Node, Product, Reshape, Scale, Sum

aten = torch.ops.aten

# Largest number of elements whose mean is subtracted by one dense matrix, which has exact interval bounds.
_DENSE = 512
# Largest number of differences in a softmax: with more, a graph would not fit the memory of most machines.
_MOST_DIFFERENCES = 1 << 24


def _function(lowering: Lowering, z: Node, name: str) -> Node:
    """Apply an elementwise function, and mark the node as not deployable, because a fused kernel computes it."""
    return dataclasses.replace(activation(lowering, z, name), deployable=False)


# --- softmax and attention


@lowers(aten.softmax.int)
def softmax(lowering: Lowering, z: Node, dim: int, option: object = None) -> Node:
    """Compute eᶻⁱ / Σ eᶻʲ as 1 / (1 + Σ_{j≠i} e^(zⱼ − zᵢ)), in (0, 1]; leave out elements to which −inf is added."""
    z, keep = _masked(lowering, z)
    return _softmax(lowering, z, dim, keep)


def _masked(lowering: Lowering, z: Node) -> tuple[Node, Tensor | None]:
    """Return z with the −inf of constants replaced by 0, and a mask of the other elements, or None without −inf."""
    source = z.inputs[0] if isinstance(z, Reshape) else z
    if not isinstance(source, Scale) or source.scale is not None or source.shift is None:
        return z, None
    keep = source.shift.value().detach() != -torch.inf
    if bool(keep.all()):
        return z, None
    shift = Constant.evaluated(lambda t: t.masked_fill(~keep.to(t.device), 0.0), [source.shift])
    finite = dataclasses.replace(source, shift=shift)
    return reshaped(lowering, finite, z.shape), keep.cpu().expand(source.shape).reshape(z.shape)


def _softmax(lowering: Lowering, z: Node, dim: int, mask: Tensor | None) -> Node:
    """Compute softmax along a dimension of the batched tensor, over the elements where a mask of z's shape is true."""
    sums = _sums_of_exponentials(lowering, z, dim, mask)
    result = activation(lowering, sums, "reciprocal")
    if mask is not None:
        kept = Constant.of(_last(mask[None], dim).double().reshape(sums.shape))
        result = Scale(name=lowering.name, shape=sums.shape, inputs=(result,), scale=kept, shift=None)
    return _back(lowering, result, z.shape, dim)


@lowers(aten.log_softmax.int)
def log_softmax(lowering: Lowering, z: Node, dim: int, option: object = None) -> Node:
    """Compute zᵢ − log Σ eᶻʲ as −log(1 + Σ_{j≠i} e^(zⱼ − zᵢ))."""
    logarithm = activation(lowering, _sums_of_exponentials(lowering, z, dim, None), "log")
    negative = Scale(name=lowering.name, shape=logarithm.shape, inputs=(logarithm,), scale=number(-1.0), shift=None)
    return _back(lowering, negative, z.shape, dim)


def _sums_of_exponentials(lowering: Lowering, z: Node, dim: int, mask: Tensor | None) -> Node:
    """Compute 1 + Σ_{j≠i} e^(zⱼ − zᵢ) for every element i, where j runs over i's row along ``dim``.

    The result is [1, 1, P]; in it, elements of a row along ``dim`` are adjacent.
    """
    if not dim % (len(z.shape) + 1):
        raise lowering.unsupported("it mixes the examples of a batch")
    count = z.shape[dim % (len(z.shape) + 1) - 1]
    if z.size * count > _MOST_DIFFERENCES:
        raise lowering.unsupported(
            f"a softmax of {count} elements in {z.size // count} rows needs {z.size * count} differences, more than "
            f"{_MOST_DIFFERENCES}; use fewer tokens or heads"
        )
    if count == 1:
        flat = columns(lowering, z, lambda t: t.reshape(len(t), -1, 1))
        return Scale(name=lowering.name, shape=flat.shape, inputs=(flat,), scale=number(0.0), shift=number(1.0))
    others = torch.tensor([[j for j in range(count) if j != i] for i in range(count)])  # [i, j]
    first = columns(lowering, z, lambda t: _last(t, dim)[..., others])
    second = columns(lowering, z, lambda t: _last(t, dim)[..., None].expand(*[-1] * t.dim(), count - 1))
    difference = Sum(name=lowering.name, shape=first.shape, inputs=(first, second), signs=(1, -1))
    terms = _function(lowering, difference, "exp")
    if mask is not None:
        kept = _last(mask[None], dim)[..., others].double().reshape(1, -1, count - 1).mT[0].unsqueeze(1)
        terms = Scale(name=lowering.name, shape=terms.shape, inputs=(terms,), scale=Constant.of(kept), shift=None)
    return summed(lowering, terms, bias=Constant.of(torch.ones(1)), known=(1.0, math.inf))


def _last(t: Tensor, dim: int) -> Tensor:
    """Move a dimension of a batched tensor to the end."""
    return t.movedim(dim, -1)


def _back(lowering: Lowering, z: Node, shape: tuple[int, ...], dim: int) -> Node:
    """Turn rows, taken along a dimension of the batched tensor, back into a tensor of this shape."""
    turned = list(_last(torch.empty(1, *shape, device="meta"), dim).shape[1:])
    return moved(lowering, z, lambda t: t.reshape(len(t), *turned).movedim(-1, dim))


@lowers(aten.logsumexp.default)
def log_sum_exp(lowering: Lowering, z: Node, dims: Sequence[int], keepdim: bool = False) -> Node:
    """Compute log Σ eᶻ."""
    terms = _function(lowering, _rows(lowering, z, dims), "exp")
    total = summed(lowering, terms, known=(0.0, math.inf))
    return reshaped(lowering, activation(lowering, total, "log"), lowering.out_shape())


@lowers(aten.scaled_dot_product_attention.default)
def attention(
    lowering: Lowering,
    query: Node,
    key: Node,
    value: Node,
    mask: Constant | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Node:
    """Compute softmax(q·kᵀ·scale + mask)·v over the last two dimensions (Vaswani et al., 2017)."""
    if not all(isinstance(z, Node) for z in (query, key, value)) or dropout or enable_gqa:
        raise lowering.unsupported(
            "expected a query, key and value that depend on the input, without dropout and grouped queries"
        )
    out = lowering.out_shape()
    leading = "abcdefgh"[: len(query.shape) - 2]
    scores = contracted(lowering, f"B{leading}NK,B{leading}MK->B{leading}NM", query, key)
    factor = number(1.0) / number(query.shape[-1]).sqrt() if scale is None else number(scale)
    lowering.shape = scores.shape
    keep: Tensor | None = None
    shift: Constant | None = None
    if is_causal:
        keep = torch.ones(scores.shape, dtype=torch.bool).tril()
    elif mask is not None:
        keep, shift = _mask(lowering, mask, scores.shape)
    scores = scaled(lowering, scores, factor, shift)
    weights = _softmax(lowering, scores, -1, keep)
    lowering.shape = out
    return contracted(lowering, f"B{leading}NM,B{leading}MK->B{leading}NK", weights, value)


def _mask(lowering: Lowering, mask: Constant, shape: tuple[int, ...]) -> tuple[Tensor | None, Constant | None]:
    """Split a mask of bools, or of addends that may be −inf, into a mask of the elements to keep and finite addends."""
    if not isinstance(mask, Constant):
        raise lowering.unsupported("expected a mask that does not depend on the input")
    values = mask.value().detach().cpu()
    if values.dim() == len(shape) + 1:
        if not bool((values == values[:1]).all()):
            raise lowering.unsupported("its mask differs between the examples of a batch")
        values = values[0]
    keep = values if values.dtype == torch.bool else values > -torch.inf
    whole = keep.expand(shape)
    if not bool(whole.any(-1).all()):
        raise lowering.unsupported("a row of its mask keeps nothing")
    added = None if values.dtype == torch.bool else Constant.of(values.masked_fill(~keep, 0.0))
    return None if bool(whole.all()) else whole, added


# --- normalisation by the statistics of the input


@lowers(aten.layer_norm.default)
def layer_norm(
    lowering: Lowering,
    z: Node,
    shape: Sequence[int],
    weight: Constant | None = None,
    bias: Constant | None = None,
    epsilon: float = 1e-5,
    cudnn: bool = False,
) -> Node:
    """Compute γ·(z − mean)/√(variance + ε) + β over the last dimensions (Ba et al., 2016)."""
    rows = columns(lowering, z, lambda t: t.reshape(len(t), -1, math.prod(shape)))
    normal = _normalised(lowering, rows, epsilon, centered=True)
    return _affine(lowering, _from_rows(lowering, normal, z.shape), weight, bias)


@lowers(aten.group_norm.default)
def group_norm(
    lowering: Lowering,
    z: Node,
    groups: int,
    weight: Constant | None = None,
    bias: Constant | None = None,
    epsilon: float = 1e-5,
    cudnn: bool = False,
) -> Node:
    """Compute the normalisation of groups of channels (Wu and He, 2018)."""
    rows = columns(lowering, z, lambda t: t.reshape(len(t), groups, -1))
    normal = _normalised(lowering, rows, epsilon, centered=True)
    weight, bias = (None if c is None else _along_channels(c, z) for c in (weight, bias))
    return _affine(lowering, _from_rows(lowering, normal, z.shape), weight, bias)


@lowers(aten.instance_norm.default)
def instance_norm(
    lowering: Lowering,
    z: Node,
    weight: Constant | None,
    bias: Constant | None,
    mean: Constant | None,
    variance: Constant | None,
    use_input_stats: bool,
    momentum: float,
    epsilon: float,
    cudnn: bool,
) -> Node:
    """Compute the normalisation of each channel by its own or by running statistics (Ulyanov et al., 2016)."""
    if use_input_stats:
        return group_norm(lowering, z, z.shape[0], weight, bias, epsilon)
    if mean is None or variance is None:
        raise lowering.unsupported("expected running statistics")
    return batch_norm(lowering, z, weight, bias, mean=mean, variance=variance, momentum=momentum, epsilon=epsilon)[0]


@lowers(aten.rms_norm.default)
def rms_norm(
    lowering: Lowering, z: Node, shape: Sequence[int], weight: Constant | None = None, epsilon: float | None = None
) -> Node:
    """Compute γ·z/√(mean of z² + ε) over the last dimensions (Zhang and Sennrich, 2019)."""
    if epsilon is None:
        if weight is None:
            raise lowering.unsupported("expected eps, whose default depends on the dtype; pass it")
        epsilon = torch.finfo(weight.value().dtype).eps
    rows = columns(lowering, z, lambda t: t.reshape(len(t), -1, math.prod(shape)))
    normal = _normalised(lowering, rows, epsilon, centered=False)
    return _affine(lowering, _from_rows(lowering, normal, z.shape), weight, None)


def _normalised(lowering: Lowering, rows: Node, epsilon: float, *, centered: bool) -> Node:
    """Compute z / √(mean of z² + ε) for columns z [n, 1, P]; with ``centered``, first subtract the mean from z.

    If n elements have mean square s, the magnitude of each is at most √(n·s). If, in addition, their mean is 0, each
    magnitude is at most √((n − 1)·s).
    """
    count = rows.shape[0]
    values = _centered(lowering, rows) if centered else rows
    squares = _function(lowering, values, "square")
    variance = summed(lowering, squares, _shares(count), number(epsilon).moved(lambda t: t[None]), (epsilon, math.inf))
    root = activation(lowering, variance, "rsqrt")
    repeated = moved(lowering, root, lambda t: t.expand(-1, count, -1, -1))
    limit = math.nextafter(math.sqrt(count - 1 if centered else count), math.inf) if epsilon > 0 else math.inf
    return Product(name=lowering.name, shape=rows.shape, inputs=(values, repeated), known=(-limit, limit))


def _centered(lowering: Lowering, rows: Node) -> Node:
    """Subtract the mean of each column from its elements; the columns are [n, 1, P]."""
    count = rows.shape[0]
    if count == 1:
        return Scale(name=lowering.name, shape=rows.shape, inputs=(rows,), scale=number(0.0), shift=None)
    if count <= _DENSE:
        identity = Constant.of(torch.eye(count, dtype=torch.float64))
        return summed(lowering, rows, identity - _shares(count).moved(lambda w: w.expand(count, -1)))
    mean = moved(lowering, summed(lowering, rows, _shares(count)), lambda t: t.expand(-1, count, -1, -1))
    return Sum(name=lowering.name, shape=rows.shape, inputs=(rows, mean), signs=(1, -1))


def _shares(count: int) -> Constant:
    """Return the constant 1/n in the shape [1, n]."""
    return Constant.of(torch.ones(1, count, dtype=torch.float64)) / number(count)


def _from_rows(lowering: Lowering, z: Node, shape: tuple[int, ...]) -> Node:
    """Turn columns [n, 1, P] back into a tensor of this shape."""
    return moved(lowering, z, lambda t: t.squeeze(2).mT.reshape(len(t), *shape))


def _along_channels(constant: Constant, z: Node) -> Constant:
    return constant.moved(lambda t: t.view(-1, *[1] * (len(z.shape) - 1)))


def _affine(lowering: Lowering, z: Node, weight: Constant | None, bias: Constant | None) -> Node:
    if weight is None and bias is None:
        return z
    return Scale(name=lowering.name, shape=z.shape, inputs=(z,), scale=weight, shift=bias)


# --- norms, variances and standard deviations over dimensions


def _rows(lowering: Lowering, z: Node, dims: Sequence[int] | None) -> Node:
    """Arrange the elements along dimensions of the batched tensor as columns [n, 1, P]."""
    rank = len(z.shape) + 1
    chosen = sorted({dim % rank for dim in dims or range(rank)})
    if 0 in chosen:
        raise lowering.unsupported("it mixes the examples of a batch")
    order = [dim for dim in range(rank) if dim not in chosen] + chosen
    count = math.prod(z.shape[dim - 1] for dim in chosen)
    return columns(lowering, z, lambda t: t.permute(order).reshape(len(t), -1, count))


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    lowering: Lowering,
    z: Node,
    order: float = 2,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Node:
    """Compute the l2, l1 or l∞ norm along dimensions."""
    if order not in (1, 2, math.inf):
        raise lowering.unsupported(f"expected the norm of order 1, 2 or inf, got {order}")
    if order == math.inf:
        return largest(lowering, activation(lowering, z, "abs"), dims or (), keepdim)
    rows = _rows(lowering, z, dims)
    total = summed(lowering, _function(lowering, rows, "square" if order == 2 else "abs"), known=(0.0, math.inf))
    result = activation(lowering, total, "sqrt") if order == 2 else total
    return reshaped(lowering, result, lowering.out_shape())


@lowers(aten.var.correction)
def variance_corrected(
    lowering: Lowering,
    z: Node,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Node:
    """Compute the variance along dimensions: Σ (z − mean)² / (n − correction)."""
    rows = _rows(lowering, z, dims)
    count, freedom = rows.shape[0], rows.shape[0] - (1 if correction is None else correction)
    if freedom <= 0:
        raise lowering.unsupported(f"a variance of {count} elements is not defined with this correction")
    squares = _function(lowering, _centered(lowering, rows), "square")
    shares = Constant.of(torch.ones(1, count, dtype=torch.float64)) / number(freedom)
    return reshaped(lowering, summed(lowering, squares, shares, known=(0.0, math.inf)), lowering.out_shape())


@lowers(aten.var.dim)
def variance(
    lowering: Lowering, z: Node, dims: Sequence[int] | None, unbiased: bool = True, keepdim: bool = False
) -> Node:
    """Compute the variance along dimensions, with divisor n − 1 or n."""
    return variance_corrected(lowering, z, dims, correction=float(unbiased), keepdim=keepdim)


@lowers(aten.std.correction)
def deviation_corrected(
    lowering: Lowering,
    z: Node,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Node:
    """Compute the standard deviation along dimensions."""
    squared = variance_corrected(lowering, z, dims, correction=correction, keepdim=keepdim)
    return activation(lowering, squared, "sqrt")


@lowers(aten.std.dim)
def deviation(
    lowering: Lowering, z: Node, dims: Sequence[int] | None, unbiased: bool = True, keepdim: bool = False
) -> Node:
    """Compute the standard deviation along dimensions, with divisor n − 1 or n."""
    return deviation_corrected(lowering, z, dims, correction=float(unbiased), keepdim=keepdim)

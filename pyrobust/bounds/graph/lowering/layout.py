"""Lowering rules of operators that only move elements: views, permutations, selections, concatenation, padding.

One rule serves all of them: it numbers the elements and runs the operator itself on the numbers. The result shows where
the operator moves each element. The elements of constants are numbered, too, so that a class token, for example, can be
concatenated.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from pyrobust.bounds.graph.analysis import origin
from pyrobust.bounds.graph.constants import Constant
from pyrobust.bounds.graph.lowering.registry import Lowering, Value, as_constant, lowers
from pyrobust.bounds.graph.nodes import Gather, Node, Reshape, Scale
from pyrobust.errors import ModelError

aten = torch.ops.aten


def moved(lowering: Lowering, z: Node, move: Callable[[Tensor], Tensor]) -> Node:
    """Return a node with the elements of z, rearranged by ``move``: [B, *z.shape] → [B, ...]."""
    return gathered(lowering, (z,), move)


def gathered(lowering: Lowering, parts: Sequence[Value], move: Callable[..., Tensor]) -> Node:
    """Move elements of nodes and constants as ``move`` moves their indices, which begin at 1; 0 is an inserted zero."""
    return _node_of(lowering, parts, move(*_numbered(lowering, parts)))


def _numbered(lowering: Lowering, parts: Sequence[Value]) -> list[Tensor]:
    """Number the elements from 1, in tensors of the same shapes: nodes first, example by example, then constants.

    The numbers are float64 tensors, because these hold the numbers exactly and every operator supports them.
    """
    total = sum(operand.size for operand in parts if isinstance(operand, Node))
    begin, constant = 1, 1 + lowering.batch * total
    numbered = []
    for operand in parts:
        if isinstance(operand, Node):
            index = torch.arange(begin, begin + operand.size, dtype=torch.float64).view(1, *operand.shape)
            numbered.append(torch.cat([index + i * total for i in range(lowering.batch)]))
            begin += operand.size
        else:
            size = operand.shape.numel()
            numbered.append(torch.arange(constant, constant + size, dtype=torch.float64).view(operand.shape))
            constant += size
    return numbered


def _node_of(lowering: Lowering, parts: Sequence[Value], result: Tensor) -> Node:
    """Return the node of the elements whose numbers are in ``result``; the number 0 stands for a zero."""
    nodes = [operand for operand in parts if isinstance(operand, Node)]
    constants = [operand for operand in parts if isinstance(operand, Constant)]
    total = sum(node.size for node in nodes)
    if len(result) != lowering.batch:
        raise lowering.unsupported("it mixes the examples of a batch")
    first, others = result[0].long(), result[1:].long()
    fixed = first > lowering.batch * total
    if not bool((fixed | (others == torch.where(first > 0, first + total, 0))).all()):
        raise lowering.unsupported("it mixes the examples of a batch")
    index = torch.where(fixed, -1, first - 1)
    if len(nodes) == 1 and index.numel() == total and bool((index.flatten() == torch.arange(total)).all()):
        return reshaped(lowering, nodes[0], tuple(index.shape))
    node = Gather(name=lowering.name, shape=tuple(index.shape), inputs=tuple(nodes), index=index.contiguous())
    source, places = origin(node)  # merges several movements into one
    if len(source) == 1 and torch.equal(places, torch.arange(source[0].size)):
        return reshaped(lowering, source[0], node.shape)
    node = dataclasses.replace(node, inputs=source, index=places.view(node.shape))
    if not bool(fixed.any()):
        return node
    begin = lowering.batch * total

    def of_constants(numbers: Tensor) -> Callable[..., Tensor]:
        places = (numbers - begin).clamp(min=0)  # 0 is the zero put in front

        def pick(*tensors: Tensor) -> Tensor:
            flat = [tensor.to(tensors[0].device).flatten() for tensor in tensors]
            return torch.cat([flat[0].new_zeros(1), *flat])[places.to(flat[0].device)]

        return pick

    with torch.no_grad():
        values = [constant.value() for constant in constants]
        if any(not torch.equal(of_constants(row)(*values), of_constants(first)(*values)) for row in others):
            raise lowering.unsupported("a constant of it differs between the examples of a batch")
    shift = Constant.arranged(of_constants(first), constants)
    return Scale(name=lowering.name, shape=node.shape, inputs=(node,), scale=None, shift=shift)


def reshaped(lowering: Lowering, z: Node, shape: tuple[int, ...]) -> Node:
    """Return the elements of z in another shape."""
    if z.shape == shape:
        return z
    if isinstance(z, Reshape):
        z = z.inputs[0]
        if z.shape == shape:
            return z
    return Reshape(name=lowering.name, shape=shape, inputs=(z,))


def broadcast(lowering: Lowering, z: Node, shape: tuple[int, ...]) -> Node:
    """Return the node repeated along dimensions of size 1."""
    if z.shape == shape:
        return z
    padded = (1,) * (len(shape) - len(z.shape)) + z.shape
    return moved(lowering, z, lambda t: t.reshape(t.shape[0], *padded).expand(t.shape[0], *shape))


@dataclasses.dataclass(frozen=True, eq=False)
class Displaced:
    """Elements that an operator has moved so that the batch is no longer the first dimension, or is merged with others.

    A later movement may put the batch first again.

    Attributes:
        parts: the tensors that the elements come from.
        numbers: the index of each element in the traced batch, as assigned by ``_numbered``.
        error: the error raised by operators that need the batch as the first dimension.
    """

    parts: tuple[Value, ...]
    numbers: Tensor
    error: ModelError

    def numbers_in(self, lowering: Lowering, numbered: dict[Value, Tensor]) -> Tensor:
        """Return the numbers that ``numbered`` assigns to these elements; ``numbered`` may cover further parts."""
        source_numbers = torch.cat([torch.zeros(1), *(t.flatten() for t in _numbered(lowering, self.parts))]).long()
        theirs = torch.cat([torch.zeros(1), *(numbered[operand].flatten() for operand in self.parts)]).double()
        table = torch.zeros(len(source_numbers), dtype=torch.float64)
        table[source_numbers] = theirs
        return table[self.numbers.long()]


def _in_place(lowering: Lowering, parts: Sequence[Value], result: Tensor) -> Node | Displaced:
    """Return the node of a movement, or ``Displaced`` elements if the batch is not the first dimension."""
    try:
        return _node_of(lowering, parts, result)
    except ModelError as error:
        return Displaced(tuple(parts), result, error)


def rearranged(
    lowering: Lowering, z: Node | Displaced | Sequence[Node], move: Callable[..., Tensor]
) -> Node | Displaced:
    """Move elements; in z and in the result, the first dimension need not be the batch."""
    if isinstance(z, Displaced):
        return _in_place(lowering, z.parts, move(z.numbers))
    parts = (z,) if isinstance(z, Node) else z
    return _in_place(lowering, parts, move(*_numbered(lowering, parts)))


#: Operators that also take ``Displaced`` elements.
MOVES: set[Any] = {operator.getitem, aten._assert_tensor_metadata.default}


def _moves(*operators: Any) -> None:
    """Register operators that only move elements of tensors or insert zeros, by constant indices and masks."""
    for operator_ in operators:

        def rule(lowering: Lowering, *arguments: Any, call: Any = operator_, **options: Any) -> Any:
            kept = {key: value for key, value in options.items() if key != "memory_format"}
            parts: dict[Value, None] = {}

            def noted(value: Any) -> Any:
                if isinstance(value, Displaced):
                    parts.update(dict.fromkeys(value.parts))
                elif isinstance(value, Node) or (isinstance(value, Constant) and value.value().is_floating_point()):
                    parts[value] = None
                return value

            map_aggregate((arguments, kept), noted)
            numbered = dict(zip(parts, _numbered(lowering, list(parts)), strict=True))

            def filled(value: Any) -> Any:
                if isinstance(value, Displaced):
                    return value.numbers_in(lowering, numbered)
                if isinstance(value, Constant) and value not in numbered:
                    return value.value().cpu()
                return numbered[value] if isinstance(value, Node | Constant) else value

            positional, named = map_aggregate((arguments, kept), filled)
            result = call(*positional, **named)
            if isinstance(result, Tensor):
                return _in_place(lowering, list(parts), result)
            return [_in_place(lowering, list(parts), piece) for piece in result]

        MOVES.add(operator_)
        lowers(operator_)(rule)


_moves(
    # views
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.mT.default,
    aten.movedim.int,
    aten.swapaxes.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.expand.default,
    aten.unfold.default,
    aten.diagonal.default,
    # selections and repetitions
    aten.slice.Tensor,
    aten.select.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.chunk.default,
    aten.tensor_split.sections,
    aten.unbind.int,
    aten.index.Tensor,
    aten.index_select.default,
    aten.gather.default,
    aten.take_along_dim.default,
    aten.repeat.default,
    aten.tile.default,
    aten.repeat_interleave.self_int,
    aten.repeat_interleave.self_Tensor,
    aten.tril.default,
    aten.triu.default,
    aten.where.self,
    # permutations
    aten.flip.default,
    aten.roll.default,
    aten.rot90.default,
    aten.pixel_shuffle.default,
    aten.pixel_unshuffle.default,
    aten.channel_shuffle.default,
    aten.im2col.default,
    # several tensors
    aten.cat.default,
    aten.concat.default,
    aten.stack.default,
    aten.hstack.default,
    aten.vstack.default,
    aten.dstack.default,
    aten.column_stack.default,
    aten.diag_embed.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.copy.default,
    # up-sampling
    aten.upsample_nearest1d.vec,
    aten.upsample_nearest2d.vec,
    aten.upsample_nearest3d.vec,
    aten._upsample_nearest_exact1d.vec,
    aten._upsample_nearest_exact2d.vec,
    aten._upsample_nearest_exact3d.vec,
)


_SAME = (
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
)
MOVES.update(_SAME)


@lowers(*_SAME)
def same(lowering: Lowering, z: Node, **options: Any) -> Node:
    """Return the input, for an operator that changes nothing."""
    return z


@lowers(aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default)
def dropout(lowering: Lowering, z: Node, share: float, train: bool) -> Node:
    """Return the input, as dropout does in evaluation mode."""
    if train:
        raise lowering.unsupported("expected train=False, got random values")
    return z


@lowers(aten._to_copy.default, aten.type_as.default, aten.to.dtype, aten.to.dtype_layout, aten.to.device)
def converted(lowering: Lowering, z: Value, *arguments: Any, **options: Any) -> Value:
    """Return the input of a conversion, which may change the device, but not the dtype."""
    if isinstance(z, Constant):
        dtype = lowering.dtype
        return Constant.evaluated(lambda tensor: tensor.to(dtype), [z])
    if lowering.dtype != lowering.input_dtype:
        raise lowering.unsupported(
            f"it converts {lowering.input_dtype} to {lowering.dtype}; convert the whole model, and pass inputs of that "
            "dtype"
        )
    return z


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(lowering: Lowering, z: Node, mask: Constant, value: float | Constant) -> Node:
    """Replace elements of the input by a number where a constant mask is true."""
    return gathered(lowering, (as_constant(value), z), _choice(mask))


@lowers(aten.where.ScalarOther)
def where_other(lowering: Lowering, mask: Constant, z: Node, other: float) -> Node:
    """Choose the input where a constant mask is true, else a number."""
    return gathered(lowering, (z, as_constant(other)), _choice(mask))


@lowers(aten.where.ScalarSelf)
def where_self(lowering: Lowering, mask: Constant, other: float, z: Node) -> Node:
    """Choose a number where a constant mask is true, else the input."""
    return gathered(lowering, (as_constant(other), z), _choice(mask))


def _choice(mask: Constant) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the movement that takes the first of two tensors where a mask is true, else the second."""
    places = mask.value().cpu()
    return lambda a, b: torch.where(places, a, b)


@lowers(aten.pad.default, aten.constant_pad_nd.default)
def padded(
    lowering: Lowering, z: Node, sides: Sequence[int], mode: str | float = "constant", value: float | None = None
) -> Node:
    """Pad with a number, or with elements of the tensor itself."""
    fill = value if isinstance(mode, str) else mode
    kind = mode if isinstance(mode, str) else "constant"
    pad = torch.nn.functional.pad
    if kind != "constant" or not fill:
        return moved(lowering, z, lambda t: pad(t, list(sides), kind))
    return gathered(lowering, (z, as_constant(fill)), lambda t, c: pad(t, list(sides), value=float(c)))


@lowers(aten.fill.Scalar, aten.fill.Tensor)
def filled(lowering: Lowering, z: Node, value: float | Constant) -> Constant:
    """Return a constant in the shape of the input, filled with ``value``."""
    shape = (lowering.batch, *z.shape)
    return Constant.arranged(lambda number: number.expand(shape), [as_constant(value)])


@lowers(operator.getitem)
def item(lowering: Lowering, values: Sequence[Any], index: int) -> Any:
    """Return one of several results."""
    return values[index]

"""The constants of a captured model: parameters, buffers, and tensors that the forward pass derives from them alone.

A constant has two forms. ``value()`` is the tensor that the model computes, connected to the parameters so that it
follows them during training. ``enclosure()`` is an interval that contains the real number. For a parameter, the
interval is a point; for 1/std or γ/√(v + ε), which a forward pass rounds, it is wider.

Other functions of parameters, such as weight normalisation or a matrix exponential, are evaluated: the floats that the
model computes count as parameters of the real network, see ``Constant.evaluated``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyrobust.checks import first_wrong, shape_text
from pyrobust.errors import ModelError


class Enclosure(NamedTuple):
    """Real numbers between two float64 tensors of the same shape."""

    lower: Tensor
    upper: Tensor


class Constant:
    """A tensor that does not depend on the input.

    Args:
        compute: maps the operands' values to the value of this constant.
        enclosure: returns an interval that contains the real numbers.
        operands: constants that the value is computed from.
        exact: returns the real numbers if floats represent them exactly, else None.

    >>> third = Constant.of(torch.tensor([1.0])) / Constant.of(torch.tensor([3.0]))
    >>> lower, upper = third.enclosure()
    >>> bool(lower < upper), float(third.value())
    (True, 0.3333333432674408)
    """

    def __init__(
        self,
        compute: Callable[..., Tensor],
        enclosure: Callable[[], Enclosure],
        operands: tuple[Constant, ...] = (),
        exact: Callable[[], Tensor | None] = lambda: None,
    ) -> None:
        self.enclosure = enclosure
        self.exact = exact
        self._compute = compute
        self._operands = operands
        #: Whether the constant is, or is computed from, the float result of a function without interval arithmetic.
        self.is_evaluated: bool = any(operand.is_evaluated for operand in operands)

    def value(self) -> Tensor:
        """Return the tensor that the model computes, differentiable with respect to the parameters."""
        values: list[Tensor] = []
        for compute, places in self._schedule:
            values.append(compute(*[values[i] for i in places]))
        return values[-1]

    @functools.cached_property
    def shape(self) -> torch.Size:
        """The shape of the value."""
        with torch.no_grad():
            return self.value().shape

    @functools.cached_property
    def _schedule(self) -> list[tuple[Callable[..., Tensor], tuple[int, ...]]]:
        """List the computations that give the value, each once and after its operands, with the operands' positions."""
        offsets: dict[Constant, int] = {}
        schedule: list[tuple[Callable[..., Tensor], tuple[int, ...]]] = []
        stack = [self]
        while stack:
            constant = stack[-1]
            missing = [operand for operand in constant._operands if operand not in offsets]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if constant not in offsets:
                offsets[constant] = len(schedule)
                schedule.append((constant._compute, tuple(offsets[operand] for operand in constant._operands)))
        return schedule

    @classmethod
    def of(cls, tensor: Tensor) -> Constant:
        """Return a tensor's exact floats as a constant; they are read when ``exact`` or ``enclosure`` is first used.

        Raises:
            ModelError: an element is NaN or infinite (raised at that first use).
        """
        enclosure, exact = _frozen(lambda: tensor)
        return cls(lambda: tensor, enclosure, (), exact)

    @classmethod
    def evaluated(cls, function: Callable[..., Tensor], operands: Sequence[Constant]) -> Constant:
        """Return the float result of a function of constants as parameters of the real network; errors: see ``of``."""
        constant = cls(function, lambda: enclosure(), tuple(operands), lambda: exact())
        enclosure, exact = _frozen(constant.value)
        constant.is_evaluated = True
        return constant

    def moved(self, move: Callable[[Tensor], Tensor]) -> Constant:
        """Return the numbers as rearranged by ``move``, which is a view, a permutation or a slice."""
        return Constant.arranged(move, [self])

    @classmethod
    def arranged(cls, move: Callable[..., Tensor], constants: Sequence[Constant]) -> Constant:
        """Return the numbers of several constants as ``move`` arranges them; it may insert zeros."""

        def enclosure() -> Enclosure:
            lower, upper = zip(*(constant.enclosure() for constant in constants), strict=True)
            return Enclosure(move(*lower), move(*upper))

        def exact() -> Tensor | None:
            tensors = [constant.exact() for constant in constants]
            return None if any(tensor is None for tensor in tensors) else move(*tensors)

        return cls(move, enclosure, tuple(constants), exact)

    def __neg__(self) -> Constant:
        return Constant(lambda a: -a, lambda: _negative(self.enclosure()), (self,))

    def __add__(self, other: Constant) -> Constant:
        return _computed(lambda a, b: a + b, _sum, self, other)

    def __sub__(self, other: Constant) -> Constant:
        return _computed(lambda a, b: a - b, lambda a, b: _sum(a, _negative(b)), self, other)

    def __mul__(self, other: Constant) -> Constant:
        return _computed(lambda a, b: a * b, _product, self, other)

    def __truediv__(self, other: Constant) -> Constant:
        return _computed(lambda a, b: a / b, lambda a, b: _product(a, _inverse(b)), self, other)

    def sqrt(self) -> Constant:
        """Return the square roots.

        Raises:
            ModelError: a number is negative (raised when the enclosure is first used).
        """
        return _computed(lambda a: a.sqrt(), _root, self)


def _frozen(value: Callable[[], Tensor]) -> tuple[Callable[[], Enclosure], Callable[[], Tensor]]:
    """Return (enclosure, exact), functions that keep the values that a tensor has at the first call of either."""

    @functools.cache
    def exact() -> Tensor:
        with torch.no_grad():
            floats = value().detach().to("cpu", copy=True)
        if not bool(floats.isfinite().all()):
            got = first_wrong(floats, ~floats.isfinite())
            raise ModelError(f"model: expected finite parameters and buffers, got {got} of {shape_text(floats.shape)}")
        return floats

    def enclosure() -> Enclosure:
        floats = exact().double()
        return Enclosure(floats, floats)

    return enclosure, exact


def _computed(compute: Callable[..., Tensor], interval: Callable[..., Enclosure], *operands: Constant) -> Constant:
    """Return a constant that is computed; its enclosure contains the exact values and the floats of the model."""

    @functools.cache
    def enclosure() -> Enclosure:
        lower, upper = interval(*(operand.enclosure() for operand in operands))
        deployed = constant.value().detach().to("cpu", torch.float64)
        return Enclosure(torch.minimum(lower, deployed), torch.maximum(upper, deployed))

    constant = Constant(compute, enclosure, operands)
    return constant


def _outward(lower: Tensor, upper: Tensor) -> Enclosure:
    """Move the ends outward by one float; this suffices, because every operation here is correctly rounded."""
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device="cpu")
    return Enclosure(torch.nextafter(lower, -infinity), torch.nextafter(upper, infinity))


def _negative(a: Enclosure) -> Enclosure:
    return Enclosure(-a.upper, -a.lower)


def _sum(a: Enclosure, b: Enclosure) -> Enclosure:
    lower, upper = a.lower + b.lower, a.upper + b.upper
    exact = _is_zero(a) | _is_zero(b)
    outward = _outward(lower, upper)
    return Enclosure(lower.where(exact, outward.lower), upper.where(exact, outward.upper))


def _is_zero(a: Enclosure) -> Tensor:
    return (a.lower == 0) & (a.upper == 0)


def _product(a: Enclosure, b: Enclosure) -> Enclosure:
    corners = torch.stack([a.lower * b.lower, a.lower * b.upper, a.upper * b.lower, a.upper * b.upper])
    lower, upper = corners.amin(0), corners.amax(0)
    exact = _is_trivial_factor(a) | _is_trivial_factor(b)  # such products are not rounded: a mask keeps its zeros
    outward = _outward(lower, upper)
    return Enclosure(lower.where(exact, outward.lower), upper.where(exact, outward.upper))


def _is_trivial_factor(a: Enclosure) -> Tensor:
    """Whether a factor is certainly 0, 1 or −1."""
    return _is_zero(a) | ((a.lower == a.upper) & (a.lower.abs() == 1))


def _inverse(a: Enclosure) -> Enclosure:
    if bool(((a.lower <= 0) & (a.upper >= 0)).any()):
        raise ModelError("model: expected divisors other than zero, got a constant that is zero or may be")
    return _outward(1 / a.upper, 1 / a.lower)


def _root(a: Enclosure) -> Enclosure:
    if bool((a.lower < 0).any()):
        raise ModelError("model: expected square roots of constants of at least 0, got a negative one")
    lower, upper = _outward(a.lower.sqrt(), a.upper.sqrt())
    return Enclosure(lower.clamp(min=0), upper)

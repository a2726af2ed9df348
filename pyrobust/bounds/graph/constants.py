"""The constants of a captured model: parameters, buffers, and tensors that the forward pass derives from them alone.

A constant has two forms. ``value()`` is the tensor that the model computes, connected to the parameters, so that it
follows them through training. ``enclosure()`` is an interval around the real number: exact for a parameter, but wider
than a point for 1/std or γ/√(v + ε), which a forward pass rounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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

    >>> third = Constant.of(torch.tensor([1.0])) / Constant.of(torch.tensor([3.0]))
    >>> lower, upper = third.enclosure()
    >>> bool(lower < upper), float(third.value())
    (True, 0.3333333432674408)
    """

    def __init__(self, value: Callable[[], Tensor], enclosure: Callable[[], Enclosure]) -> None:
        self.value = value
        self.enclosure = enclosure

    @classmethod
    def of(cls, tensor: Tensor) -> Constant:
        """The exact floats of a tensor; the enclosure is computed at its first use.

        Raises:
            ModelError: an element is NaN or infinite (at the first use of the enclosure).
        """

        @functools.cache
        def enclosure() -> Enclosure:
            exact = tensor.detach().to("cpu", torch.float64, copy=True)
            if not bool(exact.isfinite().all()):
                got = first_wrong(exact, ~exact.isfinite())
                raise ModelError(
                    f"model: expected finite parameters and buffers, got {got} of {shape_text(exact.shape)}"
                )
            return Enclosure(exact, exact)

        return cls(lambda: tensor, enclosure)

    def moved(self, move: Callable[[Tensor], Tensor]) -> Constant:
        """The same numbers in a view, permutation or slice."""
        return Constant(lambda: move(self.value()), lambda: Enclosure(*(move(end) for end in self.enclosure())))

    def __neg__(self) -> Constant:
        return Constant(lambda: -self.value(), lambda: _negative(self.enclosure()))

    def __add__(self, other: Constant) -> Constant:
        return _computed(lambda: self.value() + other.value(), lambda: _sum(self.enclosure(), other.enclosure()))

    def __sub__(self, other: Constant) -> Constant:
        return _computed(
            lambda: self.value() - other.value(), lambda: _sum(self.enclosure(), _negative(other.enclosure()))
        )

    def __mul__(self, other: Constant) -> Constant:
        return _computed(lambda: self.value() * other.value(), lambda: _product(self.enclosure(), other.enclosure()))

    def __truediv__(self, other: Constant) -> Constant:
        return _computed(
            lambda: self.value() / other.value(), lambda: _product(self.enclosure(), _inverse(other.enclosure()))
        )

    def sqrt(self) -> Constant:
        """The square roots.

        Raises:
            ModelError: a number is negative (at the first use of the enclosure).
        """
        return _computed(lambda: self.value().sqrt(), lambda: _root(self.enclosure()))


def _computed(value: Callable[[], Tensor], exact: Callable[[], Enclosure]) -> Constant:
    """A result of arithmetic; its enclosure includes the model's own value, so that it serves both semantics."""

    @functools.cache
    def enclosure() -> Enclosure:
        lower, upper = exact()
        deployed = value().detach().to("cpu", torch.float64)
        return Enclosure(torch.minimum(lower, deployed), torch.maximum(upper, deployed))

    return Constant(value, enclosure)


def _outward(lower: Tensor, upper: Tensor) -> Enclosure:
    """The ends moved outward by one float, which suffices because every operation here is correctly rounded."""
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device="cpu")
    return Enclosure(torch.nextafter(lower, -infinity), torch.nextafter(upper, infinity))


def _negative(a: Enclosure) -> Enclosure:
    return Enclosure(-a.upper, -a.lower)


def _sum(a: Enclosure, b: Enclosure) -> Enclosure:
    return _outward(a.lower + b.lower, a.upper + b.upper)


def _product(a: Enclosure, b: Enclosure) -> Enclosure:
    corners = torch.stack([a.lower * b.lower, a.lower * b.upper, a.upper * b.lower, a.upper * b.upper])
    return _outward(corners.amin(0), corners.amax(0))


def _inverse(a: Enclosure) -> Enclosure:
    if bool(((a.lower <= 0) & (a.upper >= 0)).any()):
        raise ModelError("model: expected divisors other than zero, got a constant that is zero or may be")
    return _outward(1 / a.upper, 1 / a.lower)


def _root(a: Enclosure) -> Enclosure:
    if bool((a.lower < 0).any()):
        raise ModelError("model: expected square roots of constants of at least 0, got a negative one")
    lower, upper = _outward(a.lower.sqrt(), a.upper.sqrt())
    return Enclosure(lower.clamp(min=0), upper)

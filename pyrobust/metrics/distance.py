"""Distances of adversarial examples from the clean examples."""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobust.checks import AttackNormName, NormLike, Numbers, attack_norm_name, finite_values, float_tensor
from pyrobust.errors import InputError

from .arguments import checked_distances
from .estimate import quantiles

_ORDERS = {"linf": math.inf, "l2": 2.0, "l1": 1.0, "l0": 0.0}
# How many numbers are held in float64 at once: 32 MiB.
_CHUNK = 1 << 22
# Factor that splits a float64 into two halves of 26 bits (Veltkamp, 1968); products of halves are exact above
# _LEAST_SQUARED.
_LARGEST = Fraction(np.finfo(np.float64).max)
_SPLITTER, _LEAST_SQUARED = float((1 << 27) + 1), 1e-120


def box_diameter(norm: str, coordinates: int, width: float) -> float:
    """Return the distance between opposite corners of a box with equal widths; for l0, the number of coordinates.

    >>> box_diameter("l2", 4, 0.5), box_diameter("l0", 4, 0.5)
    (1.0, 4.0)
    """
    factors = {"linf": 1, "l2": math.sqrt(coordinates), "l1": coordinates}
    return float(coordinates) if norm == "l0" else factors[norm] * width


def distances(x_adv: Numbers, x: Numbers, norm: NormLike = "linf") -> Tensor:
    """Distance ``‖x_advᵢ − xᵢ‖`` of each example, computed in float64.

    Args:
        x_adv: [N, ...], float, finite.
        x: [N, ...], float, finite, on the same device.
        norm: "linf" (largest absolute difference), "l2" (root of the sum of squares), "l1" (sum of absolute
            differences) or "l0" (number of different values), over all dimensions of an example.

    Returns:
        [N], float64, on x's device.

    Raises:
        InputError: mismatched shapes or devices, empty examples, NaN or inf, or an unknown norm.
        InputTypeError: arguments that are not float tensors.

    >>> x, x_adv = torch.zeros(1, 2), torch.tensor([[3.0, -4.0]])
    >>> [float(distances(x_adv, x, norm)) for norm in ("linf", "l2", "l1", "l0")]
    [4.0, 5.0, 7.0, 2.0]
    """
    return _distances(*_checked(x_adv, x), attack_norm_name("norm", norm))


def _checked(x_adv: Numbers, x: Numbers) -> tuple[Tensor, Tensor]:
    """Check two batches of examples; return them as tensors without gradients."""
    x_adv, x = (float_tensor(name, value, dtype=torch.float64) for name, value in (("x_adv", x_adv), ("x", x)))
    for name, value in (("x_adv", x_adv), ("x", x)):
        if value.dim() < 2 or math.prod(value.shape[1:]) == 0:
            raise InputError(name, "a batch [N, ...] of non-empty examples", f"shape {tuple(value.shape)}")
    if x_adv.shape != x.shape or x_adv.device != x.device:
        raise InputError(
            "x_adv", f"x's shape and device, {tuple(x.shape)} on {x.device}", f"{tuple(x_adv.shape)} on {x_adv.device}"
        )
    for name, value in (("x_adv", x_adv), ("x", x)):
        finite_values(name, value.detach())
    return x_adv.detach(), x.detach()


def _distances(x_adv: Tensor, x: Tensor, norm: AttackNormName) -> Tensor:
    rows = max(1, _CHUNK // math.prod(x.shape[1:]))
    chunks = list(zip(torch.split(x_adv, rows), torch.split(x, rows), strict=True))
    if norm == "l0":  # a difference may be flushed to zero, but a comparison is exact
        return torch.cat([(a.double() != b.double()).flatten(1).sum(1).double() for a, b in chunks])
    return torch.cat(
        [torch.linalg.vector_norm((a.double() - b.double()).flatten(1), _ORDERS[norm], dim=1) for a, b in chunks]
    )


def distances_above(x_adv: Numbers, x: Numbers, norm: NormLike = "linf") -> Tensor:
    """Return the smallest float64 numbers that are at least the exact distances ``‖x_advᵢ − xᵢ‖``.

    Differences, sums and squares are exact (Dekker, 1971; Shewchuk, 1997, in Python's ``math.fsum``), so the result is
    the smallest float64 upper bound on the exact distance of the tensors. This holds unless subnormal numbers are
    flushed to zero (``torch.set_flush_denormal``).

    Args:
        x_adv: see ``distances``.
        x: see ``distances``.
        norm: see ``distances``.

    Returns:
        [N], float64, on the CPU; inf for a distance above the largest float64.

    Raises:
        InputError, InputTypeError: see ``distances``.

    >>> x, x_adv = torch.zeros(1, 2), torch.tensor([[0.1, 0.2]])
    >>> above, rounded = distances_above(x_adv, x, "l1"), distances(x_adv, x, "l1")
    >>> float(above), bool(rounded <= above)
    (0.30000000447034836, True)
    """
    norm = attack_norm_name("norm", norm)
    x_adv, x = _checked(x_adv, x)
    if norm == "l0":
        return _distances(x_adv, x, norm).cpu()
    rows = zip(*(tensor.cpu().double().flatten(1).numpy() for tensor in (x_adv, x)), strict=True)
    above = [_distance_above(a, b, norm) for a, b in rows]
    return torch.tensor(above, dtype=torch.float64, device="cpu")


def _distance_above(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], norm: str) -> float:
    """Distance of one example, rounded up; inf if it is above the largest float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        delta = a - b
        virtual = delta - a
        error = (a - (delta - virtual)) - (b + virtual)  # the exact error of the difference (Knuth, TAOCP 2, 4.2.2)
        size = np.abs(delta[delta != 0])
        overflows = not math.isfinite(size.sum())
    extreme = size.size and not (size.min() >= _LEAST_SQUARED and size.max() <= 1 / _LEAST_SQUARED)
    if error.any() or overflows or (norm == "l2" and extreme):
        return _rational_distance_above(a.tolist(), b.tolist(), norm)
    if norm == "linf":
        return float(size.max(initial=0.0))
    if norm == "l1":
        terms = size.tolist()
        total = math.fsum(terms)
        return math.nextafter(total, math.inf) if math.fsum([*terms, -total]) > 0 else total
    squares = _square_terms(size)
    root = math.sqrt(math.fsum(squares))
    for _ in range(2):  # the rounded root may be too large or too small
        root = math.nextafter(root, 0.0)
    while math.fsum([*squares, *(-term for term in _square_terms(np.array([root])))]) > 0:
        root = math.nextafter(root, math.inf)
    return root


def _square_terms(size: npt.NDArray[np.float64]) -> list[float]:
    """Return three numbers for each value; their exact sum is the value's square."""
    scaled = size * _SPLITTER
    high = scaled - (scaled - size)
    low = size - high
    return [*(high * high).tolist(), *(2 * high * low).tolist(), *(low * low).tolist()]


def _rational_distance_above(a: list[float], b: list[float], norm: str) -> float:
    delta = [abs(Fraction(p) - Fraction(q)) for p, q in zip(a, b, strict=True) if p != q]
    exact = max(delta) if norm == "linf" else sum((z * z if norm == "l2" else z for z in delta), Fraction(0))
    if exact > (_LARGEST**2 if norm == "l2" else _LARGEST):
        return math.inf
    # Decimal square roots neither overflow nor underflow; the loop corrects the last digits.
    with decimal.localcontext() as context:
        context.prec = 40
        value = decimal.Decimal(exact.numerator) / decimal.Decimal(exact.denominator)
        result = float(value.sqrt() if norm == "l2" else value)
    for _ in range(2):
        result = math.nextafter(result, 0.0)
    while Fraction(result) ** (2 if norm == "l2" else 1) < exact:
        result = math.nextafter(result, math.inf)
    return result


def is_within(x_adv: Numbers, x: Numbers, norm: NormLike, epsilon: Tensor) -> Tensor:
    """Whether ``‖x_advᵢ − xᵢ‖ ≤ εᵢ`` in exact arithmetic, bool [N] on the CPU; epsilon is float64 [N].

    Where rounding cannot change the answer, distances computed in float64 are compared with epsilon; elsewhere, the
    comparison uses exact rational arithmetic. The answer is exact unless subnormal numbers are flushed to zero
    (``torch.set_flush_denormal``).

    >>> x, x_adv = torch.zeros(2, 1), torch.full((2, 1), 0.1)  # the float32 number next to 0.1 is above it
    >>> is_within(x_adv, x, "linf", torch.tensor([0.1, 0.11], dtype=torch.float64))
    tensor([False,  True])
    """
    norm = attack_norm_name("norm", norm)
    x_adv, x = _checked(x_adv, x)
    distance, radius = _distances(x_adv, x, norm).cpu(), epsilon.detach().cpu()
    within = distance <= radius
    # Far more than the rounding error of the sums; squares of radii below 1e-150 underflow, and large squares overflow.
    close = ((distance - radius).abs() <= 1e-9 * radius) | (radius < 1e-150) | distance.isinf()
    close &= radius.isfinite()
    for row in close.nonzero()[:, 0].tolist():
        within[row] = _exactly_within(x_adv[row], x[row], norm, Fraction(float(radius[row])))
    return within


def _exactly_within(x_adv: Tensor, x: Tensor, norm: str, radius: Fraction) -> bool:
    pairs = zip(x_adv.flatten().tolist(), x.flatten().tolist(), strict=True)
    delta = [abs(Fraction(a) - Fraction(b)) for a, b in pairs if a != b]
    if norm == "l0":
        return len(delta) <= radius
    if norm == "l2":
        return sum((z * z for z in delta), Fraction(0)) <= radius * radius
    return (max(delta, default=Fraction(0)) if norm == "linf" else sum(delta, Fraction(0))) <= radius


def box_distances_above(x_adv: Numbers, x: Numbers, box: Tensor) -> Tensor:
    """Return the smallest float64 numbers that are at least the exact ``max |x_advᵢ − xᵢ| / boxᵢ``, with 0/0 = 0.

    Args:
        x_adv: see ``distances``.
        x: see ``distances``.
        box: [...], float64, the radius of each element of an example, at least 0.

    Returns:
        [N], float64, on the CPU; inf for an example that differs in an element of radius 0, or for a result above the
        largest float64. The result is exact unless subnormal numbers are flushed to zero
        (``torch.set_flush_denormal``).

    >>> x_adv, box = torch.tensor([[0.5, 1.0], [0.0, 1.5]]), torch.tensor([0.25, 0.0], dtype=torch.float64)
    >>> box_distances_above(x_adv, torch.tensor([[0.0, 1.0], [0.0, 1.0]]), box)
    tensor([2., inf], dtype=torch.float64)
    """
    pairs = zip(*(tensor.cpu().double().flatten(1).numpy() for tensor in _checked(x_adv, x)), strict=True)
    radius = box.detach().cpu().double().flatten().numpy()
    above = [_box_distance_above(a, b, radius) for a, b in pairs]
    return torch.tensor(above, dtype=torch.float64, device="cpu")


def _box_distance_above(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], radius: npt.NDArray[np.float64]
) -> float:
    moved = a != b
    a, b, radius = a[moved], b[moved], radius[moved]
    if not len(a) or not radius.all():
        return math.inf if len(a) else 0.0
    with np.errstate(over="ignore"):
        quotient = np.abs(a - b) / radius
    # Far more than the rounding errors of difference and quotient, unless the quotient is subnormal.
    largest = np.flatnonzero(quotient >= (1 - 1e-9) * quotient.max() - 1e-290).tolist()
    exact = max(abs(Fraction(a[i]) - Fraction(b[i])) / Fraction(radius[i]) for i in largest)
    if exact > _LARGEST:
        return math.inf
    nearest = float(exact)  # rounded to the nearest
    return nearest if nearest >= exact else math.nextafter(nearest, math.inf)


def scaled_boxes(box: Tensor, scale: Tensor, *, up: bool) -> Tensor:
    """Return element radii ``scaleₙ · boxᵢ``, float64 [N, ...], as upper or lower bounds on the exact products.

    Args:
        box: [...], float64, at least 0.
        scale: [N], float64, at least 0.
        up: whether to return upper rather than lower bounds. A bound is the float64 number next to the rounded product;
            it is the product itself if either factor is 0 or the scale is 1.

    >>> scaled_boxes(torch.tensor([0.0, 0.5], dtype=torch.float64), torch.ones(1, dtype=torch.float64), up=True)
    tensor([[0.0000, 0.5000]], dtype=torch.float64)
    """
    factor = scale.view(-1, *[1] * box.dim())
    product = factor * box
    toward = torch.full_like(product, math.inf) if up else torch.zeros_like(product)
    exact = (factor == 1) | (factor == 0) | (box == 0)
    return torch.where(exact, product, torch.nextafter(product, toward))


def is_within_box(x_adv: Tensor, x: Tensor, box: Tensor, scale: Tensor) -> Tensor:
    """Whether ``|x_advᵢ − xᵢ| ≤ scale · boxᵢ`` for all elements in exact arithmetic, bool [N] on the CPU.

    Args:
        x_adv: see ``box_distances_above``.
        x: see ``box_distances_above``.
        box: see ``box_distances_above``.
        scale: [N], float64.

    >>> x, box = torch.zeros(1, 2), torch.tensor([0.1, 0.0], dtype=torch.float64)
    >>> is_within_box(torch.tensor([[0.1, 0.0]]), x, box, torch.ones(1))  # float32(0.1) is above 0.1
    tensor([False])
    """
    # The exact distance is at most a given float64 if and only if the distance rounded up to float64 is.
    return box_distances_above(x_adv, x, box) <= scale.detach().cpu().double()


def mean_distance(distances: Numbers, success: Numbers) -> float:
    """Mean distance of the successful examples, ``(1/|S|)·Σ_{i in S} ‖x_advᵢ − xᵢ‖`` with ``S = {i: success}``.

    Args:
        distances: [N], float, at least 0, finite where successful; see ``distances``.
        success: [N], bool, whether f(x_adv) ≠ y or, for a targeted attack, whether f(x_adv) = target.

    Returns:
        The mean; NaN if and only if no example was successful.

    Raises:
        InputError: mismatched shapes, no examples, a NaN or negative distance, or an infinite distance of a successful
            example.
        InputTypeError: distances that are not float, or success that is not bool.

    >>> mean_distance(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False]))
    1.5
    """
    values, chosen = checked_distances(distances, success)
    return float(values[chosen].mean()) if bool(chosen.any()) else math.nan


def minimum_perturbation(distances: Numbers, success: Numbers) -> Tensor:
    """Smallest adversarial perturbation found for each example, over several attacks or budgets.

    The result for example i is ``minₐ {distances[a, i] : success[a, i]}``, or +inf if no attack succeeded. This
    minimum, which Szegedy et al. (2014) also seek, is an upper bound on the example's distance to the decision
    boundary. If an example is misclassified without an attack, pass it as a success at distance 0.

    Args:
        distances: [A, N], float, at least 0, finite where successful; one row per attack or budget.
        success: [A, N], bool.

    Returns:
        [N], float64, on the CPU.

    Raises:
        InputError: mismatched shapes or shapes other than [A, N], no examples, a NaN or negative distance, or an
            infinite distance of a successful example.
        InputTypeError: distances that are not float, or success that is not bool.

    >>> distances = torch.tensor([[0.5, 0.5], [0.2, 0.9]])
    >>> minimum_perturbation(distances, torch.tensor([[True, False], [True, False]]))
    tensor([0.2000,    inf], dtype=torch.float64)
    """
    values, chosen = checked_distances(distances, success)
    if values.dim() != 2:
        raise InputError("distances", "[A, N], one row per attack or budget", f"shape {tuple(values.shape)}")
    return torch.where(chosen, values, math.inf).amin(dim=0)


def perturbation_quantiles(minimum: Numbers, q: Sequence[float] = (0.25, 0.5, 0.75)) -> list[float]:
    """Quantiles of the smallest adversarial perturbations; q = 0.5 is the median.

    The quantile for q is the smallest r with ``(1/N)·|{i: minimumᵢ ≤ r}| ≥ q``. This is the inverse of the empirical
    distribution function (the first definition of Hyndman and Fan, 1996). A quantile is always one of the given values,
    never interpolated. It may therefore be +inf, the value of an example that was never fooled. q = 0 gives the
    smallest value.

    Args:
        minimum: [N], float, at least 0, +inf allowed; see ``minimum_perturbation``.
        q: shares in [0, 1]; each is converted to float64 and stands for the shortest decimal number that rounds to it,
            so 0.07 means exactly 7/100.

    Returns:
        One number per share.

    Raises:
        InputError: no examples, a wrong shape, NaN or a negative number, or a share out of range.
        InputTypeError: a minimum that is not a float tensor, or shares that are not numbers.

    >>> perturbation_quantiles(torch.tensor([0.1, 0.4, 0.2, float("inf")], dtype=torch.float64))
    [0.1, 0.2, 0.4]
    """
    minimum = float_tensor("minimum", minimum, dtype=torch.float64)
    if minimum.dim() != 1 or len(minimum) == 0:
        raise InputError("minimum", "shape [N] with N >= 1", tuple(minimum.shape))
    if not bool((minimum >= 0).all()):
        raise InputError("minimum", "numbers of at least 0", "a negative number or NaN")
    return quantiles(minimum, q)

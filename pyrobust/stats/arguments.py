"""Checks of counts and levels, and their conversion to arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pyrobust.errors import InputError, InputTypeError

MAX_TRIALS: Final = 10**9
"""Largest supported number of trials n. The bounds on rounding errors in the proofs hold up to this n."""

#: Default share of alpha for the bound of a sequential rule at n_max.
SHARE_AT_END: Final = 0.01

FloatArray: TypeAlias = npt.NDArray[np.float64]
CountArray: TypeAlias = npt.NDArray[np.int64]


def as_counts(name: str, value: Any) -> CountArray:
    """Return counts as int64; error messages contain the name of the argument."""
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise InputTypeError(
            name, "integers", f"{type(value).__name__} of dtype {array.dtype}", "convert counts with int()"
        )
    if array.size and int(array.max()) > MAX_TRIALS:
        raise InputError(name, f"at most {MAX_TRIALS}", int(array.max()), "draw fewer samples")
    return array.astype(np.int64)


def as_real(name: str, value: Any) -> FloatArray:
    """Return real numbers as float64; error messages contain the name of the argument."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InputTypeError(
            name, "float64", f"{type(value).__name__} of dtype {array.dtype}", "convert it with float()"
        )
    return array.astype(np.float64)


def inputs(k: Any, n: Any, *alpha: Any, names: tuple[str, str] = ("k", "n")) -> tuple[npt.NDArray[Any], ...]:
    """Return checked counts, trials and alphas as arrays of one shape; `names` are the names used in error messages."""
    successes, trials = names
    broadcast = [as_counts(successes, k), as_counts(trials, n), *(as_real("alpha", a) for a in alpha)]
    try:
        arrays = np.broadcast_arrays(*broadcast)
    except ValueError as error:
        shapes = ", ".join(str(array.shape) for array in broadcast)
        raise InputError(
            f"{successes}, {trials}, alpha",
            problem=f"shapes {shapes} do not broadcast",
            hint=f"pass one {trials} and one alpha, or one for each of {successes}",
        ) from error
    k, n = arrays[:2]
    if (n < 1).any():
        raise InputError(trials, "at least 1", n.min(), "pass the number of samples drawn")
    wrong = (k < 0) | (k > n)
    if wrong.any():
        got = f"{successes}={k[wrong][0]} with {trials}={n[wrong][0]}"
        raise InputError(successes, f"0 <= {successes} <= {trials}", got, "pass counts")
    for a in arrays[2:]:
        wrong = ~((a > 0.0) & (a < 1.0))
        if wrong.any():
            raise InputError("alpha", "a number in (0, 1)", a[wrong][0], "0.001 is usual")
    return tuple(arrays)


def map_counts(function: Callable[..., float], k: Any, n: Any, *alpha: Any) -> float | FloatArray:
    """Apply a scalar function elementwise to counts, trials and alphas; errors as for ``inputs``."""
    plain = type(k) is type(n) is int and 0 <= k <= n and 1 <= n <= MAX_TRIALS
    if plain and all(type(a) is float and 0.0 < a < 1.0 for a in alpha):  # the usual case, at no cost but its checks
        return function(k, n, *alpha)
    return map_scalars(function, *inputs(k, n, *alpha))


def map_scalars(function: Callable[..., float], *arrays: npt.NDArray[Any]) -> float | FloatArray:
    """Apply a scalar function elementwise to arrays of one shape; return a float for scalars."""
    values = [function(*items) for items in zip(*(array.ravel().tolist() for array in arrays), strict=True)]
    return np.array(values, dtype=np.float64).reshape(arrays[0].shape) if arrays[0].shape else values[0]

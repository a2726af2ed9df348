"""Argument checks, one for each kind of argument, and short forms of values for messages.

Every check takes the argument's name first, and converts the types that it accepts to a single type. Errors read
``name: expected …, got …``; a wrong type raises `InputTypeError`, and a value out of range, or a name that is not among
the choices, raises `InputError`. A bool or a string alone is never a number or an integer. A NumPy scalar counts as a
number, and an array or tensor of one element counts as that element.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from pyrobust.errors import InputError, InputTypeError
from pyrobust.late import numpy as np
from pyrobust.late import torch

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

Numbers: TypeAlias = "Tensor | npt.ArrayLike"
"""A tensor, an array, or a list of numbers, arrays or tensors; ``as_tensor`` converts these."""

WORDS: Final = 1 << 32
"""Image and sample indices, 32-bit words of the noise's counter, are below it; it also limits the number of images."""


NormName: TypeAlias = Literal["linf", "l2", "l1"]
"""The norms of perturbations, by name."""

AttackNormName: TypeAlias = Literal["linf", "l2", "l1", "l0"]
"""The norms of attacks, by name; l0 counts the changed coordinates."""

NormLike: TypeAlias = NormName | str | float
"""A norm as callers may write it: a name in any spelling that ``norm_name`` reads, or the norm's order."""

NORMS: Final[tuple[NormName, ...]] = ("linf", "l2", "l1")
ATTACK_NORMS: Final[tuple[AttackNormName, ...]] = (*NORMS, "l0")
_ORDERS: Final[dict[str, AttackNormName]] = {"inf": "linf", "2": "l2", "1": "l1", "0": "l0"}


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an integer in [least, most].

    >>> integer("seed", 3)
    3
    >>> integer("digits", 0, 1, 17)
    Traceback (most recent call last):
    pyrobust.errors.InputError: digits: expected 1 to 17, got 0
    >>> integer("seed", True)
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: seed: expected an integer, got True
    """
    result = value if type(value) is int else _index(value)
    if result is None:
        raise InputTypeError(name, "an integer", shown(value))
    if (least is not None and result < least) or (most is not None and result > most):
        if most is None:
            expected = f"at least {least}"
        else:
            expected = f"at most {_power(most)}" if least is None else f"{least} to {_power(most)}"
        raise InputError(name, expected, shown(result))
    return result


def count(name: str, value: Any, most: int | None = None) -> int:
    """Return an integer from 1 to ``most``; no upper limit by default.

    >>> count("steps", 10)
    10
    """
    result = integer(name, value, 1)
    if most is not None and result > most:
        raise InputError(name, f"at most {most}", shown(result))
    return result


def number(name: str, value: Any) -> float:
    """Return a number, possibly NaN or infinite, as a float; an integer too large for a float becomes infinite.

    >>> number("sigma", 1)
    1.0
    >>> number("sigma", "1")
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: sigma: expected a number, got '1'
    """
    if type(value) is float:
        return value
    result = _float(value)
    if result is None:
        raise InputTypeError(name, "a number", shown(value))
    return result


def finite(name: str, value: Any) -> float:
    """Return a finite number as a float.

    >>> finite("clip_min", 0)
    0.0
    """
    result = number(name, value)
    if not math.isfinite(result):
        raise InputError(name, "a finite number", result)
    return result


def clip_range(name: str, value: Any) -> tuple[float, float]:
    """Return the ends of a clip range as floats.

    >>> clip_range("clip", (0, 1))
    (0.0, 1.0)
    >>> clip_range("clip", (1, 0))
    Traceback (most recent call last):
    pyrobust.errors.InputError: clip: expected two finite numbers, low < high, got (1, 0)
    """
    pair = isinstance(value, tuple | list) or (isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 1)
    bounds = list(value) if pair else []
    numbers = [bound for bound in map(_float, bounds) if bound is not None]
    if not len(numbers) == len(bounds) == 2:
        raise InputTypeError(name, "two finite numbers, low < high", shown(value))
    low, high = numbers
    if not -math.inf < low < high < math.inf:
        raise InputError(name, "two finite numbers, low < high", shown(value))
    return low, high


def non_negative(name: str, value: Any) -> float:
    """Return a finite number of at least 0 as a float.

    >>> non_negative("epsilon", -0.5)
    Traceback (most recent call last):
    pyrobust.errors.InputError: epsilon: expected a finite number of at least 0, got -0.5
    """
    result = number(name, value)
    if not 0 <= result < math.inf:
        raise InputError(name, "a finite number of at least 0", result)
    return result


def positive(name: str, value: Any) -> float:
    """Return a finite number above 0 as a float.

    >>> positive("sigma", 0)
    Traceback (most recent call last):
    pyrobust.errors.InputError: sigma: expected a finite number above 0, got 0.0
    """
    result = number(name, value)
    if not 0 < result < math.inf:
        raise InputError(name, "a finite number above 0", result)
    return result


def probability(name: str, value: Any, hint: str = "") -> float:
    """Return a number in (0, 1) as a float; the error message ends with the hint, such as "0.001 is usual".

    >>> probability("alpha", 1, "0.001 is usual")
    Traceback (most recent call last):
    pyrobust.errors.InputError: alpha: expected a number in (0, 1), got 1.0; 0.001 is usual
    """
    result = number(name, value)
    if not 0 < result < 1:
        raise InputError(name, "a number in (0, 1)", result, hint)
    return result


def share(name: str, value: Any) -> float:
    """Return a number in [0, 1] as a float.

    >>> share("kappa", 1)
    1.0
    """
    result = number(name, value)
    if not 0 <= result <= 1:
        raise InputError(name, "a number in [0, 1]", result)
    return result


def flag(name: str, value: Any) -> bool:
    """Return True or False; anything but Python's bools is an error.

    >>> flag("sound", 1)
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: sound: expected True or False, got 1
    """
    if not isinstance(value, bool):
        raise InputTypeError(name, "True or False", shown(value))
    return value


def file_path(name: str, value: Any) -> Path:
    """Return the argument as a path; only non-empty strings and ``os.PathLike`` objects name files.

    >>> file_path("out", "run.db")
    PosixPath('run.db')
    >>> file_path("out", 3)
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: out: expected the name of a file, a string or a path, got 3
    """
    text = value if isinstance(value, str) else value.__fspath__() if isinstance(value, os.PathLike) else None
    if not isinstance(text, str):
        raise InputTypeError(name, "the name of a file, a string or a path", shown(value))
    if not text:
        raise InputError(name, "the name of a file", "an empty string")
    return Path(text)


def choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return one of several names.

    >>> choice("semantics", "exact", ("real", "float32"))
    Traceback (most recent call last):
    pyrobust.errors.InputError: semantics: expected one of real, float32, got 'exact'
    """
    if not isinstance(value, str) or value not in choices:
        raise InputError(name, f"one of {', '.join(choices)}", shown(value))
    return value


def norm_name(name: str, value: Any) -> NormName:
    """Return the name "linf", "l2" or "l1" of a norm written as "L2", "l_inf", 2 (to six digits) or ``math.inf``, say.

    >>> [norm_name("norm", value) for value in ("linf", "L_inf", math.inf, np.float32(2), "L1")]
    ['linf', 'linf', 'linf', 'l2', 'l1']
    >>> norm_name("norm", 3)
    Traceback (most recent call last):
    pyrobust.errors.InputError: norm: expected one of linf, l2, l1, got 3
    """
    return _norm_among(name, value, NORMS)


def attack_norm_name(name: str, value: Any, norms: tuple[AttackNormName, ...] = ATTACK_NORMS) -> AttackNormName:
    """Return the norm in ``norms`` that a value names, as read by ``norm_name``; "l0" or 0 names the l0 norm.

    >>> attack_norm_name("norm", "L0"), attack_norm_name("norm", 2, ("l2",))
    ('l0', 'l2')
    >>> attack_norm_name("norm", "l1", ("linf", "l2"))
    Traceback (most recent call last):
    pyrobust.errors.InputError: norm: expected one of linf, l2, got 'l1'
    """
    return _norm_among(name, value, norms)


_Norm = TypeVar("_Norm", bound=str)


def _norm_among(name: str, value: Any, norms: tuple[_Norm, ...]) -> _Norm:
    if isinstance(value, str):
        order = value.lower().removeprefix("l").lstrip("_-")
    else:
        parsed = _float(value)
        order = "" if parsed is None else f"{parsed:g}"
    for norm in norms:
        if _ORDERS.get(order) == norm:
            return norm
    expected = f"one of {', '.join(norms)}" if len(norms) > 1 else norms[0]
    raise InputError(name, expected, shown(value))


def items(name: str, values: Iterable[Any], of: str = "numbers") -> list[Any]:
    """Return the items of a sequence unchanged, and refuse a string; ``of`` names the kind of items in the error.

    >>> items("radii", (0, 0.25))
    [0, 0.25]
    """
    if not isinstance(values, str | bytes):
        with suppress(TypeError):  # not a sequence, or a tensor without dimensions
            return list(values)
    raise InputTypeError(name, f"a sequence of {of}", shown(values))


def numbers(name: str, values: Iterable[Any]) -> list[float]:
    """Return a sequence of numbers, possibly NaN or infinite, as floats.

    >>> numbers("radii", (0, 0.25))
    [0.0, 0.25]
    >>> numbers("radii", "25")
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: radii: expected a sequence of numbers, got '25'
    """
    floats: list[float] = []
    for index, value in enumerate(items(name, values)):
        parsed = _float(value)
        if parsed is None:
            raise InputTypeError(name, "a sequence of numbers", f"{shown(value)} at index {index}")
        floats.append(parsed)
    return floats


def non_negatives(name: str, values: Iterable[Any], *, infinite: bool = False) -> list[float]:
    """Return a sequence of numbers as floats; each is at least 0, and finite unless ``infinite`` is True.

    >>> non_negatives("epsilons", [0, -1])
    Traceback (most recent call last):
    pyrobust.errors.InputError: epsilons: expected finite numbers of at least 0, got -1.0 at index 1
    """
    result = numbers(name, values)
    for index, value in enumerate(result):
        if not 0 <= value <= math.inf or (value == math.inf and not infinite):
            expected = "numbers" if infinite else "finite numbers"
            raise InputError(name, f"{expected} of at least 0", f"{value} at index {index}")
    return result


def array(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return a number or an array of numbers of any shape as a float64 array.

    >>> array("p_lower", [0.5, 0.75])
    array([0.5 , 0.75])
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    with suppress(TypeError, ValueError):  # sequences of different lengths
        entries = np.asarray(values)
        if entries.dtype.kind in "fiu":
            return entries.astype(np.float64)
        if entries.dtype.kind == "O":  # such as fractions, and lists that mix numbers with other things
            floats = [_float(value) for value in entries.flat]
            if None not in floats:
                return np.array(floats, dtype=np.float64).reshape(entries.shape)
    raise InputTypeError(name, "a number or an array of numbers", shown(values))


def radii(
    name: str,
    value: Any,
    examples: int | None = None,
    shape: tuple[int, ...] | None = None,
    *,
    infinite: bool = False,
) -> Tensor:
    """Return one radius, or one for each example or each element, as float64 on the CPU; each is at least 0.

    Args:
        name: name of the argument.
        value: a number, or a sequence, array or tensor [N]; a single radius [1] holds for every example. If ``shape``
            and ``examples`` are given, the value may also have the dimensions of the examples, [N, *shape], or, if an
            example has at least two dimensions, those of a single example; sizes of 1 broadcast. One dimension always
            means [N].
        examples: number of examples N, if known. If it is given, the result is [N], or as ``shape`` says; otherwise it
            is [] or [N].
        shape: shape of one example, to allow one radius per element; the result is then [N] or [N, *shape].
        infinite: whether infinite radii are allowed.

    >>> radii("epsilon", 0.5), radii("epsilon", [0.5], 2)
    (tensor(0.5000, dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    >>> radii("epsilon", torch.ones(3, 1, 1), 2, (3, 4, 4)).shape
    torch.Size([2, 3, 4, 4])
    """
    if examples is not None and isinstance(value, float) and 0 <= value < math.inf:  # the usual case, at no cost
        return torch.full((examples,), value, dtype=torch.float64, device="cpu")
    sizes = "N" if examples is None else examples
    expected = f"a number or a tensor [{sizes}] of numbers"
    if shape is not None:
        expected = f"a number, a tensor [{sizes}], or one that broadcasts to {shape_text((sizes, *shape))}"
    try:
        if isinstance(value, torch.Tensor | np.ndarray | np.generic):
            # device is given, since torch.set_default_device may name another
            entries = torch.as_tensor(value, device="cpu").detach()
            number_like = entries.dtype != torch.bool and not entries.dtype.is_complex
            radius = entries.double() if number_like else None
        elif shape is not None and isinstance(value, list | tuple) and any(isinstance(v, list | tuple) for v in value):
            radius = torch.from_numpy(array(name, value))
        elif isinstance(value, list | tuple):
            radius = torch.tensor(numbers(name, value), dtype=torch.float64, device="cpu")
        else:
            single = _float(value)
            radius = None if single is None else torch.tensor(single, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):  # strings, sequences in sequences, tensors without data
        radius = None
    if radius is None:
        raise InputTypeError(name, expected, kind(value) if isinstance(value, torch.Tensor) else shown(value))
    elements = None if shape is None or examples is None else _of_elements(radius, examples, shape)
    if radius.dim() > 1 and elements is None:
        raise InputError(name, expected, f"shape {shape_text(radius.shape)}")
    wrong = ~(radius >= 0) if infinite else ~(radius.isfinite() & (radius >= 0))
    if bool(wrong.any()):
        plural = "numbers" if radius.dim() else "a number"
        plural = plural if infinite else plural.replace("number", "finite number")
        raise InputError(name, f"{plural} of at least 0", first_wrong(radius, wrong))
    if elements is not None:
        return elements
    if examples is None:
        return radius
    if radius.dim() == 1 and len(radius) not in (1, examples):
        hint = "" if shape is None else f" (radii of elements have the shape {shape_text((1, *shape))})"
        raise InputError(name, f"one radius for each of the {examples} examples{hint}", len(radius))
    return radius.expand(examples).clone()


def _of_elements(radius: Tensor, examples: int, shape: tuple[int, ...]) -> Tensor | None:
    """Return radii per element, [N, *shape], or per example, [N]; None if the shape does not fit."""
    if radius.dim() < 2 or radius.dim() not in (len(shape), 1 + len(shape)):
        return None
    sizes = (1,) * (1 + len(shape) - radius.dim()) + tuple(radius.shape)
    if any(size not in (1, full) for size, full in zip(sizes, (examples, *shape), strict=True)):
        return None
    if radius.numel() == sizes[0]:
        return radius.reshape(-1).expand(examples).clone()
    return radius.reshape(sizes).expand(examples, *shape)


def as_tensor(value: Any, dtype: torch.dtype | None = None) -> Tensor | None:
    """Return a tensor unchanged; convert arrays and lists to a tensor; return None for what cannot be converted.

    A list of Python's numbers becomes a tensor of ``dtype``, by default torch's default dtype. If all its numbers are
    integers, it becomes an integer tensor instead, and if all are bools, a bool tensor. A writable C-contiguous array
    in native byte order shares its memory with the tensor; other arrays are copied.

    >>> as_tensor(np.array([1, 2])), as_tensor([[0.5, 1]]), as_tensor(["a"])
    (tensor([1, 2]), tensor([[0.5000, 1.0000]]), None)
    """
    if isinstance(value, torch.Tensor):
        return value
    listed = isinstance(value, list | tuple | range)
    if not listed and not hasattr(value, "__array__"):  # such as data frames
        return None
    with suppress(TypeError, ValueError, RuntimeError):
        if listed and value and all(isinstance(item, torch.Tensor) for item in value):
            return torch.stack(tuple(value))
        first = value
        while isinstance(first, list | tuple) and first:
            first = first[0]
        values = np.asarray(value)
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        tensor = torch.as_tensor(np.require(values, requirements=["C", "W"]), device="cpu")
        number = listed and tensor.is_floating_point() and not hasattr(first, "dtype")
        return tensor.to(dtype or torch.get_default_dtype()) if number else tensor
    return None


def class_labels(name: str, value: Any, examples: int, classes: int | None = None, *, lowest: int = 0) -> Tensor:
    """Return class labels as int64 [N] on the CPU.

    Args:
        name: name of the argument.
        value: a tensor, an array or a sequence of integers.
        examples: N.
        classes: number of classes, if known; labels are below this number.
        lowest: the lowest label; -1 also admits examples without a class.

    >>> class_labels("y", [3, 1], 2)
    tensor([3, 1])
    """
    bools = isinstance(value, list | tuple) and any(isinstance(item, bool) for item in value)
    labels = None if bools else torch.tensor(value) if type(value) is int else as_tensor(value)
    if labels is None:
        raise InputTypeError(name, "integer labels", shown(value), label_hint(value))
    labels = dense(name, labels.detach())
    integers = not (labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool)
    if not integers and labels.numel():  # an empty list has become a float tensor
        raise InputTypeError(name, "integer labels", labels.dtype)
    if labels.shape != (examples,):
        raise InputError(name, f"shape ({examples},), one label per example", shape_text(labels.shape))
    labels = labels.cpu().long()
    wrong = (labels < lowest) | (labels >= (torch.iinfo(torch.int64).max if classes is None else classes))
    if bool(wrong.any()):
        expected = f"labels of at least {lowest}" if classes is None else f"labels {lowest} to {classes - 1}"
        raise InputError(name, expected, first_wrong(labels, wrong))
    return labels


def label_hint(labels: Any) -> str:
    """Return a hint on how to number labels if some labels are strings, else an empty string.

    >>> label_hint(["cat", "dog"])
    "number the classes in the order of the model's outputs: [classes.index(label) for label in labels]"
    """
    values = labels if isinstance(labels, list | tuple | str) else getattr(labels, "tolist", list)()
    if isinstance(values, str) or (isinstance(values, list | tuple) and any(isinstance(v, str) for v in values)):
        return "number the classes in the order of the model's outputs: [classes.index(label) for label in labels]"
    return ""


def float_tensor(name: str, value: Any, sets: str = "", dtype: torch.dtype | None = None) -> Tensor:
    """Return a dense float tensor unchanged, and convert an array or a list of floats to such a tensor.

    Args:
        name: name of the argument.
        value: a tensor, an array or a list; numbers in a list get ``dtype``, see ``as_tensor``.
        sets: name of a function that takes data sets and loaders; the error message suggests this function if ``value``
            may be a data set or a loader.
        dtype: dtype of numbers in a list.

    >>> float_tensor("x", torch.zeros(2, dtype=torch.uint8))
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: x: expected a float tensor, got torch.uint8; for 8-bit images: x.float() / 255
    >>> float_tensor("x", iter([]), sets="attack_dataset")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: x: expected a tensor, an array or a list, got list_iterator; pass one batch, or...
    """
    if isinstance(value, torch.Tensor):
        tensor = value
    else:
        converted = as_tensor(value, dtype)
        if converted is None:
            got, several = kind(value), hasattr(value, "__iter__") or hasattr(value, "__len__")
            if isinstance(value, np.ndarray):
                got, several = f"an array of {value.dtype}", False
            elif isinstance(value, list | tuple):
                got += " of other things than numbers, or of different lengths"
            several = several and not isinstance(value, str | bytes)
            hint = f"pass one batch, or the data set or loader to {sets}" if several and sets else ""
            raise InputTypeError(name, "a tensor, an array or a list", got, hint)
        tensor = converted
    if not tensor.dtype.is_floating_point:
        hint = f"for 8-bit images: {name}.float() / 255" if tensor.dtype == torch.uint8 else ""
        raise InputTypeError(name, "a float tensor", tensor.dtype, hint)
    return dense(name, tensor)


def box_radii(box: Any, norm: str, shape: Sequence[int]) -> Tensor | None:
    """Return the radii of an example's elements, as float64 in the example's shape; None if ``box`` is None.

    >>> box_radii([0.5, 0.0], "linf", (2,))
    tensor([0.5000, 0.0000], dtype=torch.float64)
    >>> box_radii([0.5, 0.0], "l2", (2,))
    Traceback (most recent call last):
    pyrobust.errors.InputError: box: expected none in norms other than linf, whose balls are no boxes, got one in l2
    """
    if box is None:
        return None
    if norm != "linf":
        raise InputError("box", "none in norms other than linf, whose balls are no boxes", f"one in {norm}")
    radii = torch.as_tensor(array("box", box.detach().cpu() if isinstance(box, torch.Tensor) else box), device="cpu")
    if not radii.dim() or not (radii.isfinite() & (radii >= 0)).all() or not radii.any():
        raise InputError("box", "radii of features: finite, at least 0 and not all 0", shown(box))
    if radii.dim() > len(shape) and len(radii) == 1:  # [1, ...], as attacks and bounds take radii
        radii = radii[0]
    try:
        return radii.double().expand(*shape).clone()
    except RuntimeError:
        shapes = f"the shape {shape_text(shape)} of an example"
        raise InputError("box", f"radii that broadcast to {shapes}", shape_text(radii.shape)) from None


def exact_cast(name: str, x: Tensor, dtype: torch.dtype, holder: str = "the model") -> Tensor:
    """Cast examples for certification to the dtype that ``holder`` takes; refuse values that would be rounded.

    >>> exact_cast("x", torch.tensor([[0.5]]).double(), torch.float32)
    tensor([[0.5000]])
    >>> exact_cast("x", torch.tensor([[0.1]], dtype=torch.float64), torch.float32)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    pyrobust.errors.InputError: x: expected float32 values, which the model takes, got 0.1 at [0, 0]; a certificate...
    """
    cast = x.to(dtype)
    if x.dtype != cast.dtype and x.dtype.itemsize >= cast.dtype.itemsize:
        wrong = (cast.to(x.dtype) != x) & ~x.isnan()
        if bool(wrong.any()):
            short = str(dtype).removeprefix("torch.")
            raise InputError(
                name,
                f"{short} values, which {holder} takes",
                first_wrong(x.detach(), wrong),
                f'a certificate at a rounded x does not cover x: pass x.to({dtype}), x.astype("{short}") of an array, '
                "to certify the rounded x",
            )
    return cast


def dense(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor unchanged; refuse a tensor that is not strided, such as a sparse one, or that has no data."""
    if tensor.layout != torch.strided:
        raise InputTypeError(name, "a dense tensor", tensor.layout)
    if tensor.is_meta:
        raise InputTypeError(name, "a tensor with data", "one on the device meta")
    return tensor


def finite_values(name: str, values: Tensor) -> Tensor:
    """Return a tensor unchanged; refuse NaN and infinities.

    >>> finite_values("x", torch.tensor([[0.5, torch.inf]]))
    Traceback (most recent call last):
    pyrobust.errors.InputError: x: expected finite values, got inf at [0, 1]
    """
    finite = values.isfinite()
    if not bool(finite.all()):
        raise InputError(name, "finite values", first_wrong(values, ~finite))
    return values


def image_indices(indices: Any, examples: int | None = None) -> list[int]:
    """Return the image indices, which select each example's noise; None stands for 0, 1, …, ``examples`` − 1.

    >>> image_indices(None, 3)
    [0, 1, 2]
    """
    if indices is None and examples is not None:
        return list(range(examples))
    values = items(
        "indices", indices.tolist() if isinstance(indices, torch.Tensor | np.ndarray) else indices, "integers"
    )
    result: list[int] = []
    for position, value in enumerate(values):
        index = _index(value)
        if index is None:
            raise InputTypeError("indices", "a sequence of integers", f"{shown(value)} at index {position}")
        if not 0 <= index < WORDS:
            raise InputError("indices", "0 to 2**32 - 1, the noise contract's range", shown(index))
        result.append(index)
    if examples is not None and len(result) != examples:
        raise InputError("indices", f"one for each of the {examples} examples", len(result))
    return result


def is_integer(value: Any, least: int, most: int) -> bool:
    """Whether a value read from JSON is an integer in [least, most].

    >>> is_integer(1, 0, 1), is_integer(True, 0, 1), is_integer(1.0, 0, 1)
    (True, False, False)
    """
    return type(value) is int and least <= value <= most


def is_finite(value: Any) -> bool:
    """Whether a value read from JSON is a finite number.

    >>> is_finite(0.5), is_finite(True), is_finite(10**400)
    (True, False, False)
    """
    result = _float(value) if isinstance(value, int | float) else None
    return result is not None and math.isfinite(result)


def kind(value: object) -> str:
    """Describe an argument for a message: a tensor by its dtype, anything else by its type.

    >>> kind(torch.zeros(2)), kind("1")
    ('torch.float32', 'str')
    """
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__


def first_values(values: Sequence[Any], form: Callable[[Any], str] = repr, limit: int = 5) -> str:
    """Write the first few values, and how many more follow.

    >>> first_values([0.5, "a"]), first_values(range(1, 2001))
    ("0.5, 'a'", '1, 2, 3, 4, 5 and 1,995 more')
    """
    more = f" and {len(values) - limit:,} more" if len(values) > limit else ""
    return ", ".join(map(form, values[:limit])) + more


def first_wrong(values: Tensor | npt.NDArray[Any], wrong: Tensor | npt.NDArray[np.bool_]) -> str:
    """Write the first wrong element of a tensor or an array, and where it is.

    >>> first_wrong(torch.tensor([0.5, torch.nan]), torch.tensor([False, True]))
    'nan at index 1'
    >>> first_wrong(torch.zeros(1, 2), torch.tensor([[False, True]]))
    '0.0 at [0, 1]'
    """
    position = torch.as_tensor(wrong).nonzero()[0].tolist()
    value = values[tuple(position)].item()
    return f"{value} at {position if len(position) > 1 else f'index {position[0]}'}" if position else str(value)


def shape_text(shape: Iterable[int | str]) -> str:
    """Write a shape as text; names may stand in place of sizes.

    >>> shape_text(("B", 1, 28, 28)), shape_text(torch.zeros(4).shape), shape_text(())
    ('(B, 1, 28, 28)', '(4,)', '() of a single number')
    """
    sizes = [str(size) for size in shape]
    if not sizes:
        return "() of a single number"
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def number_text(value: float) -> str:
    """Write a number in six digits, or as a fraction with a denominator of at most 1000 if only the fraction is exact.

    >>> number_text(0.1), number_text(8 / 255), number_text(0.123456789)
    ('0.1', '8/255', '0.123457')
    """
    text = f"{value:g}"
    if not math.isfinite(value) or float(text) == value:
        return text
    fraction = Fraction(value).limit_denominator(1000)
    exact = fraction.numerator / fraction.denominator == value
    return str(fraction) if exact else text


def summary(result: object, **facts: Any) -> str:
    """Write the ``repr`` of a result: its class and all ``facts`` that are not None, without arrays.

    >>> class Bounds: ...
    >>> summary(Bounds(), images=2, sigma=0.25, grid=None)
    'Bounds(images=2, sigma=0.25)'
    """
    shown = ", ".join(f"{name}={value!r}" for name, value in facts.items() if value is not None)
    return f"{type(result).__name__}({shown})"


def _element(value: Any) -> Any:
    """Return the element of an array or tensor of one element, None for one of another size, other values unchanged."""
    if isinstance(value, torch.Tensor):
        return value.detach().item() if value.numel() == 1 else None
    if isinstance(value, np.ndarray | np.generic):
        return value.item() if value.size == 1 else None
    return value


def _index(value: Any) -> int | None:
    with suppress(TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor without data
        element = _element(value)
        return None if isinstance(element, bool) else operator.index(element)
    return None


def _float(value: Any) -> float | None:
    if type(value) is float:
        return value
    try:
        element = value if type(value) is int else _element(value)
        return None if element is None or isinstance(element, bool | str | bytes) else float(element)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        return None


def _power(number: int) -> str:
    """Write the upper end of a range as 2**k or 2**k - 1 if it has this form with k of at least 16, else in digits."""
    for power, suffix in ((number, ""), (number + 1, " - 1")):
        if power >= 1 << 16 and power.bit_count() == 1:
            return f"2**{power.bit_length() - 1}{suffix}"
    return str(number)


def shown(value: Any) -> str:
    """Write a value for a message in at most 200 characters; a huge integer is described by its number of bits."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 600:
        return f"an integer of {value.bit_length()} bits"
    with suppress(ValueError):  # repr of huge integers inside a value
        return f"{value!r:.200}"
    return f"a {type(value).__name__}"

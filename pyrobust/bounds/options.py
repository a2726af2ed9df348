"""Settings shared by all calls of bound propagation, documented and checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyrobust.bounds.methods import CROWN, METHODS
from pyrobust.checks import NormLike, NormName, choice, count, flag, integer, non_negative, norm_name
from pyrobust.clip import ClipRange, checked_clip
from pyrobust.errors import InputError
from pyrobust.keywords import field_names, merge_fields, reject_unknown

if TYPE_CHECKING:
    from typing import TypedDict

    class BoundKeywords(TypedDict, total=False):
        """The fields of ``BoundOptions`` as keyword arguments."""

        norm: NormLike
        method: str | None
        clip: ClipRange | None
        clip_min: Any
        clip_max: Any
        sound: bool
        semantics: str
        memory_limit: int | None
        iterations: int
        time_limit: float | None


LIPSCHITZ = "lipschitz"
CASCADE = "cascade"
CASCADE_METHODS = ("ibp", "crown-ibp", "crown")
SEMANTICS = ("real", "float32")


def method_name(name: str, value: Any, names: Sequence[str] = (*METHODS, LIPSCHITZ)) -> str:
    """Return the method that ``value`` names, in any case and with "-" or "_".

    >>> method_name("method", "CROWN_IBP")
    'crown-ibp'
    """
    return choice(name, spelled_method(value), names)


def spelled_method(value: Any) -> Any:
    """Return a name in the spelling of ``METHODS``; anything but a string is returned unchanged."""
    return value.lower().replace("_", "-") if isinstance(value, str) else value


@dataclasses.dataclass(frozen=True)
class BoundOptions:
    """Settings shared by all calls of bound propagation.

    The methods ``bounds``, ``linear_bounds``, ``intermediate_bounds``, ``margins``, ``certify``, ``certified_radius``
    and ``verify`` of ``BoundedModel``, and the function ``verify_dataset``, take each field as a keyword argument, or
    all fields together as ``options=``. A keyword overrides the field of ``options``.

    Attributes:
        norm: norm of the balls: "linf", "l2" or "l1"; "L2", 2 and ``math.inf``, for example, are understood, too.
        method: "ibp", "crown-ibp", "crown", "alpha-crown" or "lipschitz". Verification also takes "cascade", which runs
            "ibp", "crown-ibp" and "crown" in turn, each on the examples still undecided. Default: "crown"; for
            verification "cascade".
        clip: (low, high), the range of valid input values, low < high; None for no limits. Each end is a number, or a
            tensor or nested sequence that broadcasts to one example and has as many dimensions as the example, such as
            [C, 1, 1] for one range per channel. An element whose two ends are equal is fixed. The keyword arguments
            ``clip_min=low, clip_max=high``, which attacks take, also set ``clip``.
        sound: True for bounds that account for every rounding error. False for plain floating-point bounds, which may
            be wrong in the last digits and prove nothing.
        semantics: network that the bounds hold for. "real" is the network in exact arithmetic. "float32" is its
            deployed forward pass in the model's float type, float32 or float64, with sums in any order; TF32, Winograd
            and FFT are not covered. "float32" is refused for models in 16-bit floats and for models with fused layers,
            such as softmax, layer norm and LSTM. "lipschitz" supports only "real".
        memory_limit: bytes of memory that a call may use in addition to the arguments, the results, the network, and
            the copies of the network's weights that the first call makes. The call is split into as many parts as the
            limit requires; if a single example needs more memory, the error message says how much. The forward passes
            and the attack of ``verify`` are not counted. ``linear_bounds`` and ``intermediate_bounds`` make the input
            sets of the whole batch at once, whatever the limit. Default: a share of the free memory.
        iterations: largest number of "alpha-crown" steps for a row, at least 0.
        time_limit: seconds after which a call ends with the bounds proved so far: rows not yet processed have interval
            bounds, and examples not yet processed have infinite bounds. A step that has begun is completed. The forward
            pass and the attack of ``verify`` run in any case, the attack on all examples that are still undecided.
            Default: no limit.

    Raises:
        InputError: a field has an unknown name or a value out of range.
        InputTypeError: a field has the wrong type.

    >>> options = BoundOptions(norm="l2", clip=(0, 1))
    >>> dataclasses.replace(options, method="ibp")  # doctest: +ELLIPSIS
    BoundOptions(norm='l2', method='ibp', clip=(0.0, 1.0), sound=True, semantics='real', ...)
    """

    norm: NormName = "linf"
    method: str | None = None
    clip: ClipRange | None = None
    sound: bool = True
    semantics: str = "real"
    memory_limit: int | None = None
    iterations: int = 20
    time_limit: float | None = None
    clip_min: dataclasses.InitVar[Any] = None
    clip_max: dataclasses.InitVar[Any] = None

    def __post_init__(self, clip_min: Any, clip_max: Any) -> None:
        object.__setattr__(self, "clip", checked_clip(_joined_clip(self.clip, clip_min, clip_max)))
        object.__setattr__(self, "norm", norm_name("norm", self.norm))
        if self.method is not None:
            method = method_name("method", self.method, (*METHODS, LIPSCHITZ, CASCADE))
            object.__setattr__(self, "method", method)
        flag("sound", self.sound)
        choice("semantics", self.semantics, SEMANTICS)
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", count("memory_limit", self.memory_limit))
        object.__setattr__(self, "iterations", integer("iterations", self.iterations, 0))
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", non_negative("time_limit", self.time_limit))
        if self.method == LIPSCHITZ and self.semantics != "real":
            raise InputError("semantics", '"real" with method "lipschitz"', repr(self.semantics))

    def single_method(self) -> str:
        """Return the method of a call that runs only one method.

        Raises:
            InputError: the method is "cascade".

        >>> BoundOptions().single_method()
        'crown'
        """
        if self.method == CASCADE:
            raise InputError("method", f"one of {', '.join((*METHODS, LIPSCHITZ))}", "'cascade'", "use verify")
        return self.method or CROWN.name

    def methods(self) -> tuple[str, ...]:
        """Return the methods that verification runs in turn.

        >>> BoundOptions().methods(), BoundOptions(method="ibp").methods()
        (('ibp', 'crown-ibp', 'crown'), ('ibp',))
        """
        return CASCADE_METHODS if self.method in (None, CASCADE) else (str(self.method),)


#: The keyword arguments that are fields of ``BoundOptions``.
KEYWORDS = field_names(BoundOptions)


def merge_options(
    call: Callable[..., Any],
    options: BoundOptions | None,
    keywords: Mapping[str, Any],
    default: BoundOptions | None = None,
) -> BoundOptions:
    """Return the options of a call: ``options`` if given, else ``default``, with fields overridden by the keywords.

    >>> def bounds(x, *, options=None, **keywords): ...
    >>> merge_options(bounds, BoundOptions(norm="l2"), {"method": "ibp"}).norm
    'l2'
    >>> merge_options(bounds, None, {"sond": False})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    pyrobust.errors.InputTypeError: bounds: unexpected keyword argument 'sond' (did you mean 'sound'?); expected ...
    """
    reject_unknown(call, keywords, KEYWORDS)
    if "clip_min" in keywords or "clip_max" in keywords:
        keywords = dict(keywords)
        keywords["clip"] = _joined_clip(*(keywords.pop(name, None) for name in ("clip", "clip_min", "clip_max")))
    if options is None and default is None:  # the usual case: the fields are checked once
        return BoundOptions(**keywords)
    return merge_fields("options", options, keywords, default or BoundOptions())


def _joined_clip(clip: Any, clip_min: Any, clip_max: Any) -> Any:
    """Return the clip range from ``clip`` or from ``clip_min`` and ``clip_max``."""
    if clip_min is None and clip_max is None:
        return clip
    if clip is not None:
        raise InputError("clip", "clip, or clip_min and clip_max", f"{clip} and {clip_min}, {clip_max}")
    if clip_min is None or clip_max is None:
        name, other = ("clip_min", "clip_max") if clip_min is None else ("clip_max", "clip_min")
        raise InputError(name, f"a number with {other}", "None")
    return clip_min, clip_max

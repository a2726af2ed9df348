"""Keyword arguments that many functions share; each argument is a field of a settings object."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from pyrobust.errors import InputTypeError

Settings = TypeVar("Settings")


def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a settings class; functions accept these names as keyword arguments.

    >>> field_names(dataclasses.make_dataclass("Both", ["norm", "clip"]))
    ('norm', 'clip')
    """
    return tuple(inspect.signature(kind).parameters)


def reject_unknown(call: Callable[..., Any], keywords: Iterable[str], fields: Iterable[str]) -> None:
    """Raise InputTypeError for the first keyword that a function does not take.

    Args:
        call: the function.
        keywords: keyword arguments that its signature does not name.
        fields: names of the fields of the function's settings, which the function also takes as keywords.
    """
    fields = tuple(fields)
    for name in keywords:
        if name not in fields:
            parameters = inspect.signature(call).parameters.values()
            named = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
            named += [field for field in fields if field not in named]
            similar = difflib.get_close_matches(name, named, n=1)
            hint = f" (did you mean {similar[0]!r}?)" if similar else ""
            raise InputTypeError(
                call.__name__,
                problem=f"unexpected keyword argument {name!r}{hint}",
                hint=f"expected one of {', '.join(named)}",
            )


def merge_fields(argument: str, settings: Settings | None, keywords: Mapping[str, Any], default: Settings) -> Settings:
    """Return the given or the default settings, in which the keywords replace the fields of the same names.

    >>> Both = dataclasses.make_dataclass("Both", ["norm", "clip"])
    >>> merge_fields("options", None, {"clip": 1}, Both("l2", 0))
    Both(norm='l2', clip=1)
    """
    if settings is not None and not isinstance(settings, type(default)):
        raise InputTypeError(argument, type(default).__name__, type(settings).__name__)
    chosen = default if settings is None else settings
    return dataclasses.replace(cast(Any, chosen), **keywords) if keywords else chosen

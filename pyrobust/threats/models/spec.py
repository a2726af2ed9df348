"""Models by name, as the command line takes them."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

from pyrobust.checks import shown
from pyrobust.errors import InputError, InputTypeError
from pyrobust.threats.models.answer import TextModel
from pyrobust.threats.models.endpoint import ChatEndpoint
from pyrobust.threats.models.function import FunctionModel
from pyrobust.threats.models.local import TransformersPipeline
from pyrobust.zoo.user_code import find_object, working_directory_importable


def text_model(spec: str, **settings: Any) -> TextModel:
    """The model named by a spec.

    Args:
        spec: ``endpoint:MODEL@URL`` (``ChatEndpoint``; without ``@URL`` the client's own address);
            ``transformers:FOLDER`` (``TransformersPipeline``); or ``module:name`` or ``FILE.py:name``, user code,
            imported with the working directory on the path: a function (``FunctionModel``), or an object that is a
            ``TextModel`` already.
        settings: arguments of that class; those that are None count as not given.

    Raises:
        InputError: the spec has another form, the object does not exist, or the model does not take a setting.
        InputTypeError: the object is neither a function nor a model.
        MissingExtraError: the package of an endpoint or a pipeline is not installed.

    >>> text_model("textwrap:dedent")("  hello").text
    'hello'
    """
    if not isinstance(spec, str) or ":" not in spec:
        error = InputError if isinstance(spec, str) else InputTypeError
        raise error(f"model: expected endpoint:MODEL@URL, transformers:FOLDER or FILE.py:name, got {shown(spec)}")
    settings = {name: value for name, value in settings.items() if value is not None}
    kind, _, rest = spec.partition(":")
    if kind == "endpoint" and rest:
        model, *address = re.split(r"@(?=https?://)", rest, maxsplit=1)
        return _make(ChatEndpoint, spec, model, settings | ({"base_url": address[0]} if address else {}))
    if kind == "transformers" and rest:
        return _make(TransformersPipeline, spec, rest, settings)
    found = user_object(spec, "model")
    if isinstance(found, TextModel) and not inspect.isclass(found):
        if settings:
            raise InputError(
                f"{', '.join(settings)}: expected nothing, since {spec} is a model with settings of its own"
            )
        return found
    return _make(FunctionModel, spec, found, settings)


def _make(cls: Any, spec: str, model: Any, settings: dict[str, Any]) -> TextModel:
    """Make a model, or name the settings that it does not take."""
    unknown = [name for name in settings if name not in inspect.signature(cls).parameters]
    if unknown:
        raise InputError(f"{', '.join(unknown)}: expected nothing, since {spec} does not take it")
    made: TextModel = cls(model, **settings)
    return made


def user_object(spec: str, argument: str) -> Any:
    """Import the object that ``module:name`` or ``FILE.py:name`` names."""
    file, _, name = spec.rpartition(":")
    if not file.endswith(".py"):
        with working_directory_importable():
            return find_object(spec, argument)
    path = Path(file).resolve()
    if not path.is_file():
        raise InputError(f"{argument}: {spec}: expected a file, got nothing at {path}")
    sys.path.insert(0, str(path.parent))
    try:
        found = find_object(f"{path.stem}:{name}", argument)
        module = sys.modules[path.stem]
        if not os.path.samefile(getattr(module, "__file__", None) or os.devnull, path):
            raise InputError(f"{argument}: {spec}: another module is named {path.stem}; rename the file")
        return found
    finally:
        sys.path.remove(str(path.parent))
        if str(path.parent) not in sys.path:  # last, where it hides nothing: workers import the function from there
            sys.path.append(str(path.parent))

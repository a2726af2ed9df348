"""Serialization of objects that are sent to a worker and back."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

import torch
from torch import Tensor, nn

from pyrobust.errors import InputError, ModelError


def dump(value: Any, pickler: type[pickle.Pickler]) -> bytes:
    """Pickle a value with its tensors on the CPU, because the worker's devices differ from the driver's.

    >>> import torch
    >>> pickle.loads(dump(torch.ones(2), pickle.Pickler))
    tensor([1., 1.])
    """

    # mypy cannot handle a base class that is a variable.
    class OnCPU(pickler):  # type: ignore[misc, valid-type]
        def reducer_override(self, item: Any) -> Any:
            if isinstance(item, nn.Parameter) and item.device.type != "cpu":
                return nn.Parameter, (item.detach().cpu(), item.requires_grad)
            if isinstance(item, Tensor) and item.device.type != "cpu":
                # torch has no type annotations for it.
                return item.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            if isinstance(item, torch.memory_format):
                # By default, it is pickled as a name in the first module found that imports torch, such as a user's.
                return _memory_format, (str(item).removeprefix("torch."),)
            inherited = getattr(super(), "reducer_override", None)
            return NotImplemented if inherited is None else inherited(item)

    buffer = io.BytesIO()
    OnCPU(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _memory_format(name: str) -> torch.memory_format:
    layout: torch.memory_format = getattr(torch, name)
    return layout


def load(payload: bytes, where: str) -> Any:
    """Unpickle a value on a worker; ``where`` is the worker's name, for error messages.

    Raises:
        InputError: the value refers to something that the worker cannot import.

    >>> load(dump([1], pickle.Pickler), "worker 1")
    [1]
    """
    try:
        return pickle.loads(payload)
    except (AttributeError, ImportError) as error:
        raise InputError(
            "executor",
            f"a model, data and functions that {where} can import",
            error,
            "define them in a module in the driver's working folder, or on a path that both have",
        ) from error


def portable_error(error: Exception, where: str) -> Exception:
    """Return an exception that the driver can read, with the worker's traceback as a note from Python 3.11 on.

    An exception that cannot be pickled becomes a ModelError with its type and text.

    >>> portable_error(ValueError("no"), "worker 1")
    ValueError('no')
    """
    text = "".join(traceback.format_exception(error)).rstrip()
    note = f"on {where}:\n{text}"
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is not type(error) or str(copy) != str(error):
            raise TypeError("changed by pickling")
    except Exception:
        error = ModelError(f"model: failed on {where}: {type(error).__name__}: {error}")
    error.__cause__ = error.__context__ = error.__traceback__ = None
    if hasattr(error, "add_note"):  # from Python 3.11 on
        error.add_note(note)
    return error

"""Translation of errors raised by native ops."""

from __future__ import annotations

import pytest
import torch

from pyrobust.errors import InputError
from pyrobust.ops import native


def raised_by(error: BaseException) -> BaseException:
    """Return the exception that reaches the caller when an op raises this error."""

    def op(*args: object) -> None:
        assert args == (1, "two")
        raise error

    try:
        native.call(op, 1, "two")
    except BaseException as seen:
        return seen
    raise AssertionError("nothing was raised")


def test_a_refused_argument_becomes_an_input_error() -> None:
    text = "sample_noise: image: expected rows of counts, 0 to 3, got 7 at 2"
    error = raised_by(RuntimeError(text))
    assert type(error) is InputError
    assert str(error) == text


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA: sample_noise: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("Could not run 'pyrobust::sample_noise' with arguments from the 'XPU' backend"),
        RuntimeError("something else: sample_noise: x"),
        RuntimeError(""),
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        KeyboardInterrupt(),
        TypeError("x"),
    ],
)
def test_a_failure_of_another_kind_stays_unchanged(error: BaseException) -> None:
    assert raised_by(error) is error

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


@pytest.mark.parametrize("op", ["sample_noise", "count_votes"])
def test_a_refused_argument_becomes_an_input_error(op: str) -> None:
    text = f"{op}: image: expected rows of counts, 0 to 3, got 7 at 2"
    error = raised_by(RuntimeError(text))
    assert type(error) is InputError
    assert str(error) == text


@pytest.mark.parametrize(
    "text",
    [
        "CUDA: sample_noise: an illegal memory access was encountered",
        "CUDA: count_votes: too many resources requested for launch",
        "CUDA: sample_noise: a CUDA tensor needs a torch that was built with CUDA",
        "CUDA error: device-side assert triggered",
        "Could not run 'pyrobust::sample_noise' with arguments from the 'XPU' backend",
        "something else: sample_noise: x",
        "",
    ],
)
def test_a_device_failure_stays_unchanged(text: str) -> None:
    error = RuntimeError(text)
    assert raised_by(error) is error


def test_other_exceptions_pass_unchanged() -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), KeyboardInterrupt(), TypeError("x")):
        assert raised_by(error) is error

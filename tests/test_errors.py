"""Errors about arguments: their messages are made of fields, which pickling, copying and renaming keep."""

import copy
import pickle

import pytest
import torch

from pyrobust import errors, ops
from pyrobust.cli.sweep import naming_executor
from pyrobust.errors import InputError, InputTypeError
from pyrobust.ops import native
from pyrobust.workers.payload import portable_error

FIELDS = ("function", "argument", "where", "expected", "got", "hint", "problem")


def fields(error: InputError | InputTypeError) -> dict[str, str]:
    return {name: getattr(error, name) for name in FIELDS if getattr(error, name)}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InputError("x", "a tensor"), "x: expected a tensor"),
        (InputError("x", "a tensor", 3), "x: expected a tensor, got 3"),
        (InputError("x", "a tensor", None), "x: expected a tensor, got None"),
        (InputError("x", "a tensor", 3, "convert it"), "x: expected a tensor, got 3; convert it"),
        (InputError("x", "a tensor", hint="convert it"), "x: expected a tensor; convert it"),
        (InputError("op: x", "a tensor", 3), "op: x: expected a tensor, got 3"),
        (InputError("data", "images", "none", where="digits"), "data: digits: expected images, got none"),
        (
            InputError("--out", problem="cannot be written", hint="name another"),
            "--out: cannot be written; name another",
        ),
        (InputError("no shard found; name a folder"), "no shard found; name a folder"),
        (InputTypeError("x", "a tensor", 3), "x: expected a tensor, got 3"),
    ],
)
def test_the_message_is_made_of_the_fields(error: InputError, message: str) -> None:
    assert str(error) == message
    assert error.args == (message,)
    assert repr(error) == f"{type(error).__name__}({message!r})"


@pytest.mark.parametrize("kind", [InputError, InputTypeError])
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies_keep_the_fields(kind: type[InputError], again: object) -> None:
    error = kind("op: x", "a tensor", 3, "convert it", where="image 1")
    error.argument = "--x"
    result = again(error)  # type: ignore[operator] # one of three functions
    assert type(result) is kind
    assert str(result) == str(error) == "op: --x: image 1: expected a tensor, got 3; convert it"
    assert fields(result) == fields(error)


def test_errors_of_workers_keep_the_fields() -> None:
    error = InputError("device", "cpu or cuda", "'tpu'")
    error.argument = "--device"
    result = portable_error(error, "worker 1")
    assert isinstance(result, InputError)
    assert fields(pickle.loads(pickle.dumps(result))) == fields(error)


def test_renaming_an_argument_keeps_the_rest_of_the_message() -> None:
    error = InputError("train: epsilon", "epsilon: 0 to 1", "epsilon: 2")
    error.function, error.argument = "", "--epsilon"
    assert str(error) == "--epsilon: expected epsilon: 0 to 1, got epsilon: 2"


@pytest.mark.parametrize(("on", "option"), [(None, "--devices"), ("ray", "--on")])
def test_errors_about_the_executor_name_the_option(on: str | None, option: str) -> None:
    with pytest.raises(InputError, match=rf"^{option}: expected a GPU, got executor: none$"), naming_executor(on):
        raise InputError("executor", "a GPU", "executor: none")
    with pytest.raises(InputError, match=r"^x: expected a GPU$"), naming_executor(on):
        raise InputError("x", "a GPU")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_checks_of_the_kernels_have_fields_and_the_value(value: str) -> None:
    v = torch.zeros(3, 4)
    v[1, 2] = float(value)
    with pytest.raises(InputError) as caught:
        ops.project_l1_ball(v, 1.0)
    assert fields(caught.value) == {
        "function": "project_l1_ball",
        "argument": "v",
        "expected": "finite numbers",
        "got": f"{value} in row 1",
    }


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "op: x: expected [B, D], got (3,); add a dimension",
            {"function": "op", "argument": "x", "expected": "[B, D]", "got": "(3,)", "hint": "add a dimension"},
        ),
        ("op: expected a finished network", {"argument": "op", "expected": "a finished network"}),
        ("op: unknown: x", {"argument": "op", "problem": "unknown: x"}),
    ],
)
def test_texts_of_the_kernels_become_fields(message: str, expected: dict[str, str]) -> None:
    error = native._as_input_error(message, ())
    assert str(error) == message
    assert fields(error) == expected


def test_a_table_of_grid_noise_names_the_op_that_needs_it() -> None:
    k = torch.zeros(1, 2, 2, dtype=torch.int32)
    with pytest.raises(InputTypeError, match=r"^sample_grid_noise: step: expected a Fraction") as caught:
        ops.sample_grid_noise(k, [(0, 0, 0, 1)], sigma=0.5, step=0.25)  # type: ignore[arg-type]  # a wrong type
    assert caught.value.function == "sample_grid_noise"


def test_a_row_dependence_keeps_its_problem() -> None:
    error = errors.RowDependenceError("model: mixes rows", "Nothing can be certified otherwise")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "model: mixes rows. Nothing can be certified otherwise"
    assert again.problem == "model: mixes rows"

"""Options that are declared with kinds of runs and with the settings of a sweep."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pyrobust.bounds import BoundOptions
from pyrobust.cli.options import value_of
from pyrobust.evaluation import SweepSettings, certify_dataset, predict_dataset, verify_dataset
from pyrobust.option import Option
from pyrobust.runs.kinds import KINDS
from pyrobust.runs.kinds.certify import Certify, Sequential
from pyrobust.runs.kinds.predict import Predict
from pyrobust.runs.kinds.verify import Verify
from pyrobust.runs.settings import OPTIONS


def test_every_setting_of_a_sweep_is_offered_with_its_default() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(SweepSettings)}
    offered = {"max_images" if name == "max" else name: option.default for name, option in OPTIONS.items()}
    assert fields.keys() - offered.keys() == {"model_name", "executor", "progress"}
    assert offered.keys() - fields.keys() == {"on", "devices", "device"}  # the executor
    assert {name: offered[name] for name in fields.keys() & offered.keys()} == {
        name: fields[name] for name in fields.keys() & offered.keys()
    }


@pytest.mark.parametrize(
    ("options", "function", "names"),
    [
        (Certify.options, certify_dataset, {"n0", "n", "alpha", "method"}),
        (Sequential.options, certify_dataset, {"radii", "hybrid", "two_class"}),
        (Predict.options, predict_dataset, {"n", "alpha"}),
        (Verify.options, verify_dataset, {"epsilons", "attack", "seed"}),
    ],
)
def test_defaults_are_those_of_the_function(
    options: dict[str, Option], function: Callable[..., Any], names: set[str]
) -> None:
    parameters = inspect.signature(function).parameters
    for name in names:
        assert options[name].default == parameters[name].default, name


def test_defaults_of_bounds_are_those_of_the_options_object() -> None:
    default = BoundOptions(clip=(0.0, 1.0))
    for name in ("norm", "clip", "semantics"):
        option = Verify.options[name]
        assert value_of(name, option, option.default) == getattr(default, name), name


@pytest.mark.parametrize("layout", KINDS)
def test_choices_and_defaults_are_valid_parameters(layout: str) -> None:
    checked = 0
    for name, parameter in KINDS[layout].parameters.items():
        option = parameter.option
        if option is None:
            continue
        values = list(option.choices)
        if option.form in ("integer", "count", "real", "flag") and option.default is not None:
            values.append(option.default)
        for value in values:
            assert parameter.valid(value) or (layout, value) == ("sequential", "fixed"), (name, value)
            checked += 1
    assert checked

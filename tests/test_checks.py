"""Argument checks, and lists in messages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pyrobust
from pyrobust import checks, zoo
from pyrobust.checks import (
    array,
    choice,
    class_labels,
    clip_range,
    count,
    file_path,
    finite,
    finite_values,
    first_values,
    flag,
    float_tensor,
    image_indices,
    integer,
    is_finite,
    is_integer,
    non_negative,
    non_negatives,
    number,
    number_text,
    numbers,
    positive,
    probability,
    radii,
    shape_text,
    share,
)
from pyrobust.compat import torchattacks
from pyrobust.errors import InputError, InputTypeError, StoreError
from pyrobust.evaluation import (
    Run,
    attack_dataset,
    certify_dataset,
    merge_runs,
    predict_dataset,
    read_certification_log,
    read_log,
    verify_dataset,
    write_log,
)
from pyrobust.report import plot_certified_accuracy, plot_survival
from pyrobust.report.caption import describe_run
from pyrobust.smoothing import pilot_probabilities, plan
from pyrobust.smoothing.radius import two_class_radius
from pyrobust.smoothing.sequential import CertificationRule

INTEGERS: list[Any] = [3, np.int8(3), np.uint64(3), np.array(3), torch.tensor(3), torch.tensor([3], dtype=torch.uint8)]
NO_INTEGERS: list[Any] = [
    *(True, np.bool_(True), np.array(True), torch.tensor(True), 3.0, np.float64(3), torch.tensor(3.0), math.nan),
    *("3", np.str_("3"), b"3", None, [3], torch.tensor([3, 3]), torch.tensor(3, device="meta")),
]
NUMBERS: list[Any] = [0.5, Fraction(1, 2), Decimal("0.5"), np.float32(0.5), np.array([0.5]), torch.tensor(0.5)]
NO_NUMBERS: list[Any] = [
    *(True, np.bool_(True), np.array(True), torch.tensor(True), "0.5", np.str_("0.5"), np.array("0.5"), b"0.5"),
    *(np.array("0.5", dtype=object), None, 0.5j, torch.tensor(0.5j), [0.5], np.array([0.5, 0.5]), torch.tensor([])),
    torch.tensor(0.5, device="meta"),
]
HUGE = 10**5000


@pytest.mark.parametrize("value", INTEGERS, ids=repr)
def test_integers(value: Any) -> None:
    for check in (integer, count):
        checked = check("n", value)
        assert checked == 3
        assert type(checked) is int


@pytest.mark.parametrize("value", NO_INTEGERS, ids=lambda value: f"{type(value).__name__} {value}")
def test_values_that_are_not_integers(value: Any) -> None:
    for check in (integer, count):
        with pytest.raises(InputTypeError, match=r"^n: expected an integer, got "):
            check("n", value)


def test_ranges_of_integers() -> None:
    assert integer("seed", 2**64 - 1, 0, 2**64 - 1) == 2**64 - 1
    assert integer("seed", -HUGE) == -HUGE
    for check, match in (
        (lambda: integer("seed", -1, 0, 2**64 - 1), r"^seed: expected 0 to 2\*\*64 - 1, got -1$"),
        (lambda: integer("seed", np.int64(-1), 0), r"^seed: expected at least 0, got -1$"),
        (lambda: integer("digits", 18, 1, 17), r"^digits: expected 1 to 17, got 18$"),
        (lambda: integer("bits", 108, most=107), r"^bits: expected at most 107, got 108$"),
        (lambda: count("steps", 0), r"^steps: expected at least 1, got 0$"),
        (lambda: count("skip", 2**40, 2**32), r"^skip: expected at most 4294967296, got 1099511627776$"),
        (lambda: count("skip", HUGE, 2**32), r"^skip: expected at most 4294967296, got an integer of 16610 bits$"),
    ):
        with pytest.raises(InputError, match=match):
            check()


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_single_numbers(value: Any) -> None:
    for check in (number, finite, non_negative, positive, probability, share):
        checked = check("x", value)
        assert checked == 0.5
        assert type(checked) is float


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: f"{type(value).__name__} {value}")
def test_values_that_are_not_numbers(value: Any) -> None:
    for check in (number, finite, non_negative, positive, probability, share):
        with pytest.raises(InputTypeError, match=r"^x: expected a number, got "):
            check("x", value)


def test_infinite_numbers_and_nan_are_numbers_but_not_finite() -> None:
    assert math.isnan(number("x", math.nan))
    assert number("x", HUGE) == math.inf
    assert number("x", -HUGE) == -math.inf
    assert numbers("x", [HUGE]) == [math.inf]
    for value in (math.nan, math.inf, -math.inf, HUGE, np.float32("nan"), torch.tensor(math.inf)):
        for check in (finite, non_negative, positive, probability, share):
            with pytest.raises(InputError, match=r"^x: expected a .*number.*, got (nan|-?inf)$"):
                check("x", value)


@pytest.mark.parametrize(
    ("check", "inside", "outside"),
    [
        (non_negative, (0, 5e-324, 1e308), (-5e-324, -1)),
        (positive, (5e-324, 1e308), (0, -0.0, -1)),
        (probability, (5e-324, 1 - 2**-53), (0, 1, 2, -1)),
        (share, (0, 1), (-5e-324, 1.1)),
    ],
)
def test_ranges_of_numbers(check: Callable[[str, Any], float], inside: Any, outside: Any) -> None:
    for value in inside:
        assert check("x", value) == value
    for value in outside:
        with pytest.raises(InputError, match=rf"^x: expected .*, got {re.escape(str(float(value)))}$"):
            check("x", value)


def test_flags() -> None:
    assert flag("sound", False) is False
    for value in (0, 1, None, "True", np.bool_(True), torch.tensor(True)):
        with pytest.raises(InputTypeError, match=r"^sound: expected True or False, got "):
            flag("sound", value)


def test_sequences_of_radii_are_finite_and_at_least_zero() -> None:
    assert non_negatives("radii", (0, np.float32(0.25))) == [0.0, 0.25]
    for wrong in (-0.1, math.nan, math.inf, -math.inf, HUGE):
        with pytest.raises(InputError, match=r"^radii: expected finite numbers of at least 0, got "):
            non_negatives("radii", [0.5, wrong])
    assert non_negatives("radii", [0.5, HUGE], infinite=True) == [0.5, math.inf]
    for wrong in (-0.1, math.nan, -math.inf):
        with pytest.raises(InputError, match=r"^radii: expected numbers of at least 0, got "):
            non_negatives("radii", [0.5, wrong], infinite=True)


def test_arrays() -> None:
    assert array("p", [[0, 0.5]]).tolist() == [[0.0, 0.5]]
    assert array("p", [Fraction(1, 2), 0.5]).dtype == np.float64
    assert array("p", torch.tensor(0.5)).shape == ()
    for wrong in ("0.5", ["0.5"], [0.5, "0.5"], [True], [Fraction(1, 2), True], [1j], [[0.5], [0.5, 0.5]], None):
        with pytest.raises(InputTypeError, match=r"^p: expected a number or an array of numbers, got "):
            array("p", wrong)


def test_a_radius_or_one_for_each_example() -> None:
    for single in (0.1, np.float64(0.1), np.array(0.1), torch.tensor(0.1, dtype=torch.float64)):
        assert radii("epsilon", single).item() == 0.1
        assert radii("epsilon", single, 3).tolist() == [0.1] * 3
    for several in ([0.1, 0], (0.1, 0), np.array([0.1, 0]), torch.tensor([0.1, 0], dtype=torch.float64)):
        assert radii("epsilon", several).tolist() == radii("epsilon", several, 2).tolist() == [0.1, 0.0]
        with pytest.raises(InputError, match=r"^epsilon: expected one radius for each of the 3 examples, got 2$"):
            radii("epsilon", several, 3)
    assert radii("epsilon", [0.1], 2).tolist() == [0.1, 0.1]
    for wrong in (-0.1, math.nan, math.inf, HUGE, [0.1, -0.1], torch.tensor([math.nan])):
        with pytest.raises(InputError, match=r"^epsilon: expected (a )?finite numbers? of at least 0, got "):
            radii("epsilon", wrong)
    for wrong in (True, "0.1", None, [True], ["0.1"], np.array([True]), torch.tensor(True), torch.tensor(1j), object()):
        with pytest.raises(InputTypeError, match=r"^epsilon: expected (a|a sequence of) number"):
            radii("epsilon", wrong)
    with pytest.raises(InputError, match=r"^epsilon: expected a number or a tensor .*, got shape \(1, 2\)$"):
        radii("epsilon", torch.zeros(1, 2))


def test_class_labels() -> None:
    for labels in ([2, 0], (2, 0), np.array([2, 0], dtype=np.uint16), torch.tensor([2, 0], dtype=torch.int8)):
        checked = class_labels("y", labels, 2, 3)
        assert checked.tolist() == [2, 0]
        assert checked.dtype == torch.int64
    assert class_labels("y", [], 0).tolist() == []
    of_tensors = torch.tensor([True]), torch.tensor([0.0])
    for wrong in ([0.0], [True], [True, 1], ["0"], "0", None, *of_tensors, [1j], [[0], 1]):
        with pytest.raises(InputTypeError, match=r"^y: expected integer labels, got "):
            class_labels("y", wrong, 1)
    with pytest.raises(InputTypeError, match=r"^y: expected a tensor with data, got one on the device meta$"):
        class_labels("y", torch.tensor([0], device="meta"), 1)
    with pytest.raises(InputError, match=r"^y: expected shape \(2,\), one label per example, got \(1,\)$"):
        class_labels("y", [0], 2)
    with pytest.raises(InputError, match=r"^y: expected labels of at least 0, got -1 at index 0$"):
        class_labels("y", [-1], 1)
    for wrong in (-1, 3):
        with pytest.raises(InputError, match=rf"^y: expected labels 0 to 2, got {wrong} at index 1$"):
            class_labels("y", [2, wrong], 2, 3)


def test_image_indices() -> None:
    assert image_indices(None, 2) == [0, 1]
    for indices in ([7, 2**32 - 1], np.array([7, 2**32 - 1]), torch.tensor([7, 2**32 - 1]), range(7, 2**32, 2**32 - 8)):
        checked = image_indices(indices, 2)
        assert checked == [7, 2**32 - 1]
        assert all(type(index) is int for index in checked)
    for wrong in ([True], [0.0], ["0"], torch.tensor([True]), torch.tensor([0.0]), [[0]]):
        with pytest.raises(InputTypeError, match=r"^indices: expected a sequence of integers, got .* at index 0$"):
            image_indices(wrong, 1)
    for wrong in ("0", 0, torch.tensor(0)):
        with pytest.raises(InputTypeError, match=r"^indices: expected a sequence of integers, got "):
            image_indices(wrong, 1)
    with pytest.raises(InputError, match=r"^indices: expected one for each of the 2 examples, got 1$"):
        image_indices([0], 2)
    for wrong in (-1, 2**32, HUGE):
        with pytest.raises(InputError, match=r"^indices: expected 0 to 2\*\*32 - 1, the noise contract's range, got "):
            image_indices([wrong], 1)


def test_values_read_from_json() -> None:
    assert is_integer(2**64 - 1, 0, 2**64 - 1)
    assert not any(is_integer(value, 0, 9) for value in (True, 1.0, "1", None, -1, 10, [1]))
    assert is_finite(1)
    assert not any(is_finite(value) for value in (True, "1", None, math.nan, math.inf, HUGE, [1.0]))


@pytest.mark.parametrize(
    "values", [(0, 0.25), [np.float32(0), np.float64(0.25)], np.array([0, 0.25]), torch.tensor([0, 0.25])]
)
def test_sequences_of_numbers(values: Any) -> None:
    checked = numbers("radii", values)
    assert checked == [0.0, 0.25]
    assert all(type(value) is float for value in checked)


@pytest.mark.parametrize(
    "values", ["25", "", b"25", ["0.25"], [0.1, "0.25"], np.array(["0.25"]), 0.25, None, [None], [[0.1, 0.2]], [True]]
)
def test_values_that_are_not_sequences_of_numbers(values: Any) -> None:
    with pytest.raises(InputTypeError, match=r"^radii: expected a sequence of numbers, got "):
        numbers("radii", values)


def test_messages_list_the_first_few_values() -> None:
    assert first_values([]) == ""
    assert first_values(range(5)) == "0, 1, 2, 3, 4"
    assert first_values(range(6)) == "0, 1, 2, 3, 4 and 1 more"
    assert first_values(range(1, 2001)).endswith(" and 1,995 more")


_NET, _DATA = zoo.load_model("zoo:digits-smooth-0.25"), zoo.load_data("digits")
_X, _Y = _DATA.x[:2], _DATA.y[:2]
_SMOOTHER = pyrobust.RandomizedSmoothing(_NET, 10, 0.25)
TAKERS: dict[str, Callable[[Any], object]] = {
    "radii, certify_batch": lambda v: _SMOOTHER.certify_batch(_X, n=10, radii=v),
    "radii, sequential": lambda v: _SMOOTHER.certify_batch(_X, n=10, radii=v, method="sequential"),
    "radii, rule": lambda v: CertificationRule(v, 3, 0.5, "gaussian", "l2", 100, 0.001),
    "radii, dataset": lambda v: pyrobust.certify_dataset(_SMOOTHER, _DATA, n=10, radii=v, method="sequential"),
    "radii, compute": lambda v: pyrobust.compute_certified_accuracy(_SMOOTHER, _X, _Y, radii=v, n=10),
    "radii, run": lambda v: pyrobust.certify_dataset(_SMOOTHER, _DATA, n=10, max_images=1).certified_accuracy(v),
    "radii, metric": lambda v: pyrobust.certified_accuracy(np.ones(3), np.ones(3, dtype=bool), v),
    "radii, plan": lambda v: plan([0.9], 0.25, v),
    "p, plan": lambda v: plan(v, 0.25, [0.1]),
    "p_lower": lambda v: pyrobust.certified_radius(v, 0.25),
    "p_a_lower": lambda v: two_class_radius(v, 0.1, 0.25),
    "p_b_upper": lambda v: two_class_radius(0.9, v, 0.25),
    "epsilons, curve": lambda v: pyrobust.robustness_curve(pyrobust.FGSM, _NET, _X, _Y, v),
    "epsilons, dictionary": lambda v: pyrobust.compute_robustness_curve(pyrobust.FGSM, _NET, _X, _Y, v),
    "epsilons, verify": lambda v: pyrobust.verify_dataset(_NET, _DATA, epsilons=v, max_images=1),
    "clip, verify": lambda v: pyrobust.verify_dataset(_NET, _DATA, epsilons=0.1, clip=v, max_images=1),
    "clip, bounds": lambda v: pyrobust.BoundedModel(_NET, _X).bounds(_X, 0.1, clip=v),
    "normalize": lambda v: pyrobust.RandomizedSmoothing(_NET, 10, 0.25, normalize=v),
    "normalize, mean and std": lambda v: pyrobust.RandomizedSmoothing(_NET, 10, 0.25, normalize=(v, v)),
    "mean": lambda v: torchattacks.PGD(_NET).set_normalization_used(v, v),
    "indices": lambda v: _SMOOTHER.certify_batch(_X, n=10, indices=v),
    "q": lambda v: pyrobust.survival_curve(np.arange(5), 10, np.ones(5, dtype=bool)).quantiles(v),
}


@pytest.mark.parametrize("value", ["12", "0.25"])
@pytest.mark.parametrize("taker", TAKERS)
def test_every_argument_refuses_a_string_for_numbers(taker: str, value: Any) -> None:
    with pytest.raises(InputTypeError, match=rf"^{taker.split(',')[0]}: expected "):
        TAKERS[taker](value)


def test_messages_do_not_list_thousands_of_radii() -> None:
    many = np.linspace(0, 1, 2000).tolist()
    with pytest.raises(InputError, match=r"at most 1024 finite numbers, got 2000: .* and 1,995 more$") as error:
        _SMOOTHER.certify_batch(_X, n=10, radii=many, method="sequential")
    assert len(str(error.value)) < 200
    with pytest.raises(InputError, match=r"epsilons: expected positive numbers, .* and 1,995 more$"):
        pyrobust.verify_dataset(_NET, _DATA, epsilons=many, max_images=1)
    with pytest.raises(InputError, match=r"^n: expected .* and 1,995 more$"):
        pilot_probabilities([1, 2], [5] * 2000)


def test_differing_runs_name_the_first_radius_that_differs(tmp_path: Path) -> None:
    radii = [i / 1000 for i in range(200)]

    def certify(radii: list[float]) -> pyrobust.Run:
        return pyrobust.certify_dataset(
            _SMOOTHER, _DATA, n=10, max_images=1, method="sequential", radii=radii, out=tmp_path / "run.db"
        )

    assert "radius 0, 0.001, 0.002, " in describe_run(certify(radii))[0]
    assert "0.011 and 188 more" in describe_run(Run(tmp_path / "run.db"))[0]
    with pytest.raises(StoreError, match=r"radii: 200 stored, 199 given; first difference at number 200") as error:
        certify(radii[:-1])
    assert len(str(error.value)) < 400


def test_epsilons_may_come_as_an_array() -> None:
    for epsilons in (np.array([0.02, 0.01]), torch.tensor([0.02, 0.01], dtype=torch.float64), np.float64(0.01), 0.01):
        run = pyrobust.verify_dataset(_NET, _DATA, epsilons=epsilons, max_images=1, method="ibp")
        assert run.parameters["epsilons"][0] == 0.01


class _Name:
    """A path whose name is not a string."""

    def __fspath__(self) -> bytes:
        return b"run.db"


@pytest.mark.parametrize("value", [3, 1.5, True, None, b"run.db", _Name(), ["run.db"], object()])
def test_file_names(value: Any) -> None:
    assert file_path("out", "run.db") == file_path("out", Path("run.db")) == Path("run.db")
    with pytest.raises(InputTypeError, match=r"^out: expected the name of a file, a string or a path, got "):
        file_path("out", value)
    with pytest.raises(InputError, match=r"^out: expected the name of a file, got an empty string$"):
        file_path("out", "")


def test_every_function_names_its_file() -> None:
    few = {"max_images": 1, "out": 3}
    run = certify_dataset(_SMOOTHER, _DATA, n=10, max_images=1)
    calls: dict[str, list[Callable[[], object]]] = {
        "out": [
            lambda: certify_dataset(_SMOOTHER, _DATA, n=10, **few),
            lambda: predict_dataset(_SMOOTHER, _DATA, n=10, **few),
            lambda: attack_dataset(pyrobust.FGSM(_NET, 0.1), _DATA, **few),
            lambda: verify_dataset(_NET, _DATA, epsilons=[0.1], **few),
        ],
        "path": [
            lambda: write_log(run, 3),
            lambda: read_log(3),
            lambda: read_certification_log(3),
            lambda: plot_certified_accuracy(run, 3),
            lambda: plot_survival(run, 3),
        ],
        "source": [lambda: Run(3), lambda: merge_runs([3])],
        "weights": [lambda: zoo.load_model("zoo:digits-smooth-0.25", 3)],
    }
    for name, functions in calls.items():
        for function in functions:
            with pytest.raises(InputTypeError, match=f"^{name}: expected the name of a file"):
                function()
    for paths in (3, "run.db", Path("run.db")):
        with pytest.raises(InputTypeError, match="paths: expected a list of run files"):
            merge_runs(paths)
    for progress in ("yes", 1, None):
        with pytest.raises(InputTypeError, match="progress: expected True or False"):
            certify_dataset(_SMOOTHER, _DATA, n=10, max_images=1, progress=progress)


def test_sound_is_a_flag_everywhere() -> None:
    x, y = torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)
    bounded = pyrobust.BoundedModel(torch.nn.Linear(4, 3).eval(), x)
    calls: list[Callable[[Any], object]] = [
        lambda sound: pyrobust.BoundOptions(sound=sound),
        lambda sound: bounded.bounds(x, 0.1, sound=sound),
        lambda sound: bounded.margins(x, y, 0.1, sound=sound),
        lambda sound: bounded.certify(x, y, 0.1, sound=sound),
        lambda sound: bounded.verify(x, y, 0.1, sound=sound),
        lambda sound: bounded.certified_radius(x, y, sound=sound),
    ]
    for call in calls:
        for sound in ("yes", "False", 0, 1, None, np.bool_(True)):
            with pytest.raises(InputTypeError, match=r"^sound: expected True or False, got "):
                call(sound)


def test_clip_ranges() -> None:
    for ends in ((0, 1), [0.0, 1.0], np.array([0, 1]), torch.tensor([0.0, 1.0])):
        assert clip_range("clip", ends) == (0.0, 1.0)
    for wrong in ((1, 0), (0.5, 0.5), (math.nan, 1), (0, math.inf), (-math.inf, 1), (0, HUGE)):
        with pytest.raises(InputError, match=r"^clip: expected two finite numbers, low < high, got "):
            clip_range("clip", wrong)
    for wrong in ("01", b"01", 3, None, (0,), (0, 1, 2), ("0", "1"), (False, True), {0, 1}, [[0, 1]], torch.ones(1, 2)):
        with pytest.raises(InputTypeError, match=r"^clip: expected two finite numbers, low < high, got "):
            clip_range("clip", wrong)


def test_messages_name_the_first_wrong_element() -> None:
    x = torch.zeros(3, 1, 2, 2)
    x[2, 0, 1, 0] = math.nan
    for value, call in (
        (r"expected finite values, got nan at \[2, 0, 1, 0\]$", lambda: finite_values("x", x)),
        ("expected finite values, got -inf at index 1$", lambda: finite_values("x", torch.tensor([0, -math.inf]))),
        ("expected finite values, got inf$", lambda: finite_values("x", torch.tensor(math.inf))),
        ("expected finite numbers of at least 0, got nan at index 1$", lambda: radii("x", [0, math.nan])),
        ("expected finite numbers of at least 0, got nan at index 1$", lambda: non_negatives("x", [0, math.nan])),
        ("expected labels 0 to 9, got 99 at index 2$", lambda: class_labels("x", [0, 1, 99, 100], 4, 10)),
    ):
        with pytest.raises(InputError, match=f"^x: {value}"):
            call()


def test_float_tensors() -> None:
    assert float_tensor("x", torch.zeros(2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    for wrong, message in (
        ("0.5", "expected a tensor, an array or a list, got str$"),
        (torch.zeros(1, dtype=torch.uint8), r"expected a float tensor, got torch.uint8; for 8-bit images: x.float"),
        (torch.zeros(1, dtype=torch.complex64), "expected a float tensor, got torch.complex64$"),
        (torch.eye(2).to_sparse(), "expected a dense tensor, got torch.sparse_coo$"),
        (torch.zeros(1, device="meta"), "expected a tensor with data, got one on the device meta$"),
    ):
        with pytest.raises(InputTypeError, match=f"^x: {message}"):
            float_tensor("x", wrong)


def test_choices() -> None:
    assert choice("norm", "l2", ("l1", "l2")) == "l2"
    for wrong in ("L2", "", None, 2, ["l2"], b"l2", HUGE):
        with pytest.raises(InputError, match=r"^norm: expected one of l1, l2, got "):
            choice("norm", wrong, ("l1", "l2"))


def test_shapes_are_written_without_quotes() -> None:
    assert shape_text(("B", 1, 28, 28)) == "(B, 1, 28, 28)"
    assert shape_text(torch.zeros(2, 3).shape) == "(2, 3)"
    assert shape_text((4,)) == "(4,)"


def test_numbers_are_written_as_fractions_where_digits_would_lose_them() -> None:
    values = 1 / 255, 8 / 255, 0.1, 3.0, 1 / 3, 2e-7, 5e-324, 0.1 + 0.2, math.inf, math.nan
    texts = "1/255", "8/255", "0.1", "3", "1/3", "2e-07", "4.94066e-324", "0.3", "inf", "nan"
    assert tuple(map(number_text, values)) == texts


def test_casts_between_formats_of_16_bits_are_exact() -> None:
    for values, dtype in (([0.1], torch.float16), ([1e6], torch.bfloat16)):
        x, other = torch.tensor([values], dtype=dtype), {torch.float16, torch.bfloat16} - {dtype}
        with pytest.raises(InputError, match="x: expected"):
            checks.exact_cast("x", x, other.pop())
    assert checks.exact_cast("x", torch.tensor([[0.5]]).half(), torch.bfloat16).dtype == torch.bfloat16


def test_tensors_with_gradients_are_arrays() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert checks.array("x", torch.ones(2, dtype=dtype, requires_grad=True)).tolist() == [1.0, 1.0]

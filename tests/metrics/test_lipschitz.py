"""Certificate metrics: values by hand, equal to deel-lip's, and labels in every form."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import pyrobust
from pyrobust.compat import deel_lip
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics import binary_margins, categorical_margins, lipschitz

LOGITS = torch.tensor([[2.5, -1.0, 0.25], [0.5, 1.75, 1.25], [-0.5, 3.0, 2.875], [1.0, 1.0, -4.0]])
LABELS = torch.tensor([0, 2, 1, 0])
MARGINS = [2.25, -0.5, 0.125, 0.0]
BINARY, SIDES = torch.tensor([[1.5], [-0.75], [0.125], [-2.0]]), torch.tensor([1, 1, 0, 0])
BINARY_MARGINS = [1.5, -0.75, -0.125, 2.0]

# (class, options, values of deel-lip 1.5.0 on the data above without reduction). 0.125 / 2 and 1.5 / 1 do not exceed
# epsilon.
CASES: list[tuple[str, dict[str, Any], list[float]]] = [
    ("CategoricalProvableRobustAccuracy", {"epsilon": 0.0625}, [1, 0, 0, 0]),
    ("CategoricalProvableRobustAccuracy", {"epsilon": 0.0625, "disjoint_neurons": False}, [1, 0, 1, 0]),
    ("CategoricalProvableRobustAccuracy", {"epsilon": 0.0625, "lip_const": 0.5}, [1, 0, 1, 0]),
    ("CategoricalProvableAvgRobustness", {}, [1.125, 0, 0.0625, 0]),
    ("CategoricalProvableAvgRobustness", {"lip_const": 0.5, "negative_robustness": True}, [2.25, -0.5, 0.125, 0]),
    (
        "CategoricalProvableAvgRobustness",
        {"disjoint_neurons": False, "negative_robustness": True},
        [1.5909901857376099, -0.3535533845424652, 0.0883883461356163, 0],
    ),
    ("BinaryProvableRobustAccuracy", {"epsilon": 1.5}, [0, 0, 0, 1]),
    ("BinaryProvableRobustAccuracy", {"epsilon": 1.5, "lip_const": 0.5}, [1, 0, 0, 1]),
    ("BinaryProvableAvgRobustness", {}, [1.5, 0, 0, 2]),
    ("BinaryProvableAvgRobustness", {"lip_const": 0.5, "negative_robustness": True}, [3, -1.5, -0.25, 4]),
]


def rows(labels: Tensor, low: int) -> Tensor:
    return torch.where(torch.nn.functional.one_hot(labels, 3) == 1, 1, low)


@pytest.mark.parametrize(("name", "options", "expected"), CASES)
def test_values_match_deel_lip(name: str, options: dict[str, Any], expected: list[float]) -> None:
    logits, labels = (BINARY, SIDES) if name.startswith("Binary") else (LOGITS, LABELS)
    result = getattr(lipschitz, name)(**options, reduction="none")(logits, labels)
    assert result.dtype == torch.float64
    assert result.tolist() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(getattr(deel_lip, name)(**options, reduction="none")(labels, logits), result)
    assert getattr(pyrobust, name) is getattr(lipschitz, name)


def test_labels_in_every_form() -> None:
    for labels in (LABELS, LABELS.int(), rows(LABELS, 0), rows(LABELS, -1), rows(LABELS, 0).bool()):
        assert categorical_margins(LOGITS, labels).tolist() == MARGINS
        assert categorical_margins(LOGITS.half(), labels).tolist() == MARGINS
    assert categorical_margins(LOGITS, rows(LABELS, -1).double()).tolist() == MARGINS
    read_only = LOGITS.numpy().copy()
    read_only.flags.writeable = False
    assert categorical_margins(read_only, rows(LABELS, -1).numpy().astype(">i4")).tolist() == MARGINS
    signs = 2 * SIDES - 1
    for labels in (SIDES, signs, SIDES.bool(), signs.float(), SIDES[:, None], signs[:, None].double()):
        for logits in (BINARY, BINARY[:, 0], BINARY.double()):
            result = binary_margins(logits, labels)
            assert result.shape == (4,)  # never [4, 4]
            assert result.tolist() == BINARY_MARGINS
    # labels of a single class
    assert binary_margins(BINARY, torch.ones(4)).tolist() == BINARY[:, 0].tolist()
    assert binary_margins(BINARY, -torch.ones(4)).tolist() == (-BINARY[:, 0]).tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_logits_prove_nothing(bad: float) -> None:
    for column in range(3):
        logits = LOGITS.clone()
        logits[0, column] = bad
        assert categorical_margins(logits, LABELS).tolist() == [-math.inf, *MARGINS[1:]]
        accuracy = lipschitz.CategoricalProvableRobustAccuracy(0.0, reduction="none")
        assert accuracy(logits, LABELS).tolist() == [0, 0, 1, 0]
        radius = lipschitz.CategoricalProvableAvgRobustness(reduction="none")
        assert radius(logits, LABELS).tolist() == [0, 0, 0.0625, 0]
        with pytest.raises(InputError, match="NaN or an infinity in row 0"):
            lipschitz.CategoricalProvableAvgRobustness(negative_robustness=True)(logits, LABELS)
    wrong = BINARY.clone()
    wrong[3] = bad
    assert binary_margins(wrong, SIDES).tolist() == [1.5, -0.75, -0.125, -math.inf]
    assert float(lipschitz.BinaryProvableRobustAccuracy(1.0)(wrong, SIDES)) == 0.25
    assert float(lipschitz.BinaryProvableAvgRobustness()(wrong, SIDES)) == 0.375
    with pytest.raises(InputError, match="NaN or an infinity in row 3"):
        lipschitz.BinaryProvableAvgRobustness(negative_robustness=True)(wrong, SIDES)


def test_margin_of_float64_logits_that_overflows() -> None:
    huge = torch.tensor([[1.5e308, -1.5e308]], dtype=torch.float64)
    largest = torch.finfo(torch.float64).max
    assert categorical_margins(huge, torch.tensor([0])).tolist() == [largest]
    assert categorical_margins(huge, torch.tensor([1])).tolist() == [-largest]


def test_mean_radius_has_a_gradient() -> None:
    logits = LOGITS.clone().requires_grad_(True)
    lipschitz.CategoricalProvableAvgRobustness(lip_const=0.5, reduction="sum")(logits, LABELS).backward()
    assert logits.grad is not None
    # correct examples: +1/c for the label, -1/c for the runner-up; wrong examples: nothing
    assert logits.grad[:3].tolist() == [[1, 0, -1], [0, 0, 0], [0, 1, -1]]
    assert not lipschitz.CategoricalProvableRobustAccuracy()(logits, LABELS).requires_grad
    logit = torch.tensor([2.0, math.nan], requires_grad=True)
    lipschitz.BinaryProvableAvgRobustness(4.0, reduction="sum")(logit, torch.tensor([0, 1])).backward()
    assert logit.grad is not None
    assert logit.grad.tolist() == [0, 0]


@given(st.integers(2, 9), st.integers(1, 12), st.floats(0.01, 100), st.booleans(), st.integers(0, 2**32 - 1))
def test_metrics_match_their_definition(classes: int, count: int, lip: float, disjoint: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, dtype=torch.float64, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    radius = []
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        margin = row[label] - max(value for i, value in enumerate(row) if i != label)
        radius.append(margin / ((2 if disjoint else math.sqrt(2)) * lip))
    options = {"lip_const": lip, "disjoint_neurons": disjoint, "reduction": "none"}
    clipped = lipschitz.CategoricalProvableAvgRobustness(**options)(logits, labels)
    signed = lipschitz.CategoricalProvableAvgRobustness(**options, negative_robustness=True)(logits, labels)
    assert signed.tolist() == pytest.approx(radius, rel=1e-14)
    assert clipped.tolist() == pytest.approx([max(r, 0) for r in radius], rel=1e-14)
    epsilon = abs(radius[0]) * 0.999
    proved = lipschitz.CategoricalProvableRobustAccuracy(epsilon, **options)(logits, labels)
    assert proved.tolist() == [float(r > epsilon) for r in radius]


CATEGORICAL: dict[type[Exception], list[tuple[Any, Any, str]]] = {
    InputError: [
        (LOGITS[:, :1], LABELS, r"logits: expected \[N, K\] with K >= 2, got \(4, 1\)"),
        (LOGITS[0], LABELS[:1], "logits"),
        (LOGITS[:0], LABELS[:0], "logits: expected at least one example"),
        (LOGITS, LABELS[:3], r"labels: expected shape \(4,\) or \(4, 3\), got \(3,\)"),
        (LOGITS, LABELS + 1, "labels: expected classes 0 to 2, got"),
        (LOGITS, LABELS - 1, "labels: expected classes 0 to 2, got"),
        (LOGITS, rows(LABELS, 0) * 2, r"labels: expected all values in \{0, 1\}"),
        (LOGITS, torch.tensor([[1, 0, -1]] * 4), r"labels: expected all values in \{0, 1\}"),
        (LOGITS, rows(LABELS, 0) * 2.0, r"labels: expected all values in \{0, 1\}[^;]*$"),
        (LOGITS, rows(LABELS, 0) * -2.0, r"labels: expected all values in \{0, 1\}[^;]*$"),
        (LOGITS, rows(LABELS, 0) * 0.9 + 1 / 30, "smoothed labels have no single true class"),
        (LOGITS, torch.ones(4, 3), "labels: expected exactly one 1 in each row"),
        (LOGITS, torch.zeros(4, 3), "labels: expected exactly one 1 in each row"),
    ],
    InputTypeError: [
        (LOGITS.int(), LABELS, "logits: expected a float tensor, got torch.int32"),
        (LOGITS.numpy().astype(str), LABELS, "logits: expected a tensor, an array or a list, got an array of <U"),
        (LOGITS, LABELS.float(), "labels: expected integer classes"),
        (LOGITS, LABELS.bool(), "labels: expected integer classes"),
        *(
            (labels, LOGITS, r"PyTorch's order \(input, target\), got labels first")
            for labels in (LABELS, rows(LABELS, 0), rows(LABELS, -1).float())
        ),
    ],
}
BINARY_REFUSED = [
    (BINARY.T, SIDES, r"logits: expected \[N\] or \[N, 1\], got \(1, 4\)"),
    (torch.tensor(1.0), torch.tensor(1), r"logits: expected \[N\] or \[N, 1\]"),
    (BINARY[:0], SIDES[:0], "logits: expected at least one example"),
    (BINARY, SIDES[None], r"labels: expected shape \(4,\) or \(4, 1\), got \(1, 4\)"),
    (BINARY, torch.tensor([0, 1, -1, 1]), r"labels: expected all values in \{0, 1\}, or all in \{-1, 1\}"),
]


def test_bad_input() -> None:
    for error, cases in CATEGORICAL.items():
        for logits, labels, words in cases:
            with pytest.raises(error, match=words):
                lipschitz.CategoricalProvableAvgRobustness()(logits, labels)
    for logits, labels, words in BINARY_REFUSED:
        with pytest.raises(InputError, match=words):
            lipschitz.BinaryProvableRobustAccuracy()(logits, labels)


def test_bad_options() -> None:
    for name, value, error, words in [
        ("epsilon", -0.1, InputError, "a finite number of at least 0, got -0.1"),
        ("epsilon", math.inf, InputError, "a finite number"),
        ("lip_const", 0.0, InputError, "a finite number above 0, got 0.0"),
        ("disjoint_neurons", 1, InputTypeError, "True or False, got 1"),
        ("reduction", "average", InputError, r'"mean" .*, "sum" or "none" .*, got \'average\''),
        ("name", 3, InputTypeError, "a string or None, got int"),
    ]:
        with pytest.raises(error, match=f"{name}: expected {words}"):
            lipschitz.CategoricalProvableRobustAccuracy(**{name: value})
    for cls in (lipschitz.CategoricalProvableAvgRobustness, lipschitz.BinaryProvableAvgRobustness):
        with pytest.raises(InputTypeError, match="negative_robustness"):
            cls(negative_robustness="yes")  # type: ignore[arg-type]  # a wrong type


NAMES = sorted({name for name, *_ in CASES})
# Keras's constants, those of Keras 3, and PyTorch's.
SPELLINGS = {
    "mean": ("auto", "AUTO", "sum_over_batch_size", "SUM_OVER_BATCH_SIZE", "mean"),
    "sum": ("sum", "SUM"),
    "none": ("none", "NONE", None),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("module", [lipschitz, deel_lip])
def test_parameters_are_the_document_s(name: str, module: Any) -> None:
    """Order and defaults of deel.lip.metrics; "auto" is the mean in every spelling, and the name that of the class."""
    expected: dict[str, Any] = {"epsilon": 36 / 255} if "Accuracy" in name else {}
    expected |= {"lip_const": 1.0}
    expected |= {"disjoint_neurons": True} if name.startswith("Categorical") else {}
    expected |= {"negative_robustness": False} if "Avg" in name else {}
    cls = getattr(module, name)
    parameters = inspect.signature(cls).parameters
    assert list(parameters) == [*expected, "reduction", "name"]
    assert {key: parameters[key].default for key in expected} == expected
    assert (cls().reduction, cls().name, cls(name="mine").name) == (cls(reduction="auto").reduction, name, "mine")
    assert cls().certificate_factor == (2 if name.startswith("Categorical") else 1)
    logits, labels = (BINARY, SIDES) if name.startswith("Binary") else (LOGITS, LABELS)
    pair = (logits, labels) if module is lipschitz else (labels, logits)
    values = cls(reduction="none")(*pair)
    for reduction, spellings in SPELLINGS.items():
        whole = {"mean": values.mean(), "sum": values.sum(), "none": values}[reduction]
        for spelling in spellings:
            metric = cls(reduction=spelling)
            assert torch.equal(metric(*pair), whole)
            backwards = metric(*(tensor.numpy()[::-1] for tensor in pair))
            assert torch.equal(backwards, whole.flip(0) if whole.dim() else whole)


def test_weights_and_parts_of_the_keras_classes() -> None:
    pair = rows(LABELS, 0), LOGITS
    values = torch.tensor([1.125, 0, 0.0625, 0], dtype=torch.float64)
    weights = torch.tensor([1.0, 5.0, 2.0, 0.0], dtype=torch.float64)
    make = deel_lip.CategoricalProvableAvgRobustness
    for given_weights in (weights, weights.numpy(), weights.tolist(), weights[:, None], weights.float()):
        assert torch.equal(make(reduction="none")(*pair, sample_weight=given_weights), values * weights)
        assert float(make(reduction="sum")(*pair, given_weights)) == 1.25
        assert float(make()(*pair, given_weights)) == 1.25 / 4  # over N, not over the sum of the weights
    assert float(make()(*pair, 2)) == 2 * float(make()(*pair))
    assert torch.equal(make(reduction="sum").call(*pair), values)
    delta = torch.tensor([-1.0, 2.0])
    assert make().delta_correction(delta).tolist() == [0, 2]
    assert deel_lip.BinaryProvableAvgRobustness(negative_robustness=True).delta_correction(delta).tolist() == [-1, 2]
    for bad, error in (([1.0, 2.0], InputError), ("heavy", InputTypeError), ([math.nan] * 4, InputError)):
        with pytest.raises(error, match="sample_weight: "):
            make()(*pair, bad)


def test_the_order_of_keras_is_named() -> None:
    for labels in (LABELS, rows(LABELS, 0).float(), rows(LABELS, -1)):
        with pytest.raises(InputTypeError, match=r"y_true: expected .*order \(y_true, y_pred\), got predictions first"):
            deel_lip.CategoricalProvableRobustAccuracy()(LOGITS, labels)
    with pytest.raises(InputTypeError, match="PyTorch's order"):
        lipschitz.BinaryProvableAvgRobustness()(SIDES, BINARY)
    with pytest.raises(InputError, match="smoothed labels"):
        deel_lip.CategoricalProvableRobustAccuracy()(rows(LABELS, 0) * 0.9 + 1 / 30, LOGITS)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_the_largest_unsigned_label_is_not_minus_one(dtype: torch.dtype) -> None:
    largest = torch.iinfo(dtype).max
    with pytest.raises(InputError, match=f"got {largest} at index 1"):
        binary_margins(torch.tensor([2.0, 3.0]), torch.tensor([1, largest], dtype=dtype))
    with pytest.raises(InputError, match=f"got {largest}"):
        categorical_margins(torch.tensor([[2.0, 3.0, 1.0]]), torch.tensor([[largest, 1, largest]], dtype=dtype))
    assert binary_margins(torch.tensor([2.0, 3.0]), torch.tensor([1, 0], dtype=dtype)).tolist() == [2.0, -3.0]

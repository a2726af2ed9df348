"""Invalid arguments of the smoother raise one clear error before the model runs.

Among them are float64 images that float32 cannot represent, for a float32 model. The noise would be added to the
rounded image, and a certificate or prediction there says nothing about the original image, because a decision boundary
may lie between the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pyrobust import RandomizedSmoothing
from pyrobust.compat.smoothing import Smooth
from pyrobust.errors import InputError, InputTypeError, ModelError
from pyrobust.smoothing.checks import certified_radii


def first_two(batch: Tensor) -> Tensor:
    return batch.flatten(1)[:, :2]


def never(batch: Tensor) -> Tensor:
    raise AssertionError("the model must not run")


X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
BYTE = Fraction(1, 255)
SEQUENTIAL = {"method": "sequential", "radii": [0.1]}
BATCHES = {
    "certify_batch": lambda s, x, **options: s.certify_batch(x, **{"n0": 5, "n": 10, "alpha": 0.05} | options),
    "predict_batch": lambda s, x, **options: s.predict_batch(x, **{"n": 10, "alpha": 0.05} | options),
}


@pytest.fixture(params=list(BATCHES))
def call(request: pytest.FixtureRequest) -> Any:
    return BATCHES[request.param]


def with_value(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    x = X.to(dtype).clone()
    x[1, 2] = value
    return x


def test_invalid_images_are_rejected(call: Any) -> None:
    for x, error, match in [
        (with_value(math.nan), InputError, "x: expected finite values"),
        (torch.tensor(1.0), InputError, r"x: expected a batch \[B, \.\.\.\]"),
        (torch.ones(3, 0), InputError, "x: expected examples of at least one element"),
        (torch.zeros(3, 4, dtype=torch.uint8), InputTypeError, r"x: expected a float tensor.*x\.float\(\) / 255"),
        ([["0"]], InputTypeError, "x: expected a tensor, an array or a list, got list"),
    ]:
        with pytest.raises(error, match=match):
            call(RandomizedSmoothing(never, 2, 0.5), x)
    normalized = RandomizedSmoothing(never, 2, 0.5, normalize=([0.5] * 3, [0.5] * 3))
    for shape in ((2, 4, 5, 5), (2, 2), (2, 1, 8, 8)):
        with pytest.raises(InputError, match="x: expected 3 channels, the length of normalize's mean"):
            call(normalized, torch.zeros(shape))
    with pytest.raises(InputError, match=r"x: expected \[B, C, H, W\] for channels_last"):
        call(RandomizedSmoothing(never, 2, 0.5, memory_format=torch.channels_last), torch.zeros(2, 3, 4))


@pytest.mark.parametrize("method", ["certify", "predict"])
def test_invalid_single_examples_are_rejected(method: str) -> None:
    smoother = RandomizedSmoothing(never, 2, 0.5)
    for x, index, error, match in [
        (torch.tensor(1.0), 0, InputError, "x: expected an example of at least 1 dimension"),
        (X[0], 2**32, InputError, "^index: "),
        (X[0], 1.0, InputTypeError, "^index: "),
    ]:
        with pytest.raises(error, match=match):
            getattr(smoother, method)(x, n=10, index=index)


@pytest.mark.parametrize("method", ["certify_batch", "predict_batch", "votes"])
def test_images_off_the_grid_are_rejected(method: str) -> None:
    x = X.view(3, 1, 2, 2)
    for grid, images, error, match in [
        (BYTE, x, InputError, r"x: expected the floats nearest to multiples of 1/255, got .* at \[0, 0, 0, 0\]"),
        (BYTE, x.half(), InputTypeError, "x: expected a float32 or float64 tensor"),
        (BYTE, x * math.nan, InputError, "x: expected finite values"),
        ("auto", (x * 255).int(), InputTypeError, "x: expected a float tensor"),
    ]:
        with pytest.raises(error, match=match):
            getattr(RandomizedSmoothing(never, 3, 0.3, grid=grid), method)(images, n=10)


def test_invalid_numbers_are_rejected() -> None:
    smoother, x = RandomizedSmoothing(never, 2, 0.5), X[0]
    calls: list[tuple[tuple[str, ...], Callable[..., object]]] = [
        (("n", "n0", "alpha"), lambda **options: smoother.certify_batch(X, **{"n": 10, "n0": 5} | options)),
        (("n", "n0", "alpha"), lambda **options: smoother.certify(x, **{"n": 10, "n0": 5} | options)),
        (("n", "alpha"), lambda **options: smoother.predict_batch(X, **{"n": 10} | options)),
        (("n", "alpha"), lambda **options: smoother.predict(x, **{"n": 10} | options)),
        (("n",), lambda **options: smoother.votes(X, **options)),
    ]
    for taken, sample in calls:
        for names, value, error, match in [
            (("n", "n0"), 0, InputError, "expected at least 1, got 0"),
            (("n", "n0"), 10**9 + 1, InputError, "expected at most 1000000000"),
            (("alpha",), 0.0, InputError, r"expected a number in \(0, 1\)"),
            (("alpha",), math.nan, InputError, r"expected a number in \(0, 1\)"),
        ]:
            for name in set(names) & set(taken):
                with pytest.raises(error, match=f"^{name}: {match}"):
                    sample(**{name: value})


def test_an_unknown_stage_is_rejected() -> None:
    with pytest.raises(InputError, match="stage"):
        RandomizedSmoothing(never, 2, 0.5).votes(X, n=10, stage="guess")


def test_invalid_indices_are_rejected(call: Any) -> None:
    for indices, error, match in [
        ([0, 1], InputError, "expected one for each of the 3 examples, got 2"),
        ([0, -1, 2], InputError, r"expected 0 to 2\*\*32 - 1.*got -1"),
        (torch.tensor([0, 2**32, 2]), InputError, r"expected 0 to 2\*\*32 - 1.*got 4294967296"),
        ([True, False, True], InputTypeError, "expected a sequence of integers, got True at index 0"),
        (5, InputTypeError, "expected a sequence of integers, got 5"),
    ]:
        with pytest.raises(error, match=f"^indices: {match}"):
            call(RandomizedSmoothing(never, 2, 0.5), X, indices=indices)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"method": "adaptive"}, InputError, "method: expected .*fixed.*, got 'adaptive'"),
        ({"radii": (0.25, -0.1)}, InputError, "radii: expected numbers of at least 0, got -0.1"),
        ({"radii": 0.25}, InputTypeError, "radii: expected a sequence of numbers"),
        ({"hybrid": 0.5}, InputError, 'hybrid: expected none with method "fixed", got 0.5'),
        ({"two_class": True}, InputError, 'two_class: expected none with method "fixed", got True'),
        (SEQUENTIAL | {"radii": None}, InputError, "radii: expected at least one radius for the sequential method"),
        (SEQUENTIAL | {"radii": ()}, InputError, "radii: expected at least one radius for the sequential method"),
        (SEQUENTIAL | {"hybrid": 1.0}, InputError, r"hybrid: expected a share of alpha in \[0, 1\)"),
        (SEQUENTIAL | {"hybrid": math.nan}, InputError, "hybrid: expected a share"),
        (SEQUENTIAL | {"two_class": 1}, InputTypeError, "two_class: expected True or False"),
    ],
)
def test_invalid_methods_are_rejected(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        RandomizedSmoothing(never, 3, 0.25).certify_batch(X, n0=10, n=200, **arguments)


def test_two_class_requires_gaussian_noise() -> None:
    laplace = RandomizedSmoothing(never, 2, 0.5, noise="laplace", norm="l1")
    with pytest.raises(InputError, match="two_class: expected gaussian noise"):
        laplace.certify_batch(X, n=200, two_class=True, **SEQUENTIAL)


def test_indices_of_any_sequence_type_and_a_warning_where_images_share_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    smoother = RandomizedSmoothing(first_two, 2, 0.5, grid=None)
    expected = smoother.votes(X, n=50, indices=[4, 2**32 - 1, 0])
    for indices in ((4, 2**32 - 1, 0), np.array([4, 2**32 - 1, 0]), torch.tensor([4, 2**32 - 1, 0])):
        np.testing.assert_array_equal(smoother.votes(X, n=50, indices=indices), expected)
    assert not caplog.records
    smoother.votes(X, n=5, indices=[1, 2, 1])
    assert "share an index" in caplog.text


POSITIVE = "sigma: expected a positive number"
PAIR = r"normalize: expected \(mean, std\)"
COARSE = {"sigma": 36.5 * 65537, "grid": Fraction(65537)}
FINITE = "normalize: expected finite numbers and a positive std"


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"num_classes": 0}, InputError, "num_classes: expected at least 1"),
        ({"sigma": 0.0}, InputError, POSITIVE),
        ({"sigma": 1e-60}, InputError, f"{POSITIVE} in the range of float32 noise"),
        ({"noise": "cauchy"}, InputError, "noise, norm: expected .*got cauchy with l2"),
        ({"seed": -1}, InputError, "seed: expected 0 to"),
        ({"seed": 2**64}, InputError, "seed: expected 0 to"),
        ({"batch_size": 0}, InputError, "batch_size: expected at least 1"),
        ({"normalize": ([0.5], [0.0])}, InputError, FINITE),
        ({"normalize": ([math.nan], [1.0])}, InputError, FINITE),
        ({"normalize": ([0.5], [math.inf])}, InputError, FINITE),
        ({"normalize": ([0.5, 0.5], [1.0])}, InputError, "normalize: expected mean and std of the same length"),
        ({"normalize": 0.5}, InputTypeError, PAIR),
        ({"model": None}, InputTypeError, "model: expected a torch.nn.Module or a callable"),
        ({"dtype": torch.int64}, InputTypeError, "dtype: expected float32"),
        ({"memory_format": torch.channels_last_3d}, InputError, "memory_format: expected"),
        ({"model": nn.Linear(4, 2), "dtype": torch.float64}, InputTypeError, "dtype: .* torch.float32, the model's"),
        ({"model": nn.Linear(4, 2).half(), "dtype": torch.float32}, InputTypeError, "dtype: expected torch.float16"),
        ({"device": "abacus"}, InputError, "device: expected cpu or cuda, got 'abacus'"),
        ({"device": "meta"}, InputError, "device: expected cpu or cuda, got meta"),
        ({"grid": 1 / 255}, InputTypeError, "grid: expected a Fraction, .* a float does not represent"),
        ({"grid": "1/0"}, InputError, "grid: expected a positive fraction"),
        ({"grid": BYTE, "noise": "uniform", "norm": "l1"}, InputError, "grid: expected none with uniform noise"),
        ({"grid": Fraction(1, 1 << 20)}, InputError, r"at most 2\*\*13 steps"),
        (COARSE, InputError, r"^grid: step: expected a numerator of at most 65536, so that float32 .* 65537"),
        (COARSE | {"dtype": torch.float16}, InputError, r"^grid: step: expected a numerator of at most 65536"),
        ({"device": "cuda:99"}, InputError, r"device: expected (one of \d+ CUDA devices|cpu, .*), got cuda:99"),
    ],
)
def test_invalid_parameters_are_rejected(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        RandomizedSmoothing(**{"model": never, "num_classes": 2, "sigma": 0.5} | arguments)


def test_grids_as_coarse_as_the_dtype_allows() -> None:
    RandomizedSmoothing(never, 3, **COARSE, dtype=torch.float64)
    smoother = RandomizedSmoothing(lambda x: x, 3, 36.5 * 65536, grid=Fraction(65536))
    assert smoother.votes(torch.zeros(1, 3), n=10).sum() == 10
    # This grid has representable images; the error is about this image.
    with pytest.raises(InputError, match=r"k: expected at most 0 in size"):
        smoother.votes(torch.full((1, 3), 65536.0), n=10)


@pytest.mark.parametrize("grid", ["1/255", None])
def test_empty_batch(grid: str | None) -> None:
    smoother = RandomizedSmoothing(never, 2, 0.5, grid=grid)
    result = smoother.certify_batch(X[:0], n0=5, n=10)
    assert len(result) == 0
    assert result.prediction.shape == result.radius.shape == result.p_lower.shape == result.indices.shape == (0,)
    assert result.counts.shape == result.counts0.shape == (0, 3)
    assert len(smoother.predict_batch(X[:0], n=10)) == 0
    assert result.to_dict()["radius"] == []
    with pytest.raises(InputError, match="n: expected at least 1"):
        smoother.certify_batch(X[:0], n=0)


def test_single_class_model() -> None:
    # A model with a single class is always certified, but logits with NaN must still count against it.
    sure = RandomizedSmoothing(lambda x: x[:, :1], 1, 0.5).certify_batch(X, n0=1, n=1000, alpha=0.001)
    assert sure.prediction.tolist() == [0, 0, 0]
    unsure = RandomizedSmoothing(lambda x: x[:, :1].log(), 1, 5.0).certify_batch(X, n0=1, n=1000, alpha=0.001)
    assert unsure.prediction.tolist() == [-1, -1, -1]
    assert (unsure.counts[:, 1] > 300).all()


def test_outputs_other_than_logits_of_the_classes_are_rejected(call: Any) -> None:
    for output, match in (
        (lambda b: None, "got NoneType"),
        (lambda b: b.flatten(1)[:, 0], "expected logits of shape"),
        (lambda b: b[:1, :2], r"expected logits of shape \(\d+, K\)"),
        (lambda b: b[:, :0], "expected logits of shape"),
        (lambda b: b[:, :2].argmax(1, keepdim=True), "expected floating-point logits, got torch.int64"),
        (lambda b: (b[:, :2],), "got tuple"),
    ):
        with pytest.raises(ModelError, match=match):
            call(RandomizedSmoothing(output, 2, 0.5), X)
    for classes in (1, 3):
        with pytest.raises(InputError, match=f"num_classes: expected 2, the number of logits of .*, got {classes}"):
            call(RandomizedSmoothing(first_two, classes, 0.5), X)


@pytest.mark.parametrize("radii", [np.array([0.25, 0.5]), torch.tensor([0.25, 0.5]), iter([0.25, 0.5])])
def test_radii_of_any_sequence_type(radii: Any) -> None:
    assert certified_radii("sequential", radii) == (0.25, 0.5)


# --- float64 images that float32 cannot represent

EDGE = 1e9 + 31


def sides(batch: Tensor) -> Tensor:
    """Class 0 below the edge, class 1 above, computed in float64 so that only the rounding of the image matters."""
    score = batch[:, 0].double() - EDGE
    return torch.stack([-score, score], 1)


# 0.5 above the edge. Rounded to float32 it is 1e9, 31 below the edge and many sigmas away from it.
GIVEN = torch.tensor([[EDGE + 0.5]], dtype=torch.float64)
CALLS: dict[str, Callable[[Any, Tensor], Any]] = {
    "certify_batch": lambda model, x: RandomizedSmoothing(model, 2, 0.25).certify_batch(x, n0=10, n=1000),
    "predict_batch": lambda model, x: RandomizedSmoothing(model, 2, 0.25).predict_batch(x, n=1000),
    "certify": lambda model, x: RandomizedSmoothing(model, 2, 0.25).certify(x[0], n0=10, n=1000),
    "predict": lambda model, x: RandomizedSmoothing(model, 2, 0.25).predict(x[0], 1000),
    "votes": lambda model, x: RandomizedSmoothing(model, 2, 0.25).votes(x, n=1000),
    "Smooth.certify": lambda model, x: Smooth(model, 2, 0.25).certify(x[0], 10, 1000, 0.001, 100),
    "Smooth.predict": lambda model, x: Smooth(model, 2, 0.25).predict(x[0], 1000, 0.001, 100),
}


def test_rounded_image_has_another_class() -> None:
    """The counterexample works: the rounded image has the other class, with a certificate of its own."""
    smoother = RandomizedSmoothing(sides, 2, 0.25)
    label, radius = smoother.certify(GIVEN[0].float(), n0=10, n=1000)
    assert label == 0
    assert 0.5 < radius < abs(float(GIVEN - GIVEN.float()))
    # In float64 the image is not moved, and is two sigmas above the edge.
    exact = RandomizedSmoothing(lambda batch: sides(batch), 2, 0.25, dtype=torch.float64)
    assert exact.certify(GIVEN[0], n0=100, n=1000)[0] == 1
    assert exact.predict(GIVEN[0], 1000) == 1


@pytest.mark.parametrize("call", list(CALLS))
def test_image_changed_by_rounding_is_rejected(call: str) -> None:
    match = r"^x: expected float32 values, which the model takes, got .*x\.to\(torch\.float32\)"
    for values in ([EDGE + 0.5], [2.0**24 + 1], [0.5, 1e-300], [1e300], [0.5, 0.1]):
        with pytest.raises(InputError, match=match):
            CALLS[call](never, torch.tensor([values], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_noise_of_16_bit_models_is_added_in_float32(dtype: torch.dtype) -> None:
    """A float32 image is not rounded before the noise is added, whatever the model's dtype."""
    smoother = RandomizedSmoothing(lambda batch: batch[:, :2], 2, 0.25, dtype=dtype)
    x = torch.tensor([[0.1, 0.2]])
    assert smoother.votes(x, n=50).sum() == 50
    assert (smoother.votes(x.double(), n=50) == smoother.votes(x, n=50)).all()
    with pytest.raises(InputError, match="x: expected float32 values"):
        smoother.votes(torch.tensor([[0.1, 0.2]], dtype=torch.float64), n=50)

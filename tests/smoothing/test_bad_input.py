"""Invalid arguments of the smoother raise one clear error before the model runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from pyrobust import RandomizedSmoothing
from pyrobust.errors import InputError, InputTypeError, ModelError, PyrobustError
from pyrobust.smoothing.checks import certified_radii


def first_two(batch):
    return batch.flatten(1)[:, :2]


def never(batch):
    raise AssertionError("the model must not run")


X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
CALLS = {
    "certify_batch": lambda s, x, **k: s.certify_batch(x, **{"n0": 5, "n": 10, "alpha": 0.05} | k),
    "predict_batch": lambda s, x, **k: s.predict_batch(x, **{"n": 10, "alpha": 0.05} | k),
}


@pytest.fixture(params=list(CALLS))
def call(request):
    return CALLS[request.param]


def with_value(value, dtype=torch.float32):
    x = X.to(dtype).clone()
    x[1, 2] = value
    return x


@pytest.mark.parametrize(
    ("x", "error", "match"),
    [
        (with_value(math.nan), InputError, "x: expected finite values"),
        (with_value(-math.inf), InputError, "x: expected finite values"),
        (with_value(math.nan, torch.float64), InputError, "x: expected finite values"),
        (torch.tensor(1.0), InputError, r"x: expected a batch \[B, \.\.\.\]"),
        (torch.ones(4), InputError, r"x: expected a batch \[B, \.\.\.\]"),
        (torch.ones(3, 0), InputError, "x: expected examples of at least one element"),
        (torch.zeros(3, 4, dtype=torch.uint8), InputTypeError, r"x: expected a float tensor.*x\.float\(\) / 255"),
        (torch.zeros(3, 4, dtype=torch.complex64), InputTypeError, "x: expected a float tensor"),
        (np.zeros((3, 4), int), InputTypeError, "x: expected a float tensor, got torch.int64"),
        ([["0"]], InputTypeError, "x: expected a tensor, an array or a list, got list"),
    ],
)
def test_invalid_images_are_rejected(call, x, error, match):
    with pytest.raises(error, match=match):
        call(RandomizedSmoothing(never, 2, 0.5), x)


@pytest.mark.parametrize("method", ["certify", "predict"])
def test_invalid_single_examples_are_rejected(method):
    smoother = RandomizedSmoothing(never, 2, 0.5)
    for x, index, error, match in [
        (np.zeros(4, int), 0, InputTypeError, "x: expected a float tensor, got torch.int64"),
        (torch.tensor(1.0), 0, InputError, "x: expected an example of at least 1 dimension"),
        (torch.full((4,), math.nan), 0, InputError, "x: expected finite values"),
        (X[0], 2**32, InputError, "^index: "),
        (X[0], 1.0, InputTypeError, "^index: "),
    ]:
        with pytest.raises(error, match=match):
            getattr(smoother, method)(x, n=10, index=index)


@pytest.mark.parametrize("name", ["n", "n0"])
@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        (0, InputError, "expected at least 1, got 0"),
        (10**9 + 1, InputError, "expected at most 1000000000"),
        (10.0, InputTypeError, "expected an integer, got 10.0"),
        (True, InputTypeError, "expected an integer, got True"),
    ],
)
def test_invalid_numbers_of_samples_are_rejected(name, value, error, match):
    smoother, given = RandomizedSmoothing(never, 2, 0.5), {"n": 10, "n0": 5} | {name: value}
    calls = [lambda: smoother.certify_batch(X, **given), lambda: smoother.certify(X[0], **given)]
    if name == "n":
        calls += [lambda: smoother.predict(X[0], value), lambda: smoother.votes(X, n=value)]
    for sample in calls:
        with pytest.raises(error, match=f"^{name}: {match}"):
            sample()


@pytest.mark.parametrize(
    ("alpha", "error", "match"),
    [
        (0.0, InputError, r"in \(0, 1\)"),
        (1.0, InputError, r"in \(0, 1\)"),
        (math.nan, InputError, r"in \(0, 1\)"),
        ("0.05", InputTypeError, ", got"),
        (None, InputTypeError, ", got"),
    ],
)
def test_invalid_alpha_is_rejected(call, alpha, error, match):
    with pytest.raises(error, match=rf"^alpha: expected a number ?{match}"):
        call(RandomizedSmoothing(never, 2, 0.5), X, alpha=alpha)


@pytest.mark.parametrize(
    ("indices", "error", "match"),
    [
        ([0, 1], InputError, "expected one for each of the 3 examples, got 2"),
        ([0, 1, 2, 3], InputError, "expected one for each of the 3 examples, got 4"),
        ([0, -1, 2], InputError, r"expected 0 to 2\*\*32 - 1.*got -1"),
        (torch.tensor([0, 2**32, 2]), InputError, r"expected 0 to 2\*\*32 - 1.*got 4294967296"),
        ([0.0, 1.0, 2.0], InputTypeError, "expected a sequence of integers, got 0.0 at index 0"),
        (torch.tensor([0.0, 1.0, 2.0]), InputTypeError, "expected a sequence of integers"),
        ([True, False, True], InputTypeError, "expected a sequence of integers, got True at index 0"),
        (5, InputTypeError, "expected a sequence of integers, got 5"),
        (torch.tensor(5), InputTypeError, "expected a sequence of integers"),
    ],
)
def test_invalid_indices_are_rejected(call, indices, error, match):
    with pytest.raises(error, match=f"^indices: {match}"):
        call(RandomizedSmoothing(never, 2, 0.5), X, indices=indices)


def test_indices_of_any_sequence_type_and_a_warning_where_images_share_one(caplog):
    smoother = RandomizedSmoothing(first_two, 2, 0.5, grid=None)
    expected = smoother.votes(X, n=50, indices=[4, 2**32 - 1, 0])
    for indices in ((4, 2**32 - 1, 0), np.array([4, 2**32 - 1, 0]), torch.tensor([4, 2**32 - 1, 0])):
        np.testing.assert_array_equal(smoother.votes(X, n=50, indices=indices), expected)
    assert not caplog.records
    smoother.votes(X, n=5, indices=[1, 2, 1])
    assert "share an index" in caplog.text


POSITIVE, INTEGER = "sigma: expected a positive number", "expected an integer"
PAIR = r"normalize: expected \(mean, std\)"
FINITE = "normalize: expected finite numbers and a positive std"


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"num_classes": 0}, InputError, "num_classes: expected at least 1"),
        ({"num_classes": 2.0}, InputTypeError, f"num_classes: {INTEGER}"),
        ({"sigma": 0.0}, InputError, POSITIVE),
        ({"sigma": math.nan}, InputError, POSITIVE),
        ({"sigma": 1e-60}, InputError, f"{POSITIVE} in the range of float32 noise"),
        ({"sigma": 1e60}, InputError, f"{POSITIVE} in the range of float32 noise"),
        ({"sigma": "0.5"}, InputTypeError, "sigma: expected a number, got"),
        ({"noise": "cauchy"}, InputError, "noise, norm: expected .*got cauchy with l2"),
        ({"noise": "uniform"}, InputError, "noise, norm: expected .*got uniform with l2"),
        ({"seed": -1}, InputError, "seed: expected 0 to"),
        ({"seed": 2**64}, InputError, "seed: expected 0 to"),
        ({"seed": 0.0}, InputTypeError, f"seed: {INTEGER}"),
        ({"batch_size": 0}, InputError, "batch_size: expected at least 1"),
        ({"batch_size": 2.0}, InputTypeError, f"batch_size: {INTEGER}"),
        ({"normalize": ([0.5], [0.0])}, InputError, FINITE),
        ({"normalize": ([0.5], [-1.0])}, InputError, FINITE),
        ({"normalize": ([math.nan], [1.0])}, InputError, FINITE),
        ({"normalize": ([0.5], [math.inf])}, InputError, FINITE),
        ({"normalize": ([0.5, 0.5], [1.0])}, InputError, "normalize: expected mean and std of the same length"),
        ({"normalize": ([0.5],)}, InputTypeError, PAIR),
        ({"normalize": 0.5}, InputTypeError, PAIR),
        ({"normalize": (["a"], ["b"])}, InputTypeError, PAIR),
        ({"model": None}, InputTypeError, "model: expected a torch.nn.Module or a callable"),
        ({"dtype": torch.int64}, InputTypeError, "dtype: expected float32"),
        ({"memory_format": torch.channels_last_3d}, InputError, "memory_format: expected"),
        (
            {"model": nn.Linear(4, 2), "dtype": torch.float64},
            InputTypeError,
            "dtype: expected torch.float32, the model's",
        ),
        ({"model": nn.Linear(4, 2).half(), "dtype": torch.float32}, InputTypeError, "dtype: expected torch.float16"),
        ({"device": "abacus"}, InputError, "device: expected cpu or cuda, got 'abacus'"),
        ({"device": "meta"}, InputError, "device: expected cpu or cuda, got meta"),
        ({"device": "cuda:99"}, InputError, r"device: expected (one of \d+ CUDA devices|cpu, .*), got cuda:99"),
    ],
)
def test_invalid_parameters_are_rejected(arguments, error, match):
    with pytest.raises(error, match=match) as caught:
        RandomizedSmoothing(**{"model": never, "num_classes": 2, "sigma": 0.5} | arguments)
    assert isinstance(caught.value, PyrobustError)


def test_normalize_with_another_number_of_channels_is_rejected(call):
    smoother = RandomizedSmoothing(never, 2, 0.5, normalize=([0.5] * 3, [0.5] * 3))
    for shape in ((2, 4, 5, 5), (2, 2), (2, 1, 8, 8)):
        with pytest.raises(InputError, match="x: expected 3 channels, the length of normalize's mean"):
            call(smoother, torch.zeros(shape))
    smoother = RandomizedSmoothing(never, 2, 0.5, memory_format=torch.channels_last)
    with pytest.raises(InputError, match=r"x: expected \[B, C, H, W\] for channels_last"):
        call(smoother, torch.zeros(2, 3, 4))


@pytest.mark.parametrize("classes", [1, 3])
def test_num_classes_must_match_the_logits(call, classes):
    with pytest.raises(InputError, match=f"num_classes: expected 2, the number of logits of the model, got {classes}"):
        call(RandomizedSmoothing(first_two, classes, 0.5), X)


def test_empty_batch():
    smoother = RandomizedSmoothing(never, 2, 0.5)
    result = smoother.certify_batch(X[:0], n0=5, n=10)
    assert len(result) == 0
    assert result.prediction.shape == result.radius.shape == result.p_lower.shape == result.indices.shape == (0,)
    assert result.counts.shape == result.counts0.shape == (0, 3)
    assert len(smoother.predict_batch(X[:0], n=10)) == 0
    assert result.to_dict()["radius"] == []
    with pytest.raises(InputError, match="n: expected at least 1"):
        smoother.certify_batch(X[:0], n=0)


def test_single_class_model():
    # A model with a single class is always certified, but logits with NaN must still count against it.
    sure = RandomizedSmoothing(lambda x: x[:, :1], 1, 0.5).certify_batch(X, n0=1, n=1000, alpha=0.001)
    assert sure.prediction.tolist() == [0, 0, 0]
    unsure = RandomizedSmoothing(lambda x: x[:, :1].log(), 1, 5.0).certify_batch(X, n0=1, n=1000, alpha=0.001)
    assert unsure.prediction.tolist() == [-1, -1, -1]
    assert (unsure.counts[:, 1] > 300).all()


def test_model_state_is_restored_after_an_error():
    model = nn.Linear(4, 3).train()
    smoother = RandomizedSmoothing(model, 2, 0.5)
    with pytest.raises(InputError, match="num_classes"):
        smoother.certify_batch(X, n0=5, n=10)
    assert model.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    with pytest.raises(InputError, match="stage"):
        RandomizedSmoothing(never, 2, 0.5).votes(X, n=10, stage="guess")


def test_outputs_other_than_logits_are_rejected(call):
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


@pytest.mark.parametrize("radii", [np.array([0.25, 0.5]), torch.tensor([0.25, 0.5]), iter([0.25, 0.5])])
def test_radii_of_any_sequence_type(radii):
    assert certified_radii("sequential", radii) == (0.25, 0.5)
    with pytest.raises(InputTypeError, match="radii: expected a sequence of numbers"):
        certified_radii("fixed", torch.ones(2, 2))

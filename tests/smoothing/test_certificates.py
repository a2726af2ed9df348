"""What certificates and predictions can do besides being read."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from pyrobust import Certificates, Predictions, RandomizedSmoothing


@pytest.fixture(scope="module")
def smoother():
    return RandomizedSmoothing(lambda x: x[:, :3], 3, np.float32(0.25), seed=np.uint64(7))


@pytest.fixture(scope="module")
def x():
    return torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.1, 0.1], [0.0, 0.0, 1.0]])


@pytest.fixture(scope="module")
def certificates(smoother, x):
    return smoother.certify_batch(x, n0=np.int64(10), n=200, alpha=np.float64(0.01), indices=[3, 5, 7])


@pytest.fixture(scope="module")
def predictions(smoother, x):
    return smoother.predict_batch(x, n=200, alpha=0.01, indices=torch.tensor([3, 5, 7]))


def test_everything_that_a_result_depends_on_is_in_it(certificates, predictions):
    assert isinstance(certificates, Certificates)
    assert isinstance(predictions, Predictions)
    for result in (certificates, predictions):
        assert (result.sigma, result.noise, result.norm, result.n) == (0.25, "gaussian", "l2", 200)
        assert (result.alpha, result.seed) == (0.01, 7)
        assert result.indices.tolist() == [3, 5, 7]
        assert len(result) == 3
        assert result.counts.shape == (3, 4)
    assert certificates.n0 == 10
    assert certificates.guarantee == "real"
    assert certificates.method == "fixed"
    assert certificates.prediction.tolist() == [0, -1, 2]
    assert certificates.radius[1] == 0.0
    assert certificates.radius[0] > 0.4


def test_dtypes(certificates, predictions):
    for name in ("indices", "prediction", "counts"):
        assert getattr(certificates, name).dtype == getattr(predictions, name).dtype == np.int64
    assert certificates.counts0.dtype == np.int64
    assert certificates.radius.dtype == certificates.p_lower.dtype == predictions.p_value.dtype == np.float64


@pytest.mark.parametrize("name", ["certificates", "predictions"])
def test_frozen(request, name):
    result = request.getfixturevalue(name)
    for field in dataclasses.fields(result):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field.name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del result.prediction


@pytest.mark.parametrize("name", ["certificates", "predictions"])
def test_to_dict_survives_json(request, name):
    result = request.getfixturevalue(name)
    values = result.to_dict()
    assert list(values) == [field.name for field in dataclasses.fields(result)]
    again = json.loads(json.dumps(values))
    assert again == values
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(np.array(again[field.name], dtype=value.dtype), value)
        else:
            assert again[field.name] == value


def test_to_pandas(certificates, predictions):
    pytest.importorskip("pandas")
    frame = certificates.to_pandas()
    assert list(frame.columns) == ["indices", "prediction", "radius", "p_lower"]
    assert frame["prediction"].tolist() == [0, -1, 2]
    assert frame["radius"].tolist() == certificates.radius.tolist()
    assert frame.attrs["sigma"] == 0.25
    assert frame.attrs["guarantee"] == "real"
    assert set(frame.attrs) == {"sigma", "noise", "norm", "n0", "n", "alpha", "seed", "guarantee", "method"}
    assert list(predictions.to_pandas().columns) == ["indices", "prediction", "p_value"]

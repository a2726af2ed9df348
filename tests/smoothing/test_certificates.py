"""Certificates and predictions: fields, conversions and certification at given radii."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from pyrobust import ABSTAIN, Certificates, Predictions, RandomizedSmoothing
from pyrobust.errors import InputError, InputTypeError


@pytest.fixture(scope="module")
def smoother():
    return RandomizedSmoothing(lambda x: x[:, :3], 3, np.float32(0.25), seed=np.uint64(7))


@pytest.fixture(scope="module")
def x():
    return torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.1, 0.1], [0.0, 0.0, 1.0]])


@pytest.fixture(scope="module")
def certificates(smoother, x):
    return smoother.certify_batch(
        x, n0=np.int64(10), n=200, alpha=np.float64(0.01), indices=[3, 5, 7], radii=(0.25, np.float32(0.5))
    )


@pytest.fixture(scope="module")
def predictions(smoother, x):
    return smoother.predict_batch(x, n=200, alpha=0.01, indices=torch.tensor([3, 5, 7]))


def test_results_hold_all_parameters(certificates, predictions):
    assert isinstance(certificates, Certificates)
    assert isinstance(predictions, Predictions)
    for result in (certificates, predictions):
        assert (result.sigma, result.noise, result.norm, result.n) == (0.25, "gaussian", "l2", 200)
        assert (result.alpha, result.seed) == (0.01, 7)
        assert result.indices.tolist() == [3, 5, 7]
        assert len(result) == 3
        assert result.counts.shape == (3, 4)
        assert {getattr(result, name).dtype for name in ("indices", "prediction", "counts")} == {np.dtype(np.int64)}
    assert certificates.counts0.dtype == np.int64
    assert certificates.radius.dtype == certificates.p_lower.dtype == predictions.p_value.dtype == np.float64
    assert certificates.n0 == 10
    assert (certificates.guarantee, certificates.method) == ("real", "fixed")
    assert certificates.prediction.tolist() == [0, -1, 2]
    assert certificates.radius[1] == 0.0
    assert certificates.radius[0] > 0.4


@pytest.mark.parametrize("name", ["certificates", "predictions"])
def test_results_are_frozen(request, name):
    result = request.getfixturevalue(name)
    for field in dataclasses.fields(result):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field.name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del result.prediction


@pytest.mark.parametrize("name", ["certificates", "predictions"])
def test_to_dict_round_trips_through_json(request, name):
    result = request.getfixturevalue(name)
    values = result.to_dict()
    assert list(values) == [field.name for field in dataclasses.fields(result)]
    again = json.loads(json.dumps(values))
    assert list(again) == list(values)
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(np.array(again[field.name], dtype=value.dtype), value)
        elif isinstance(value, tuple):
            assert tuple(again[field.name]) == value
        else:
            assert again[field.name] == value


def test_to_pandas(certificates, predictions):
    pytest.importorskip("pandas")
    frame = certificates.to_pandas()
    assert list(frame.columns) == ["indices", "prediction", "radius", "p_lower", "samples"]
    assert frame["prediction"].tolist() == [0, -1, 2]
    assert frame["radius"].tolist() == certificates.radius.tolist()
    assert frame.attrs["sigma"] == 0.25
    assert frame.attrs["guarantee"] == "real"
    assert frame.attrs["radii"] == (0.25, 0.5)
    given = {"sigma", "noise", "norm", "n0", "n", "alpha", "seed", "radii", "guarantee", "method", "hybrid"}
    assert set(frame.attrs) == given | {"rival_upper", "grid", "delta", "keys"}
    assert list(predictions.to_pandas().columns) == ["indices", "prediction", "p_value"]


# --- radii of interest


def test_certified_at_given_radii(smoother, x):
    result = smoother.certify_batch(x, n0=10, n=200, alpha=0.01, method="fixed", radii=(0.25, 0.5))
    assert result.method == "fixed"
    assert result.radii == (0.25, 0.5)
    assert [type(radius) for radius in result.radii] == [float, float]
    assert result.certified.shape == (3, 2)
    assert result.certified.dtype == np.bool_
    np.testing.assert_array_equal(result.certified, result.radius[:, None] >= np.array([0.25, 0.5]))
    assert result.certified.tolist() == [[True, False], [False, False], [True, False]]
    plain = smoother.certify_batch(x, n0=10, n=200, alpha=0.01)
    for name in ("prediction", "radius", "p_lower", "counts0", "counts"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(result, name))
    assert plain.radii == ()
    assert plain.certified.shape == (3, 0)
    assert smoother.certify_batch(x[:0], n0=10, n=200, radii=(0.25, 0.5)).certified.shape == (0, 2)
    far = smoother.certify_batch(x, n0=10, n=200, alpha=0.01, radii=[0.25, 10, math.inf])
    assert far.certified.tolist() == [[True, False, False], [False] * 3, [True, False, False]]


def test_radius_reached_exactly_is_certified(certificates):
    reached = float(certificates.radius[0])
    radii = (reached, math.nextafter(reached, 1), math.nextafter(reached, 0))
    result = dataclasses.replace(certificates, radii=radii)
    assert result.certified[0].tolist() == [True, False, True]


def test_abstention_is_certified_at_no_radius(smoother, x):
    result = smoother.certify_batch(x, n0=10, n=200, alpha=0.01, radii=(0.0, -0.0, 0.5))
    assert result.prediction.tolist() == [0, ABSTAIN, 2]
    assert result.certified[:, :2].tolist() == [[True, True], [False, False], [True, True]]
    assert result.certified.dtype == np.bool_


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"radii": (0.25, -0.1)}, InputError, "radii: expected numbers of at least 0, got -0.1"),
        ({"radii": (math.nan,)}, InputError, "radii: expected numbers of at least 0, got nan"),
        ({"radii": ("far",)}, InputTypeError, "radii: expected a sequence of numbers"),
        ({"radii": 0.25}, InputTypeError, "radii: expected a sequence of numbers"),
        ({"method": "adaptive"}, InputError, "method: expected .*fixed.*, got 'adaptive'"),
        ({"method": None}, InputError, "method: expected .*fixed.*, got None"),
    ],
)
def test_invalid_radii_and_methods_are_rejected(x, arguments, error, match):
    def never(batch):
        raise AssertionError("the model must not run")

    with pytest.raises(error, match=match):
        RandomizedSmoothing(never, 3, 0.25).certify_batch(x, n0=10, n=200, **arguments)

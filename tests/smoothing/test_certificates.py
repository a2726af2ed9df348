"""Certificates and predictions: fields, conversions and certification at given radii."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from pyrobust import ABSTAIN, Certificates, Predictions, RandomizedSmoothing


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
def test_results_are_frozen_and_round_trip_through_json(request, name):
    result = request.getfixturevalue(name)
    values = result.to_dict()
    fields = [field.name for field in dataclasses.fields(result)]
    again = json.loads(json.dumps(values))
    assert list(again) == list(values) == fields
    for field in fields:
        value = getattr(result, field)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(np.array(again[field], dtype=value.dtype), value)
        else:
            assert (tuple(again[field]) if isinstance(value, tuple) else again[field]) == value
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del result.prediction


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
    options = {"n0": 10, "n": 200, "alpha": 0.01}
    result = smoother.certify_batch(x, method="fixed", radii=(0.0, -0.0, 0.25, 0.5, 10, math.inf), **options)
    assert [type(radius) for radius in result.radii] == [float] * 6
    assert result.certified.dtype == np.bool_
    clear = [True, True, True, False, False, False]
    assert result.prediction.tolist() == [0, ABSTAIN, 2]
    assert result.certified.tolist() == [clear, [False] * 6, clear]  # an abstention at no radius, not even at 0
    plain = smoother.certify_batch(x, **options)
    for name in ("prediction", "radius", "p_lower", "counts0", "counts"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(result, name))
    assert (plain.method, plain.radii, plain.certified.shape) == ("fixed", (), (3, 0))
    assert smoother.certify_batch(x[:0], n0=10, n=200, radii=(0.25, 0.5)).certified.shape == (0, 2)


def test_radius_reached_exactly_is_certified(certificates):
    reached = float(certificates.radius[0])
    radii = (reached, math.nextafter(reached, 1), math.nextafter(reached, 0))
    result = dataclasses.replace(certificates, radii=radii)
    assert result.certified[0].tolist() == [True, False, True]

"""Votes, certificates and predictions of one smoother: batches, forms of images, what follows from counts, fields."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyrobust import ABSTAIN, Certificates, Predictions, RandomizedSmoothing
from pyrobust.errors import InputError
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.runner import Runner
from pyrobust.smoothing.sampling import Sampler

X = torch.tensor([[0.3, 0.0, 0.1], [0.0, 0.2, 0.1], [0.0, 0.0, 0.0], [-0.4, 0.1, 0.0]])
INDEX = (7, 2**32 - 1, 0, 40)


def model(x):
    return torch.stack([x[:, 0], x[:, 1]], dim=1)


def votes_one_by_one(runs, stages):
    counts = torch.zeros(len(X), 3, dtype=torch.int64)
    for (row, image, first, number), stage in zip(runs, stages, strict=True):
        for sample in range(first, first + number):
            noisy = sample_noise(X, [(row, image, sample, 1)], sigma=0.5, stage=stage, seed=3)
            counts[row, int(model(noisy)[0].argmax())] += 1
    return counts


@pytest.mark.usefixtures("unprobed")
@given(
    runs=st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 50), st.integers(1, 20), st.sampled_from(["select", "estimate", "attack"])
        ),
        max_size=8,
    ),
    batch_size=st.integers(1, 40),
    block=st.sampled_from([1, 700, 1 << 18]),
)
def test_votes_do_not_depend_on_batches_or_blocks(runs, batch_size, block):
    """Runs in any order, of stages in any order, with rows that occur more than once."""
    stages = [stage for *_, stage in runs]
    runs = [(row, INDEX[row], first, number) for row, first, number, _ in runs]
    seen, logits = [], torch.zeros(40, 2)

    def watched(x):
        seen.append((len(x), x.data_ptr() % 64))
        logits[: len(x)] = model(x)  # memory that the model uses again
        return logits[: len(x)]

    sampler = Sampler(Runner(watched, batch_size=batch_size), 2, 0.5, "gaussian", 3, None)
    counts, reported = torch.full((len(X), 3), 5), []  # votes are added to those that are there
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyrobust.smoothing.blocks._BLOCK_BYTES", block)
        sampler.count(X, runs, stages, counts, reported.append)
    total = sum(number for _, _, _, number in runs)
    assert torch.equal(counts - 5, votes_one_by_one(runs, stages))
    sizes = [batch_size] * (total // batch_size) + [total % batch_size] * (total % batch_size > 0)
    assert seen == [(size, 0) for size in sizes]  # where memory begins, a kernel may choose another order of sums
    assert reported == [min(batch_size * (i + 1), total) for i in range(len(sizes))]


def test_a_model_may_use_the_memory_of_its_logits_again():
    """As captured CUDA graphs do: the row probe's own passes must not change what is counted or compared."""
    kept = torch.zeros(64, 2)

    def buffered(x):
        kept[: len(x)] = model(x)
        return kept[: len(x)]

    x = X[:, None].repeat(1, 8, 1).reshape(-1, 3)
    votes = []
    for f in (model, buffered):
        smoother = RandomizedSmoothing(f, 2, 0.5, batch_size=64, grid=None)
        votes.append([smoother.votes(x, n=200, indices=range(len(x))) for _ in range(3)])
    assert np.array_equal(*votes)


@pytest.mark.usefixtures("unprobed")
def test_batch_size_argument_applies_to_one_call():
    seen = []

    def watched(x):
        seen.append(len(x))
        return model(x)

    smoother, options = RandomizedSmoothing(watched, 2, 0.5, batch_size=30), {"n0": 20, "n": 50}
    smoother.certify(X[0], batch_size=20, **options)
    smoother.certify(X[0], **options)
    smoother.certify(X[0], batch_size=1000, **options)
    with pytest.raises(InputError):
        smoother.certify(X[0], n0=0, batch_size=20)
    smoother.certify(X[0], **options)
    assert seen == [20, 20, 20, 10, 30, 30, 10, 70, 30, 30, 10]


def test_progress_counts_every_sample_once(capsys):
    calls = []
    smoother, x = RandomizedSmoothing(model, 2, 0.5, batch_size=32), torch.rand(4, 3)
    smoother.certify_batch(x, n0=10, n=30, progress=lambda *call: calls.append(call))
    done, total = zip(*calls, strict=True)
    assert set(total) == {160}
    assert list(done) == sorted(set(done))
    assert done[-1] == 160
    smoother.predict_batch(x, n=30, progress=lambda *call: calls.append(call))
    assert calls[-1] == (120, 120)
    smoother.certify_batch(x, n0=5, n=10, progress=True)
    assert capsys.readouterr().out == ""


def test_model_may_modify_its_input():
    def emptying(batch):
        logits = model(batch)
        batch.zero_()
        return logits

    before = X.clone()
    clean, emptied = (RandomizedSmoothing(f, 2, 0.5, batch_size=10).votes(X, n=100) for f in (model, emptying))
    np.testing.assert_array_equal(emptied, clean)
    assert torch.equal(X, before)


def elements(batch):
    return batch.flatten(1)[:, :4]


def images(count=5):
    return torch.rand(count, 3, 5, 4, generator=torch.Generator().manual_seed(4))


def test_images_of_any_layout_and_float_dtype():
    smoother = RandomizedSmoothing(elements, 4, 0.5, batch_size=30)
    x = images()
    expected = smoother.votes(x, n=40)
    strided = torch.rand(5, 3, 10, 4)
    strided[:, :, ::2] = x
    np.testing.assert_array_equal(smoother.votes(strided[:, :, ::2], n=40), expected)
    np.testing.assert_array_equal(smoother.votes(x.to(memory_format=torch.channels_last), n=40), expected)
    np.testing.assert_array_equal(smoother.votes(x.half(), n=40), smoother.votes(x.half().float(), n=40))
    with torch.inference_mode():
        np.testing.assert_array_equal(smoother.votes(x + 0, n=40), expected)


# --- certificates


def test_certificates_follow_from_the_counts():
    n0, n, alpha, sigma = 20, 150, 0.01, 0.4
    smoother = RandomizedSmoothing(elements, 4, sigma, seed=5)
    result = smoother.certify_batch(images(24), n0=n0, n=n, alpha=alpha)
    abstained = 0
    for i in range(24):
        top = int(np.argmax(result.counts0[i, :4]))
        k = int(result.counts[i, top])
        p = stats.beta.ppf(alpha, k, n - k + 1) if k else 0.0
        assert result.p_lower[i] == pytest.approx(p, rel=1e-9, abs=1e-12)
        if p <= 0.5:
            assert (result.prediction[i], result.radius[i]) == (ABSTAIN, 0.0)
            abstained += 1
        else:
            assert result.prediction[i] == top
            assert result.radius[i] == pytest.approx(sigma * stats.norm.ppf(p), rel=1e-9)
    assert 0 < abstained < 24


def test_single_example_equals_a_batch_of_one():
    smoother, x, index = RandomizedSmoothing(elements, 4, 0.4, seed=1, batch_size=50), images(), range(5, 10)
    result = smoother.certify_batch(x, n0=10, n=100, alpha=0.05, indices=index)
    voted = smoother.predict_batch(x, n=100, alpha=0.05, indices=index)
    for i in range(5):
        single = smoother.certify(x[i], n0=10, n=100, alpha=0.05, index=index[i])
        label = smoother.predict(x[i], 100, 0.05, index=index[i])
        assert (*single, label) == (result.prediction[i], result.radius[i], voted.prediction[i])
        assert [type(value) for value in (*single, label)] == [int, float, int]


# --- predictions


def predict_from(counts, alpha=0.05):
    """Predictions from given votes [B, K + 1], with the same total in each row."""
    counts = np.asarray(counts, dtype=np.int64)
    n = int(counts[0].sum())
    assert (counts.sum(1) == n).all()
    smoother = RandomizedSmoothing(lambda x: x, counts.shape[1] - 1, 1.0, grid=None)

    def votes(x, noise, samples, report, *, one_example):
        assert samples == [("predict", n)]
        return [counts]

    smoother.sampler.votes = votes
    return smoother.predict_batch(torch.zeros(len(counts), 1), n=n, alpha=alpha)


def test_predictions_follow_from_the_sign_test_of_the_top_two_classes():
    counts = [[90, 10, 0, 0], [10, 90, 0, 0], [0, 10, 90, 0], [55, 45, 0, 0], [34, 33, 33, 0], [40, 20, 0, 40]]
    counts += [[45, 0, 25, 30], [50, 50, 0, 0], [10, 5, 0, 85], [0, 0, 0, 100], [52, 0, 0, 48], [100, 0, 0, 0]]
    result = predict_from(counts)
    for row, p in zip(counts, result.p_value, strict=True):
        first, second = sorted(row, reverse=True)[:2]
        assert p == pytest.approx(stats.binomtest(first, first + second, 0.5).pvalue, rel=1e-9)
    # Samples without a winner abstain where they lead, and where they are a close second.
    assert result.prediction.tolist() == [0, 1, 2, *[ABSTAIN] * 8, 0]


def test_single_sample_is_never_significant():
    result = predict_from([[1, 0, 0]], alpha=0.999)
    assert (result.p_value.tolist(), result.prediction.tolist()) == ([1.0], [ABSTAIN])
    smoother = RandomizedSmoothing(lambda x: x, 2, 0.5)
    assert smoother.predict(torch.tensor([10.0, -10.0]), 1000, 0.001) == 0


def test_p_value_equal_to_alpha_is_significant():
    p = float(predict_from([[5, 0, 0]]).p_value[0])
    assert 1 / 16 <= p <= 1 / 16 * (1 + 1e-14)  # 2 / 32, rounded up
    assert predict_from([[5, 0, 0]], alpha=p).prediction.tolist() == [0]
    assert predict_from([[5, 0, 0]], alpha=np.nextafter(p, 0)).prediction.tolist() == [ABSTAIN]


# --- fields and conversions


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
    parameters = {"sigma", "noise", "norm", "n0", "n", "alpha", "seed", "radii", "guarantee", "method", "hybrid"}
    assert set(frame.attrs) == parameters | {"rival_upper", "grid", "delta", "keys"}
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

"""Certificates follow from the counts; single examples, batch sizes, progress, and layouts of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from pyrobust import ABSTAIN, RandomizedSmoothing
from pyrobust.errors import InputError


def elements(batch):
    """Return the first four elements as logits."""
    return batch.flatten(1)[:, :4]


def images(count=5):
    return torch.rand(count, 3, 5, 4, generator=torch.Generator().manual_seed(4))


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
    smoother = RandomizedSmoothing(elements, 4, 0.4, seed=1, batch_size=50)
    x = images()
    result = smoother.certify_batch(x, n0=10, n=100, alpha=0.05, indices=[5, 6, 7, 8, 9])
    voted = smoother.predict_batch(x, n=100, alpha=0.05, indices=[5, 6, 7, 8, 9])
    for i in range(5):
        single = smoother.certify(x[i], n0=10, n=100, alpha=0.05, index=5 + i)
        assert single == (result.prediction[i], result.radius[i])
        assert [type(value) for value in single] == [int, float]
        label = smoother.predict(x[i], 100, 0.05, index=5 + i)
        assert label == voted.prediction[i]
        assert type(label) is int


@pytest.mark.usefixtures("unprobed")
def test_batch_size_argument_applies_to_one_call():
    seen = []

    def model(batch):
        seen.append(len(batch))
        return batch[:, :2]

    smoother = RandomizedSmoothing(model, 2, 0.5)
    smoother.certify(torch.rand(3), n0=20, n=50, alpha=0.01, batch_size=20)
    assert seen == [20, 20, 20, 10]
    seen.clear()
    smoother.certify(torch.rand(3), n0=20, n=50, alpha=0.01)
    assert seen == [70]
    with pytest.raises(InputError):
        smoother.certify(torch.rand(3), n0=0, batch_size=20)
    given = RandomizedSmoothing(model, 2, 0.5, batch_size=30)
    given.certify(torch.rand(3), n0=20, n=50, alpha=0.01, batch_size=1000)
    seen.clear()
    given.certify(torch.rand(3), n0=20, n=50, alpha=0.01)
    assert seen == [30, 30, 10]


def test_progress_counts_every_sample_once(capsys):
    calls = []
    smoother = RandomizedSmoothing(lambda x: x[:, :2], 2, 0.5, batch_size=32)
    smoother.certify_batch(torch.rand(4, 3), n0=10, n=30, progress=lambda done, total: calls.append((done, total)))
    assert [total for _, total in calls] == [160] * len(calls)
    done = [done for done, _ in calls]
    assert done == sorted(set(done))
    assert done[-1] == 160
    calls.clear()
    smoother.predict_batch(torch.rand(4, 3), n=30, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (120, 120)
    smoother.certify_batch(torch.rand(2, 3), n0=5, n=10, progress=True)
    assert capsys.readouterr().out == ""


def test_model_may_modify_its_input():
    def model(batch):
        logits = batch[:, :3].clone()
        batch.zero_()
        return logits

    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(0))
    smoother = RandomizedSmoothing(model, 3, 0.5, batch_size=10)
    before = x.clone()
    clean = RandomizedSmoothing(lambda batch: batch[:, :3], 3, 0.5, batch_size=10).votes(x, n=100)
    np.testing.assert_array_equal(smoother.votes(x, n=100), clean)
    assert torch.equal(x, before)


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

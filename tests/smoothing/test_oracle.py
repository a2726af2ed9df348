"""certify_batch and predict_batch against a plain implementation: one image at a time, argmax, bincount."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from pyrobust import ABSTAIN, RandomizedSmoothing, reference
from pyrobust.errors import InputError

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
SEED = 2**63 + 11


def conv_net(classes=4, dtype=torch.float32):
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 5 * 4, classes)
    )
    net[1].running_mean.uniform_(-0.1, 0.1)
    net[-1].weight.data *= 5.0
    return net.to(dtype).eval()


def images(count=5, dtype=torch.float32):
    return torch.rand(count, 3, 5, 4, generator=torch.Generator().manual_seed(4)).to(dtype)


@torch.no_grad()
def plain_votes(model, x, indices, n, *, classes, sigma, stage, noise="gaussian", normalize=None, seed=SEED, **format):
    """Votes [B, K + 1], one image at a time."""
    rows = []
    for i, index in enumerate(indices):
        batch = reference.sample_noise(
            x[i : i + 1],
            [(0, index, 0, n)],
            sigma=sigma,
            noise=noise,
            stage=stage,
            seed=seed,
            normalize=normalize,
            **format,
        )
        logits = model(batch)
        lost = logits.isnan().any(1) | (logits == torch.inf).any(1)
        winners = torch.where(lost, classes, logits.argmax(1))
        rows.append(torch.bincount(winners, minlength=classes + 1).numpy())
    return np.stack(rows)


NORMS = {"gaussian": "l2", "uniform": "l1", "laplace": "l1"}


@pytest.mark.parametrize("batch_size", [1, 13, 64, 1000, None])
@pytest.mark.parametrize("noise", ["gaussian", "uniform", "laplace"])
def test_counts_equal_the_plain_loop(noise, batch_size):
    model, x, n0, n, indices = conv_net(), images(), 9, 61, [7, 0, 2**32 - 1, 123456, 8]
    smoother = RandomizedSmoothing(
        model, 4, 0.5, noise=noise, norm=NORMS[noise], seed=SEED, batch_size=batch_size, device="cpu"
    )
    result = smoother.certify_batch(x, n0=n0, n=n, alpha=0.05, indices=indices)
    plain = {"classes": 4, "sigma": 0.5, "noise": noise}
    counts0 = plain_votes(model, x, indices, n0, stage="select", **plain)
    counts = plain_votes(model, x, indices, n, stage="estimate", **plain)
    np.testing.assert_array_equal(result.counts0, counts0)
    np.testing.assert_array_equal(result.counts, counts)
    assert len(np.unique(counts[:, :4].argmax(1))) > 1, "the test's net must not be constant"
    assert result.indices.tolist() == indices

    voted = smoother.predict_batch(x, n=n, alpha=0.05, indices=indices)
    np.testing.assert_array_equal(voted.counts, plain_votes(model, x, indices, n, stage="predict", **plain))


def test_certificates_follow_from_the_counts():
    n0, n, alpha, sigma = 20, 150, 0.01, 0.4
    smoother = RandomizedSmoothing(conv_net(), 4, sigma, seed=5)
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


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_with_memory_formats_dtypes_and_normalisation(dtype, memory_format):
    model, x, indices = conv_net(dtype=dtype), images(dtype=dtype), [3, 1, 4, 15, 9]
    normalize = (MEAN, STD)
    smoother = RandomizedSmoothing(
        model, 4, 0.25, normalize=normalize, seed=SEED, batch_size=16, memory_format=memory_format
    )
    expected = plain_votes(
        model,
        x,
        indices,
        50,
        classes=4,
        sigma=0.25,
        stage="estimate",
        normalize=normalize,
        dtype=dtype,
        memory_format=memory_format,
    )
    np.testing.assert_array_equal(smoother.votes(x, n=50, indices=indices), expected)


def test_normalize_equals_a_layer_in_front_of_the_model():
    class Normalise(nn.Module):
        def forward(self, x):
            return (x - torch.tensor(MEAN).reshape(3, 1, 1)) / torch.tensor(STD).reshape(3, 1, 1)

    model, x = conv_net(), images()
    inside = RandomizedSmoothing(nn.Sequential(Normalise(), model), 4, 0.25, batch_size=32)
    outside = RandomizedSmoothing(model, 4, 0.25, batch_size=32, normalize=(torch.tensor(MEAN), torch.tensor(STD)))
    plain = RandomizedSmoothing(model, 4, 0.25, batch_size=32)
    counts = inside.votes(x, n=200)
    np.testing.assert_array_equal(outside.votes(x, n=200), counts)
    assert (plain.votes(x, n=200) != counts).any()


def test_autocast_agrees_with_torch():
    model, x = conv_net(), images()
    smoother = RandomizedSmoothing(model, 4, 0.5, dtype=torch.bfloat16, seed=SEED, batch_size=25)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = plain_votes(model, x, range(5), 75, classes=4, sigma=0.5, stage="estimate", dtype=torch.bfloat16)
    counts = smoother.votes(x, n=75, indices=range(5))
    # The model's bfloat16 arithmetic may depend on the batch, and ties are common at 8 bits of precision.
    assert np.abs(counts - expected).sum() <= 8
    assert counts.sum() == 5 * 75


def test_single_example_equals_a_batch_of_one():
    smoother = RandomizedSmoothing(conv_net(), 4, 0.4, seed=1, batch_size=50)
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


@pytest.mark.usefixtures("unprobed")
def test_samples_of_several_images_share_full_batches():
    seen = []

    def model(batch):
        seen.append(len(batch))
        return batch[:, :2]

    RandomizedSmoothing(model, 2, 0.5, batch_size=64).certify_batch(torch.rand(10, 3), n0=10, n=33, alpha=0.01)
    assert seen == [64] * 6 + [46]


def test_progress_counts_every_sample_once():
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


def test_progress_bar_stays_off_standard_output(capsys):
    RandomizedSmoothing(lambda x: x[:, :2], 2, 0.5).certify_batch(torch.rand(2, 3), n0=5, n=10, progress=True)
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
    smoother = RandomizedSmoothing(conv_net(), 4, 0.5, batch_size=30)
    x = images()
    expected = smoother.votes(x, n=40)
    strided = torch.rand(5, 3, 10, 4)
    strided[:, :, ::2] = x
    np.testing.assert_array_equal(smoother.votes(strided[:, :, ::2], n=40), expected)
    np.testing.assert_array_equal(smoother.votes(x.to(memory_format=torch.channels_last), n=40), expected)
    np.testing.assert_array_equal(smoother.votes(x.clone().requires_grad_(), n=40), expected)
    np.testing.assert_array_equal(smoother.votes(x.double(), n=40), expected)
    np.testing.assert_array_equal(smoother.votes(x.half(), n=40), smoother.votes(x.half().float(), n=40))
    with torch.inference_mode():
        np.testing.assert_array_equal(smoother.votes(x + 0, n=40), expected)

"""Certificates and predictions on a grid: fields, correction by delta, and the classifier that they cover."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust import ABSTAIN, RandomizedSmoothing
from pyrobust.smoothing import certified_radius, sampling
from pyrobust.smoothing.grid import lower_by, sample_delta
from pyrobust.smoothing.prediction import decide, joint_delta
from pyrobust.smoothing.sequential import CertificationRule, ImageSequence
from pyrobust.stats import binomial_test, clopper_pearson_lower

BYTE = Fraction(1, 255)
X = torch.randint(256, (5, 3, 4, 6), generator=torch.Generator().manual_seed(4)).float() / 255


def first_three(batch):
    return batch.flatten(1)[:, :3]


class Recorder:
    """Model that records its inputs and computes nothing."""

    def __init__(self):
        self.seen = []

    def __call__(self, batch):
        self.seen.append(batch.clone(memory_format=torch.contiguous_format))
        return first_three(batch)


def recorded_samples(batch_size, x=X, *, n=45, **options):
    """Return the sampled rows without padding, in the order of the samples, and the certificates."""
    recorder = Recorder()
    smoother = RandomizedSmoothing(recorder, 3, 0.3, grid="1/255", seed=3, batch_size=batch_size, **options)
    result = smoother.certify_batch(x, n0=20, n=n, alpha=0.05)
    assert {len(batch) for batch in recorder.seen} == {smoother.runner.batch_size(tuple(x.shape[1:]))}
    total = len(x) * (20 + n)
    assert len(recorder.seen) == -(-total // len(recorder.seen[0]))
    return torch.cat(recorder.seen)[:total], result


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_samples_have_the_same_bits_for_every_batch_size(dtype):
    options = {"dtype": dtype, "normalize": ([0.1, 0.2, 0.3], [0.5, 0.4, 0.3])}
    expected, base = recorded_samples(64, **options)
    for batch_size in (7, 1000):
        rows, result = recorded_samples(batch_size, memory_format=torch.channels_last, **options)
        assert torch.equal(rows, expected)
        np.testing.assert_array_equal(result.counts, base.counts)
        np.testing.assert_array_equal(result.counts0, base.counts0)
        np.testing.assert_array_equal(result.radius, base.radius)


@pytest.mark.usefixtures("unprobed")
def test_last_batch_is_padded_with_uncounted_rows():
    recorder = Recorder()
    RandomizedSmoothing(recorder, 3, 0.3, grid=BYTE, batch_size=8).votes(X[:1], n=11)
    first, second = recorder.seen
    assert len(first) == len(second) == 8
    assert not torch.equal(second[2], second[1])
    assert all(torch.equal(row, second[2]) for row in second[3:])


@pytest.mark.usefixtures("unprobed")
def test_batches_of_one_example_divide_its_samples_evenly():
    recorder = Recorder()
    smoother = RandomizedSmoothing(recorder, 3, 0.25, grid="1/255", batch_size=256)
    x = torch.arange(12).view(3, 2, 2).float() / 255
    smoother.certify(x, n0=10, n=1000)  # 1,010 rows and two that pad
    smoother.predict(x, n=300)
    smoother.certify(x, n0=300, n=7, batch_size=100)
    assert [len(batch) for batch in recorder.seen] == [*[253] * 4, *[150] * 2, *[77] * 4]


# --- results


def test_results_state_their_guarantee():
    smoother = RandomizedSmoothing(first_three, 3, 0.3, grid="1/255")
    result, prediction = smoother.certify_batch(X, n0=5, n=100), smoother.predict_batch(X, n=100)
    assert (result.guarantee, result.grid) == (prediction.guarantee, prediction.grid) == ("grid", BYTE)
    assert 0 < result.delta < 1e-15
    assert 0 < prediction.delta < 1e-12
    exact = np.asarray(clopper_pearson_lower(result.counts[np.arange(5), result.counts0[:, :3].argmax(1)], 100, 0.001))
    assert (result.p_lower[exact > 0] < exact[exact > 0]).all()
    assert (result.p_lower >= exact - 1e-15).all()
    assert result.to_dict()["grid"] == "1/255"
    smoother = RandomizedSmoothing(first_three, 3, 0.3, grid=None)
    for plain in (smoother.certify_batch(X, n0=5, n=100), smoother.predict_batch(X, n=100)):
        assert (plain.guarantee, plain.grid, plain.delta) == ("real", None, 0.0)


def test_results_are_corrected_by_delta(monkeypatch):
    """Uses a delta of 0.01 per sample, because the real one is too small to see."""
    monkeypatch.setattr(sampling, "sample_delta", lambda sigma, step, elements: elements / 7200)
    smoother = RandomizedSmoothing(lambda x: torch.eye(3)[[0]].expand(len(x), 3), 3, 0.3, grid=BYTE)
    result = smoother.certify_batch(X, n0=5, n=1000, alpha=0.001)
    assert result.delta == 72 / 7200
    exact = float(clopper_pearson_lower(1000, 1000, 0.001))
    assert (result.p_lower <= exact - 0.01).all()
    np.testing.assert_allclose(result.p_lower, exact - 0.01, rtol=1e-12)
    np.testing.assert_array_equal(result.radius, certified_radius(result.p_lower, 0.3))
    certificates = smoother.certify_batch(X, n0=5, n=1000, alpha=0.001, method="sequential", radii=(0.25,))
    assert certificates.guarantee == "grid"
    assert certificates.delta == 0.01
    assert (certificates.p_lower < exact).all()
    prediction = smoother.predict_batch(X, n=10, alpha=0.15)
    assert prediction.delta == pytest.approx(0.1)
    np.testing.assert_allclose(prediction.p_value, float(binomial_test(10, 10)) + 0.1, rtol=1e-12)
    assert prediction.prediction.tolist() == [0] * 5
    assert smoother.predict_batch(X, n=10, alpha=0.1).prediction.tolist() == [ABSTAIN] * 5
    smoother.sampler.delta = lambda shape: 0.5
    assert smoother.certify_batch(X, n0=5, n=1000).prediction.tolist() == [ABSTAIN] * 5


def test_samples_in_the_tails_vote_for_no_class(monkeypatch):
    draw = sampling.draw_grid_noise

    def with_tails(out, tail, k, runs, *arguments):
        draw(out, tail, k, runs, *arguments)
        samples = [first + i for first, count in zip(runs[2::4], runs[3::4], strict=True) for i in range(count)]
        tail |= torch.tensor(samples) % 10 == 0

    monkeypatch.setattr(sampling, "draw_grid_noise", with_tails)
    smoother = RandomizedSmoothing(lambda x: torch.eye(3)[[1]].expand(len(x), 3), 3, 0.3, grid=BYTE, batch_size=7)
    result = smoother.certify_batch(X, n0=20, n=1000, alpha=0.001)
    assert result.counts0.tolist() == [[0, 18, 0, 2]] * 5
    assert result.counts.tolist() == [[0, 900, 0, 100]] * 5
    assert (result.p_lower < 0.9).all()
    # In a prediction they may all belong to the runner-up.
    assert smoother.predict_batch(X, n=20).p_value == pytest.approx(float(binomial_test(18, 20)))


def test_tails_count_for_the_runner_up():
    counts = np.array([[60, 30, 10], [60, 10, 30], [30, 10, 60], [100, 0, 0]])
    plain, conservative = (decide(counts, 0.5, tails=tails)[1] for tails in (False, True))
    for p, first, second in zip(conservative, (60, 60, 60, 100), (40, 40, 30, 0), strict=True):
        assert p == float(binomial_test(first, first + second))
    assert (conservative >= plain).all()
    assert decide(counts, 0.5, tails=True)[0].tolist() == [0, 0, ABSTAIN, 0]


def test_class_possibly_behind_the_runner_up_is_not_predicted():
    # The two-sided test is significant, but in favour of the runner-up with the samples without a winner.
    prediction, p_value = decide(np.array([[600, 500, 550], [400, 300, 100]]), 0.999, tails=True)
    assert prediction.tolist() == [ABSTAIN, ABSTAIN]
    assert p_value.tolist() == [1.0, 1.0]


@given(st.floats(0, 1), st.floats(0, 1))
def test_bound_is_lowered_by_at_least_delta(p, delta):
    lowered = float(lower_by(p, delta))
    assert lowered >= 0
    assert lowered == 0 or Fraction(lowered) <= Fraction(p) - Fraction(delta)
    assert lowered >= p - delta - 1e-15


def test_joint_delta_is_rounded_up():
    assert sample_delta(0.25, BYTE, 3072) >= 3072 * sample_delta(0.25, BYTE, 1) * (1 - 1e-12)
    assert Fraction(joint_delta(1e-20, 3)) > 3 * Fraction(1e-20)
    assert joint_delta(1e-5, 10**9) == 1.0


# --- sequential certification


def test_sequential_certification_on_a_grid():
    plain = RandomizedSmoothing(first_three, 3, 0.3, grid="auto", batch_size=64)
    options = {"n0": 20, "n": 3000, "method": "sequential", "radii": (0.1, 0.3)}
    certificates = plain.certify_batch(X, **options)
    assert (certificates.guarantee, certificates.grid) == ("grid", BYTE)
    assert certificates.delta == plain.on_grid_of(X).sampler.delta((3, 4, 6))
    again = RandomizedSmoothing(first_three, 3, 0.3, grid=BYTE, batch_size=7).certify_batch(X, **options)
    for name in ("counts0", "counts", "samples", "undecided", "p_lower", "radius", "prediction"):
        np.testing.assert_array_equal(getattr(certificates, name), getattr(again, name))
    assert len(set(certificates.samples.tolist())) > 1
    assert certificates.certified.any()


@pytest.mark.parametrize("two_class", [False, True])
def test_rule_corrects_by_delta(two_class):
    options = ((0.1,), 3, 0.3, "gaussian", "l2", 1000, 0.001, 0.0, two_class)
    exact, spent = CertificationRule(*options), CertificationRule(*options, 0.01)
    counts, top = np.array([[700, 180, 20, 100], [0, 1000, 0, 0]]), np.array([0, 1])
    start = np.tile([0.0, 1.0, 0.0, 1.0], (2, 1))
    plain, careful = exact.look(top, counts, start), spent.look(top, counts, start)
    np.testing.assert_array_equal(careful[:, :2], plain[:, :2])
    if two_class:
        # A sample without a winner may be in the tails, so it counts for the runner-up.
        moved = exact.look(top, np.array([[700, 280, 20, 0], [0, 1000, 0, 0]]), start)
        np.testing.assert_array_equal(careful[:, 2:], moved[:, 2:])
        assert careful[0, 3] > plain[0, 3]
    images = [ImageSequence(i, counts[i], counts[i], careful[i]) for i in range(2)]
    before, after = exact.results(images), spent.results(images)
    assert (after["p_lower"] <= before["p_lower"] - 0.01).all()
    np.testing.assert_allclose(after["p_lower"], before["p_lower"] - 0.01, rtol=1e-12)
    assert (after["radius"] < before["radius"]).all()
    if two_class:
        assert (after["rival_upper"] >= np.minimum(1.0, before["rival_upper"] + 0.01)).all()
    assert (spent.required >= exact.required + 0.01).all()


def test_reached_radius_is_certified():
    """At the limit that proves a radius and at the double below it, with the delta of a grid."""
    rule = CertificationRule((0.1, 0.3), 3, 0.3, "gaussian", "l2", 1000, 0.001, delta=1e-20)
    counts = np.array([1000, 0, 0, 0])
    for required, radius in zip(rule.required, rule.radii, strict=True):
        for p in (required, np.nextafter(required, 0)):
            limits = np.array([p, 1.0, 0.0, 1.0])
            reached = rule.reached(limits[None])[0]
            certified = rule.results([ImageSequence(0, counts, counts, limits)])["radius"][0]
            assert bool(reached[rule.radii.index(radius)]) == (p == required)
            assert (certified >= radius) >= (p == required)


# --- choice of the grid


def test_auto_detects_the_grid_of_each_call():
    smoother = RandomizedSmoothing(first_three, 3, 0.3, grid="auto", batch_size=32)
    declared = RandomizedSmoothing(first_three, 3, 0.3, grid=BYTE, batch_size=32)
    certificates, expected = (s.certify_batch(X, n0=5, n=50) for s in (smoother, declared))
    assert certificates.grid == BYTE
    np.testing.assert_array_equal(certificates.counts, expected.counts)
    sixteenths = torch.arange(72).reshape(1, 3, 4, 6) % 17 / 16
    assert smoother.certify_batch(sixteenths, n0=5, n=50).grid == Fraction(1, 16)
    assert smoother.predict_batch(sixteenths, n=50).grid == Fraction(1, 16)
    np.testing.assert_array_equal(smoother.votes(X, n=50), declared.votes(X, n=50))
    assert smoother.certify(X[0], n0=5, n=50) == declared.certify(X[0], n0=5, n=50)
    assert smoother.predict(X[0], 50) == declared.predict(X[0], 50)
    assert smoother.grid == "auto"


def test_float64_images_on_a_grid():
    """A float64 image on the grid is accepted for a float32 model, because the sums are formed in integers."""
    model = Recorder()
    smoother = RandomizedSmoothing(model, 3, 0.3, grid=BYTE, batch_size=40)
    exact = (X * 255).round().double() / 255
    np.testing.assert_array_equal(smoother.votes(exact, n=8), smoother.votes(X, n=8))
    assert torch.equal(model.seen[0], model.seen[1])


@pytest.mark.parametrize(
    ("x", "options"),
    [
        (X * 0.7, {}),  # on no usual grid
        (X.half(), {"dtype": torch.float32}),
        (X, {"sigma": 100.0}),  # too many steps of 1/255
        (X, {"noise": "laplace", "norm": "l1"}),
    ],
)
def test_the_default_falls_back_to_real_noise_with_one_warning(x, options, caplog):
    smoother = RandomizedSmoothing(first_three, 3, **({"sigma": 0.3} | options))
    for _ in range(2):
        assert smoother.certify_batch(x, n0=5, n=50).guarantee == "real"
    warnings = [record for record in caplog.records if record.name == "pyrobust.smoothing.smoother"]
    assert len(warnings) == ("noise" not in options)


def test_gpu_counts_equal_the_cpu(cuda):
    model = torch.nn.Flatten()
    options = {"grid": BYTE, "batch_size": 50, "seed": 5, "normalize": ([0.1, 0.2, 0.3], [0.5, 0.4, 0.3])}
    expected = RandomizedSmoothing(model, 72, 0.3, device="cpu", **options).certify_batch(X, n0=20, n=130)
    certificates = RandomizedSmoothing(model, 72, 0.3, device=cuda, **options).certify_batch(X, n0=20, n=130)
    np.testing.assert_array_equal(certificates.counts, expected.counts)
    np.testing.assert_array_equal(certificates.counts0, expected.counts0)

"""Distances in float64 against exact arithmetic, and their summaries."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobust import metrics
from pyrobust.errors import InputError, InputTypeError
from pyrobust.metrics.distance import is_within

NORMS = ["linf", "l2", "l1"]


def exact(x_adv, x, norm):
    """Distance of an example in rationals; only the root is rounded."""
    pairs = zip(x_adv.flatten().tolist(), x.flatten().tolist(), strict=True)
    differences = [abs(Fraction(a) - Fraction(b)) for a, b in pairs]
    if norm == "l2":
        return math.sqrt(sum(difference * difference for difference in differences))
    return float(max(differences) if norm == "linf" else sum(differences))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_distances_match_rationals(dtype):
    generator = torch.Generator().manual_seed(1)
    x, x_adv = (torch.rand(5, 3, 4, 4, generator=generator).to(dtype) for _ in range(2))
    for norm in NORMS:
        result = metrics.distances(x_adv, x, norm)
        assert result.dtype == torch.float64
        for i in range(5):
            assert float(result[i]) == pytest.approx(exact(x_adv[i], x[i], norm), rel=1e-14)


@given(st.lists(st.tuples(*[st.floats(0, 1, width=32)] * 2), min_size=1, max_size=20))
def test_linf_distance_never_exceeds_a_kept_budget(pairs):
    """Subtraction in float64 rounds monotonically: a true distance within a float64 epsilon stays within it."""
    x, x_adv = (torch.tensor([column], dtype=torch.float32) for column in zip(*pairs, strict=True))
    true = max(abs(Fraction(a) - Fraction(b)) for a, b in zip(x[0].tolist(), x_adv[0].tolist(), strict=True))
    epsilon = float(true)
    if Fraction(epsilon) < true:
        epsilon = math.nextafter(epsilon, math.inf)
    assert float(metrics.distances(x_adv, x)) <= epsilon


def test_distances_ignore_gradients_and_layout():
    x = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    x_adv = (x.contiguous() + 0.5).requires_grad_()
    result = metrics.distances(x_adv, x, "l1")
    assert not result.requires_grad
    assert result.tolist() == pytest.approx([24.0, 24.0], rel=1e-6)
    assert metrics.distances(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0,)


def test_large_sets_go_in_chunks(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    x, x_adv = torch.rand(13, 10, generator=generator), torch.rand(13, 10, generator=generator)
    whole = metrics.distances(x_adv, x, "l2")
    for chunk in (1, 7, 30, 1000):
        monkeypatch.setattr("pyrobust.metrics.distance._CHUNK", chunk)
        assert torch.equal(metrics.distances(x_adv, x, "l2"), whole)


def test_mean_over_the_successful():
    distances = torch.tensor([1.0, 2.0, math.inf, 6.0])
    assert metrics.mean_distance(distances, torch.tensor([True, True, False, True])) == 3.0
    assert math.isnan(metrics.mean_distance(distances, torch.zeros(4, dtype=torch.bool)))
    assert type(metrics.mean_distance(distances, torch.tensor([True, False, False, False]))) is float


def test_minimum_over_attacks():
    distances = torch.tensor([[0.5, 0.1, 0.3, 0.0], [0.4, 0.2, math.inf, 0.1]], dtype=torch.float64)
    success = torch.tensor([[True, False, False, True], [True, True, False, True]])
    assert metrics.minimum_perturbation(distances, success).tolist() == [0.4, 0.2, math.inf, 0.0]


def test_shares_of_quantiles_are_decimals():
    minimum = torch.tensor([math.inf, 0.3, 0.1, math.inf, 0.2], dtype=torch.float64)
    assert metrics.perturbation_quantiles(minimum, [0.0, 0.6, 0.61]) == [0.1, 0.3, math.inf]
    assert metrics.perturbation_quantiles(minimum) == [0.2, 0.3, math.inf]
    hundred = torch.arange(1.0, 101.0)
    assert metrics.perturbation_quantiles(hundred, [0.07, 0.14, 0.29, 0.57]) == [7.0, 14.0, 29.0, 57.0]


@given(st.lists(st.floats(0, 1) | st.just(math.inf), min_size=1, max_size=40), st.integers(1, 64))
def test_quantiles_match_numpy(values, eighths):
    share = eighths / 64  # exact in float64
    result = metrics.perturbation_quantiles(torch.tensor(values, dtype=torch.float64), [share])
    assert result == [np.quantile(np.array(values), share, method="inverted_cdf")]


@given(data=st.data(), norm=st.sampled_from(NORMS), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_is_within_is_exact(data, norm, dtype):
    width = 32 if dtype == torch.float32 else 64
    numbers = st.floats(-4, 4, width=width) | st.sampled_from([0.0, 0.25, 2.0**-30, 3.0])
    size = data.draw(st.integers(1, 4))
    a, b = (torch.tensor([data.draw(st.lists(numbers, min_size=size, max_size=size))], dtype=dtype) for _ in range(2))
    delta = [abs(Fraction(p) - Fraction(q)) for p, q in zip(a[0].tolist(), b[0].tolist(), strict=True)]
    near = float(metrics.distances(a, b, norm)[0])
    radius = data.draw(st.sampled_from([near, math.nextafter(near, 9), max(0.0, math.nextafter(near, -9)), 2 * near]))
    exact = Fraction(radius)
    inside = {
        "linf": max(delta) <= exact,
        "l1": sum(delta) <= exact,
        "l2": sum(z * z for z in delta) <= exact * exact,
    }[norm]
    assert is_within(a, b, norm, torch.tensor([radius], dtype=torch.float64)).tolist() == [inside]


def test_bad_pairs():
    good = torch.zeros(2, 3)
    for x_adv, x, norm, error, match in [
        (good, good, "l3", InputError, "norm: expected one of linf, l2, l1, l0, got 'l3'"),
        (good, good.long(), "l2", InputTypeError, "x: expected a float tensor, got torch.int64"),
        (good[:1], good, "l2", InputError, r"x_adv: expected x's shape and device, \(2, 3\)"),
        (good[0], good[0], "l2", InputError, r"x_adv: expected a batch \[N, ...\]"),
        (good[:, :0], good[:, :0], "l2", InputError, r"x_adv: expected a batch \[N, ...\]"),
        (good + math.nan, good, "linf", InputError, "x_adv: expected finite values"),
        (good, good + math.inf, "linf", InputError, "x: expected finite values"),
    ]:
        with pytest.raises(error, match=match):
            metrics.distances(x_adv, x, norm)


def test_bad_distances():
    two, true = torch.zeros(2), torch.tensor([True, True])
    for distances, success, error, match in [
        (two.long(), true, InputTypeError, "distances: expected a float tensor"),
        (two, true.long(), InputTypeError, "success: expected bool, got torch.int64"),
        (two, true[:1], InputError, r"success: expected the shape of distances, \(2,\)"),
        (two[:0], true[:0], InputError, "distances: expected at least one example"),
        (two * math.nan, ~true, InputError, "at least 0, .* got nan"),
        (two - 0.5, ~true, InputError, "at least 0, .* got -0.5"),
        (two + math.inf, true, InputError, "finite where success is True, got inf"),
    ]:
        for function in (metrics.mean_distance, metrics.minimum_perturbation):
            with pytest.raises(error, match=match):
                function(distances, success)
    with pytest.raises(InputError, match=r"distances: expected \[A, N\]"):
        metrics.minimum_perturbation(two, true)


def test_bad_quantiles():
    for minimum, q, error, match in [
        (torch.tensor([1]), [0.5], InputTypeError, "minimum: expected a float tensor, got torch.int64"),
        (torch.zeros(0), [0.5], InputError, r"minimum: expected shape \[N\]"),
        (torch.zeros(2, 2), [0.5], InputError, r"minimum: expected shape \[N\]"),
        (torch.tensor([math.nan]), [0.5], InputError, "minimum: expected numbers of at least 0"),
        (torch.tensor([-1.0]), [0.5], InputError, "minimum: expected numbers of at least 0"),
        (torch.zeros(2), [1.1], InputError, r"q: expected shares in \[0, 1\], got 1.1"),
        (torch.zeros(2), [math.nan], InputError, r"q: expected shares in \[0, 1\], got nan"),
        (torch.zeros(2), 0.5, InputTypeError, "q: expected a sequence of numbers"),
    ]:
        with pytest.raises(error, match=match):
            metrics.perturbation_quantiles(minimum, q)


def test_arrays_and_lists_have_exact_distances_too() -> None:
    x, x_adv = [[0.0, 0.0]], [[3.0, -4.0]]
    for norm, distance in (("linf", 4.0), ("l2", 5.0), ("l1", 7.0), ("l0", 2.0)):
        for a, b in ((x_adv, x), (np.array(x_adv), np.array(x)), (torch.tensor(x_adv, requires_grad=True), x)):
            assert metrics.distances_above(a, b, norm).tolist() == [distance]
            assert is_within(a, b, norm, torch.tensor([distance]).double()).tolist() == [True]
    with pytest.raises(InputError, match="non-empty examples"):
        metrics.distances(torch.zeros(0, 0), torch.zeros(0, 0), "linf")


def test_distances_that_overflow() -> None:
    largest = float(np.finfo(np.float64).max)
    x, x_adv = (torch.tensor([row], dtype=torch.float64) for row in ([-largest, 0.0], [largest, 1.0]))
    for norm in ("linf", "l2", "l1"):
        assert metrics.distances_above(x_adv, x, norm).tolist() == [math.inf]
        assert is_within(x_adv, x, norm, torch.tensor([largest], dtype=torch.float64)).tolist() == [False]
        assert is_within(x_adv, x, norm, torch.tensor([math.inf]).double()).tolist() == [True]
    x, x_adv = (
        torch.zeros(1, 2).double(),
        torch.full((1, 2), 1e200, dtype=torch.float64),
    )  # squares overflow, the distance does not
    assert metrics.distances_above(x_adv, x, "l2").item() == pytest.approx(math.sqrt(2) * 1e200)
    for epsilon, within in ((1.4e200, False), (1.42e200, True)):
        assert is_within(x_adv, x, "l2", torch.tensor([epsilon], dtype=torch.float64)).tolist() == [within]
    ten = torch.full((1, 10), 1e308, dtype=torch.float64)
    assert metrics.distances_above(ten, torch.zeros_like(ten), "l1").tolist() == [math.inf]

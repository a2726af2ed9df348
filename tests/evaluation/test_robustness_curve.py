"""Robustness curves of hand-made attacks with known curves, of broken ones, of invalid arguments, and of PGD."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attack_runs import digits, images, sign_model

from pyrobust.attacks import BIM, PGD, AdversarialAttack
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.robustness_curve import compute_robustness_curve, robustness_curve
from pyrobust.metrics import estimate_rate
from pyrobust.zoo import load_model

GRID = [0.0, 0.1, 0.2, 0.3, 0.4]


class Point(AdversarialAttack):
    """The optimal linf attack on ``sign_model``, for one epsilon."""

    calls: list

    def generate(self, x, y, targeted=False, target_labels=None):
        self.calls.append((self.epsilon, len(x)))
        return x + self.project(-self.epsilon * torch.ones_like(x), x)


class Batch(AdversarialAttack):
    """The optimal attack with an epsilon for each example."""

    calls: list

    def generate(self, x, y, targeted=False, target_labels=None, *, epsilon=None, indices=None):
        self.calls.append((epsilon, indices))
        assert epsilon.dtype == torch.float64
        assert indices.dtype == torch.int64
        step = torch.zeros_like(x)
        step[:, 0] = -epsilon.float()
        # rounding toward x keeps the float64 budget
        x_adv = (x + step).clamp(0, 1)
        return torch.where((x.double() - x_adv.double()) > epsilon[:, None], x_adv.nextafter(x), x_adv)


@pytest.fixture(params=[Point, Batch], ids=["by point", "by example"])
def attack(request):
    request.param.calls = []
    return request.param


def test_the_curve_worked_by_hand(attack):
    x, y = images([0.05, 0.15, 0.25, 0.45, -0.1])
    seen = []
    curve = robustness_curve(
        attack, sign_model, x, y, GRID, alpha=0.1, progress=lambda done, total: seen.append((done, total))
    )
    assert curve.counts.tolist() == [4, 3, 2, 1, 1]
    assert curve.robust_accuracy.tolist() == [0.8, 0.6, 0.4, 0.2, 0.2]
    assert curve.broken_epsilon.tolist() == [0.1, 0.2, 0.3, math.inf, 0.0]
    assert (curve.n, curve.attack, curve.norm, curve.forwards) == (5, attack.__name__, "linf", None)
    for i, count in enumerate(curve.counts.tolist()):
        rate = estimate_rate(count, 5, 0.1)
        assert (curve.lower[i], curve.upper[i]) == (rate.lower, rate.upper)
    assert seen[0] == (1, 5)  # the one that is wrong from the start
    assert seen[-1] == (5, 5)
    assert seen == sorted(seen)
    if attack is Point:  # only examples that are still right are attacked
        assert Point.calls == [(0.1, 4), (0.2, 3), (0.3, 2), (0.4, 1)]
    values = json.loads(json.dumps(curve.to_dict()))
    assert (values["epsilons"], values["alpha"]) == (GRID, 0.1)
    assert values["robust_accuracy"] == curve.robust_accuracy.tolist()
    assert values["broken_epsilon"] == [0.1, 0.2, 0.3, math.inf, 0.0]
    pytest.importorskip("pandas")
    frame = curve.to_pandas()
    assert list(frame.columns) == ["epsilon", "robust_accuracy", "counts", "lower", "upper"]
    assert frame["epsilon"].tolist() == GRID
    assert frame["counts"].tolist() == [4, 3, 2, 1, 1]
    assert (frame.attrs["n"], frame.attrs["norm"]) == (5, "linf")


@given(
    st.lists(st.integers(-10, 60), min_size=1, max_size=12),
    st.lists(st.integers(0, 50), min_size=1, max_size=12),
    st.sampled_from([Point, Batch]),
)
def test_random_margins_and_grids(margins, grid, attack):
    """Margins lie halfway between points of the grid, so that rounding decides no tie."""
    attack.calls = []
    x, y = images([m / 125 + 0.004 for m in margins])
    curve = robustness_curve(attack, sign_model, x, y, [e / 125 for e in grid])
    expected = [sum(m >= max(e, 0) for m in margins) for e in grid]
    assert curve.counts.tolist() == expected


def test_unsorted_and_duplicate_epsilons_are_returned_as_passed(attack):
    x, y = images([0.05, 0.15, 0.25, 0.45, -0.1])
    keys = [Fraction(2, 5), 0, np.float32(0.22), 0.1, 0.0, np.float64(0.1)]
    result = compute_robustness_curve(attack, sign_model, x, y, keys)
    assert list(result) == [Fraction(2, 5), 0, np.float32(0.22), 0.1]
    assert list(map(type, result)) == [Fraction, int, np.float32, float]
    assert list(result.values()) == [0.2, 0.8, 0.4, 0.6]
    assert {type(value) for value in result.values()} == {float}
    curve = robustness_curve(attack, sign_model, x, y, keys)
    assert curve.counts.tolist() == [1, 4, 2, 3, 4, 3]
    assert curve.epsilons.tolist() == [0.4, 0.0, float(np.float32(0.22)), 0.1, 0.0, 0.1]


def test_no_attack_runs_at_zero_or_if_nothing_is_right(attack):
    for margins, epsilons, counts in (([0.1, -0.1, 0.2], [0], [2]), ([-0.1, -0.2], GRID, [0] * 5)):
        curve = robustness_curve(attack, sign_model, *images(margins), epsilons)
        assert curve.counts.tolist() == counts
        assert attack.calls == []


@pytest.mark.parametrize("points", [1, 7, 8, 31])
def test_number_of_bisection_rounds(points):
    Batch.calls = []
    grid = [0.45 * (i + 1) / points for i in range(points)]
    margins = torch.linspace(0.001, 0.499, 97)
    curve = robustness_curve(Batch, sign_model, *images(margins.tolist()), grid)
    assert len(Batch.calls) <= math.ceil(math.log2(points + 1))
    assert curve.counts.tolist() == [int((margins > e).sum()) for e in grid]
    # all start at the same epsilon and then diverge
    assert [len(set(epsilon.tolist())) for epsilon, _ in Batch.calls][:2] == ([1, 2] if points > 3 else [1])
    assert set(Batch.calls[0][1].tolist()) == set(range(97))
    for epsilon, indices in Batch.calls:
        assert len(epsilon) == len(indices) == len(set(indices.tolist()))


def test_a_small_perturbation_decides_smaller_epsilons_too():
    """The first example is fooled at 0.26 by a perturbation of 0.05, which decides all smaller epsilons."""

    class Nearest(Batch):
        def generate(self, x, y, targeted=False, target_labels=None, *, epsilon=None, indices=None):
            self.calls.append(len(x))
            near = x.clone()
            near[:, 0] = 0.5
            return torch.where((x - near).abs().amax(1).double()[:, None] <= epsilon[:, None], near, x)

    Nearest.calls = []
    x, y = images([0.05, 0.15, 0.25])  # at the boundary itself the tie goes to class 0
    curve = robustness_curve(Nearest, sign_model, x, y, [0.1, 0.2, 0.26, 0.3, 0.4])
    assert curve.broken_epsilon.tolist() == [0.1, 0.2, 0.26]
    assert Nearest.calls == [3, 2]


def test_indices_are_passed_only_if_accepted():
    class Bare(AdversarialAttack):
        def generate(self, x, y, targeted=False, target_labels=None, *, epsilon=None):
            return x - epsilon[:, None].float() * 0.9

    x, y = images([0.05, 0.25])
    assert compute_robustness_curve(Bare, sign_model, x, y, [0.1, 0.2]) == {0.1: 0.5, 0.2: 0.5}


def test_arguments_reach_the_attack(attack):
    made = []

    class Spy(attack):
        def __init__(self, model, epsilon, norm, clip_max, alpha=None):
            made.append((model, epsilon, norm, clip_max))
            super().__init__(model, epsilon, norm, 0.0, clip_max)

    Spy.calls = []
    x, y = images([0.05, 0.15])
    robustness_curve(Spy, sign_model, x, y, [0.2, 0.1], norm="linf", clip_max=2.0)
    assert made[0] == (sign_model, 0.2, "linf", 2.0)
    if attack is Batch:
        assert len(made) == 1
    else:
        assert [epsilon for _, epsilon, _, _ in made[1:]] == [0.1]
    partial = functools.partial(Spy, norm="linf", clip_max=1.0)
    assert compute_robustness_curve(partial, sign_model, x, y, [0.2, 0.1]) == {0.2: 0.0, 0.1: 0.5}


# --- summaries


def curve_of(epsilons, counts):
    made = robustness_curve(Plain, sign_model, *images([0.1]), [0.0])
    return dataclasses.replace(made, epsilons=np.array(epsilons), counts=np.array(counts), n=10)


def test_area_has_the_unit_of_epsilon_and_its_mean_is_a_height():
    for epsilons, counts, area, mean in (
        ([0.0, 1.0], [10, 0], 0.5, 0.5),
        ([0.0, 0.5, 2.0], [10, 8, 2], 0.5 * 0.9 + 1.5 * 0.5, (0.5 * 0.9 + 1.5 * 0.5) / 2),
        ([2.0, 0.5, 0.0, 0.5], [2, 8, 10, 8], 0.5 * 0.9 + 1.5 * 0.5, (0.5 * 0.9 + 1.5 * 0.5) / 2),
        ([1.0, 3.0], [7, 7], 1.4, 0.7),
    ):
        curve = curve_of(epsilons, counts)
        assert curve.area() == pytest.approx(area)
        assert curve.mean_robust_accuracy() == pytest.approx(mean)
    for summary in (curve_of([0.1, 0.1], [3, 3]).area, curve_of([0.1, 0.1], [3, 3]).mean_robust_accuracy):
        with pytest.raises(InputError, match="area: expected at least two distinct epsilons, got 1"):
            summary()


# --- broken attacks


def test_an_attack_cannot_widen_its_own_clip_range():
    class Widening(AdversarialAttack):
        def generate(self, x, y, targeted=False, target_labels=None):
            self.clip_max = 9.0
            return torch.full_like(x, 5.0)

    x, y = torch.full((3, 1), 0.5), torch.zeros(3, dtype=torch.int64)
    accuracy = compute_robustness_curve(Widening, lambda x: torch.cat([4 - x, x], 1), x, y, [9.0])
    assert (accuracy, accuracy.outside) == ({9.0: 1.0}, {9.0: 3})


def returning(function, per_example=False):
    class Made(AdversarialAttack):
        if per_example:

            def generate(self, x, y, *, epsilon, indices):
                return function(x, float(epsilon[0]))
        else:

            def generate(self, x, y):
                return function(x, self.epsilon)

    return Made


@pytest.mark.parametrize("per_example", [False, True])
def test_a_broken_attack_is_named(per_example):
    for function, error, match in (
        (lambda x, e: None, InputTypeError, "Made.generate to return a float tensor, got NoneType"),
        (lambda x, e: x[:, :1], InputError, r"Made.generate to return shape \(2, 2\), got \(2, 1\)"),
    ):
        with pytest.raises(error, match="attack_class: expected " + match):
            robustness_curve(returning(function, per_example), sign_model, *images([0.05, 0.45]), [0.1])


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, e: x - 1.001 * e,  # outside the ball
        lambda x, e: torch.cat([x[:, :1] - e, x[:, 1:] + 1], 1),  # above the clip range
        lambda x, e: torch.cat([x[:, :1] - e, x[:, 1:] - 1], 1),  # below the clip range
        lambda x, e: x * math.nan,
        lambda x, e: x - math.inf,
    ],
)
def test_points_outside_do_not_count_as_successes(function, per_example, caplog):
    x, y = images([0.05, 0.45])
    accuracy = compute_robustness_curve(returning(function, per_example), sign_model, x, y, [0, 0.1])
    assert accuracy == {0: 1.0, 0.1: 1.0}
    assert accuracy.outside == {0: 0, 0.1: 2}
    (record,) = caplog.records
    assert record.getMessage() == (
        "attack_class: 2 of 2 points of Made lie outside the ball or the clip range and count as unsuccessful; return "
        "x + self.project(delta, x)"
    )
    curve = robustness_curve(returning(function, per_example), sign_model, x, y, [0.1, 0, 0.1])
    assert curve.outside.tolist() == [2, 0, 2]
    assert curve.to_dict()["outside"] == [2, 0, 2]


def test_a_curve_goes_on_after_points_outside():
    x, y = images([0.05, 0.15, 0.45])

    def first_too_far(x, e):
        return torch.where(torch.arange(len(x))[:, None] == 0, x - 1.5 * e, x - 0.9 * e)

    accuracy = compute_robustness_curve(returning(first_too_far), sign_model, x, y, [0.1, 0.2])
    assert accuracy == {0.1: 1.0, 0.2: pytest.approx(2 / 3)}
    assert accuracy.outside == {0.1: 1, 0.2: 1}


@pytest.mark.parametrize(("norm", "share"), [("l2", 1 / math.sqrt(2)), ("l1", 1 / 2)])
def test_the_norm_is_taken_from_the_attack(norm, share):
    x, y = images([0.05, 0.2])
    ok = returning(lambda x, e: x - share * e)
    assert compute_robustness_curve(ok, sign_model, x, y, [0.1], norm=norm) == {0.1: 0.5}
    outside = compute_robustness_curve(
        returning(lambda x, e: x - 1.001 * share * e), sign_model, x, y, [0.1], norm=norm
    )
    assert (outside, outside.outside) == ({0.1: 1.0}, {0.1: 2})


def test_float32_rounding_of_textbook_attacks_is_accepted():
    """x + ε·sign in float32 leaves the float64 ball by the rounding of the sum."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(200, 50, generator=generator), torch.ones(200, dtype=torch.int64)
    for norm, share in (("linf", 1.0), ("l2", 50**-0.5), ("l1", 1 / 50)):
        textbook = returning(lambda x, e, share=share: (x - share * e).clamp(0, 1))
        assert compute_robustness_curve(textbook, sign_model, x, y, [8 / 255], norm=norm)[8 / 255] > 0.2


@pytest.mark.parametrize("per_example", [False, True])
def test_an_attack_that_writes_into_x_is_caught(per_example):
    x, y = images([0.05, 0.3])
    before = x.clone()
    kept = returning(lambda x, e: x.sub_(0.9 * e), per_example)
    assert compute_robustness_curve(kept, sign_model, x, y, [0.1, 0.2]) == {0.1: 0.5, 0.2: 0.5}
    too_far = returning(lambda x, e: x.sub_(1.1 * e), per_example)
    assert compute_robustness_curve(too_far, sign_model, x, y, [0.1, 0.2]) == {0.1: 1.0, 0.2: 1.0}
    assert torch.equal(x, before)


class Plain:
    """An attack that is not a subclass, without norm or clip range."""

    def __init__(self, model, epsilon, *, scale=1.0):
        self.step = scale * epsilon

    def generate(self, x, y):
        return x - self.step


def test_a_plain_attack_class():
    x, y = images([0.05, 0.25, 5.0])
    assert compute_robustness_curve(Plain, sign_model, x, y, [0.1, 0.3, 6.0]) == {0.1: 2 / 3, 0.3: 1 / 3, 6.0: 0.0}
    assert compute_robustness_curve(Plain, sign_model, x, y, [0.1], scale=2.0).outside == {0.1: 3}


def test_the_model_is_in_evaluation_mode_for_every_class():
    modes = []

    class Net(torch.nn.Module):
        def forward(self, batch):
            modes.append(self.training)
            return sign_model(batch)

    class Careless(Plain):
        def __init__(self, model, epsilon):
            super().__init__(model, epsilon)
            self.model = model

        def generate(self, x, y):
            assert torch.is_grad_enabled()
            self.model(x)
            self.model.train()
            return super().generate(x, y)

    net = Net().train()
    x, y = images([0.05, 0.25])
    with torch.no_grad():
        assert compute_robustness_curve(Careless, net, x, y, [0.1, 0.2, 0.3]) == {0.1: 0.5, 0.2: 0.5, 0.3: 0.0}
    assert not any(modes)
    assert net.training


# --- invalid arguments

X, Y = images([0.1, 0.2])


def _never(x, epsilon):
    raise AssertionError("called")


@pytest.mark.parametrize(
    ("argument", "value", "error", "match"),
    [
        ("epsilons", [0.1, -0.1], InputError, "epsilons: expected finite numbers of at least 0, got -0.1"),
        ("epsilons", [], InputError, "epsilons: expected at least one, got none"),
        ("epsilons", ["a"], InputTypeError, "epsilons: expected a sequence of numbers, got 'a' at index 0"),
        ("x", "X", InputTypeError, "x: expected a tensor, an array or a list, got str"),
        ("x", X[:0], InputError, "x: expected at least one example"),
        ("x", X / 0, InputError, "x: expected finite values"),
        ("y", Y[:1], InputError, r"y: expected shape \(2,\), one label per example, got \(1,\)"),
        ("y", Y + 1, InputError, "y: expected labels 0 to 1, the model's classes, got 2"),
        ("y", Y - 2, InputError, "y: expected labels of at least 0, got -1"),
        ("attack_class", "pgd", InputTypeError, r"attack_class: expected a class with generate\(x, y\), got str"),
        ("attack_class", lambda model, epsilon: 3, InputTypeError, r"with generate\(x, y\), got int"),
        ("model", "net", InputTypeError, "model: expected"),
        ("alpha", 1.0, InputError, "alpha: expected a number in"),
        ("norm", "l3", InputError, "norm: expected"),
    ],
)
def test_bad_arguments_are_named_before_the_attack(argument, value, error, match):
    arguments = {"attack_class": returning(_never), "model": sign_model, "x": X, "y": Y, "epsilons": [0.1]}
    with pytest.raises(error, match=match):
        robustness_curve(**arguments | {argument: value})


# --- under PGD


class Counted:
    """A model that counts the rows pushed through it."""

    def __init__(self, model):
        self.model, self.rows = model, 0

    def __call__(self, batch):
        self.rows += len(batch)
        return self.model(batch)


def test_cost_of_twenty_points():
    data = digits(120)
    model, x, y = Counted(load_model("zoo:digits-smooth-0.25")), data.x, data.y
    grid = [0.3 * (i + 1) / 20 for i in range(20)]
    curve = robustness_curve(PGD, model, x, y, grid, steps=10)
    spent = model.rows
    assert curve.forwards == spent
    rows, separate = [], []
    for epsilon in grid:
        model.rows = 0
        attack = PGD(model, epsilon, steps=10)
        x_adv = attack.generate(x, y)
        rows.append(model.rows)
        separate.append(attack.evaluate(x, y, x_adv)["robust_accuracy"])
    # An attack that succeeds stops, so a run gets cheaper with epsilon; this is one in which hardly any does.
    assert spent <= 5 * max(rows)
    assert spent <= sum(rows) / 3.5
    assert (curve.robust_accuracy <= np.array(separate) + 0.01 + 1e-12).all()
    assert separate[0] - separate[-1] > 0.1, "an easy grid: nothing to search for"
    assert (np.diff(curve.counts) <= 0).all()


def test_gpu_matches_cpu(cuda):
    data, net = digits(120), load_model("zoo:digits-smooth-0.25").double()
    x, y = data.x.double(), data.y
    grid = [0.02, 0.05, 0.1, 0.15]
    here = robustness_curve(BIM, net, x, y, grid, steps=4)
    there = robustness_curve(BIM, net.to(cuda), x.to(cuda), y.to(cuda), grid, steps=4)
    assert (here.broken_epsilon == there.broken_epsilon).mean() > 0.97

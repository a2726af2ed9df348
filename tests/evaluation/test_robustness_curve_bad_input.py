"""Robustness curves refuse broken attacks and invalid arguments, and name them."""

from __future__ import annotations

import math

import pytest
import torch
from attack_runs import images, sign_model

from pyrobust.attacks import AdversarialAttack
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.robustness_curve import compute_robustness_curve, robustness_curve


class Untouched(AdversarialAttack):
    """Counts its calls."""

    calls = 0

    def generate(self, x, y, targeted=False, target_labels=None):
        type(self).calls += 1
        return x


# --- broken attacks


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
    x, y = images([0.05, 0.45])
    for function, error, match in (
        (lambda x, e: None, InputTypeError, "Made.generate to return a float tensor, got NoneType"),
        (lambda x, e: x[:, :1], InputError, r"Made.generate to return shape \(2, 2\), got \(2, 1\)"),
    ):
        with pytest.raises(error, match="attack_class: expected " + match):
            compute_robustness_curve(returning(function, per_example), sign_model, x, y, [0.1])


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
    ],
)
def test_bad_arguments_are_named(argument, value, error, match):
    arguments = {"attack_class": Untouched, "model": sign_model, "x": X, "y": Y, "epsilons": [0.1]} | {argument: value}
    for function in (compute_robustness_curve, robustness_curve):
        with pytest.raises(error, match=match):
            function(**arguments)


def test_invalid_arguments_are_refused_before_the_attack():
    Untouched.calls = 0
    for keywords, match in (({"alpha": 1.0}, "alpha: expected a number in"), ({"norm": "l3"}, "norm: expected")):
        with pytest.raises(InputError, match=match):
            robustness_curve(Untouched, sign_model, X, Y, [0.1], **keywords)
    assert Untouched.calls == 0

"""The curve of a minimum-norm attack: a step function, by brute force and by confirmation with other attacks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attack_runs import images, sign_model
from torch import Tensor

from pyrobust.attacks import FAB, PGD, AdversarialAttack, AutoAttack, MinimumNorm
from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation import (
    Confirmation,
    RobustnessCurve,
    attack_dataset,
    confirm_curve,
    minimum_norm_curve,
    robustness_curve,
)
from pyrobust.metrics import estimate_rate
from pyrobust.report import curve_table, plot_curve
from pyrobust.zoo import ImageSet

# 0: misclassified; inf: none found; some in common.
DISTANCES = st.lists(
    st.one_of(st.sampled_from([0.0, 0.25, math.inf]), st.floats(1e-300, 1e300)), min_size=1, max_size=12
)


def result(distances: list[float], norm: str = "linf") -> MinimumNorm:
    distance = torch.tensor(distances, dtype=torch.float64)
    names = tuple(None if value == math.inf else "FMN" if value else "clean" for value in distances)
    return MinimumNorm(torch.zeros(len(distances), 1), distance, distance.isfinite(), names, norm, 10, 5)  # type: ignore[arg-type]  # a norm's name


@given(DISTANCES, st.floats(1e-300, 1e300))
def test_the_step_function_by_brute_force(distances: list[float], epsilon: float) -> None:
    curve = minimum_norm_curve(result(distances), alpha=0.1)
    assert (curve.forwards, curve.n, curve.epsilons[0]) == (10, len(distances), 0)
    assert (np.diff(curve.epsilons) > 0).all()
    for point in (*curve.epsilons.tolist(), epsilon):
        right = sum(distance > point for distance in distances)
        assert curve.rate(point) == estimate_rate(right, len(distances), 0.1)
    for index, point in enumerate(curve.epsilons.tolist()):
        rate = curve.rate(point)
        assert (rate.successes, rate.lower, rate.upper) == (
            curve.counts[index],
            curve.lower[index],
            curve.upper[index],
        )
    # The area of the rectangles below the steps, as rationals.
    ends = [*(Fraction(point) for point in curve.epsilons.tolist() if point < epsilon), Fraction(epsilon)]
    area = sum(
        (right - left) * Fraction(sum(distance > left for distance in distances), len(distances))
        for left, right in itertools.pairwise(ends)
    )
    assert curve.area(epsilon) == pytest.approx(float(area), rel=1e-12)
    assert curve.mean_robust_accuracy(epsilon) == pytest.approx(float(area / Fraction(epsilon)), rel=1e-12)
    if len(curve.epsilons) > 1:
        assert curve.area() == curve.area(curve.epsilons[-1])
    for share, value in zip((0.25, 0.5, 0.75), curve.quantiles(), strict=True):
        assert value == sorted(distances)[max(math.ceil(Fraction(share) * len(distances)) - 1, 0)]


def test_a_run_gives_the_curve_of_its_attack() -> None:
    x = torch.tensor([0.3, 0.1, 0.45, 0.9]).view(-1, 1, 1, 1).repeat(1, 1, 1, 2)
    data = ImageSet("pixels", x, torch.zeros(4, dtype=torch.int64))
    attack = FAB(lambda batch: -sign_model(batch), norm="linf")
    run = attack_dataset(attack, data, minimum=True, model_name="sign")
    of_run, of_result = minimum_norm_curve(run), minimum_norm_curve(attack.minimum(x, data.y))
    assert np.array_equal(of_run.broken_epsilon, of_result.broken_epsilon)
    assert of_run.attack == of_result.attack == "FAB"
    assert of_run.forwards is None
    fixed = robustness_curve(PGD, attack.model, x, data.y, [0.0, 0.1, 0.3, 0.6])
    for epsilon, count in zip(fixed.epsilons.tolist(), fixed.counts.tolist(), strict=True):
        assert of_run.rate(epsilon).successes == count


class Shift(AdversarialAttack):
    """Moves each example by epsilon toward ``sign_model``'s boundary, or as far as told; remembers its examples."""

    def __init__(self, model: Any, epsilon: float, share: float = 1.0, **options: Any) -> None:
        super().__init__(model, epsilon, **options)
        self.share, self.seen = share, []

    def generate(self, x: Tensor, y: Tensor, targeted: bool = False, target_labels: Tensor | None = None) -> Tensor:
        self.seen.append(x.clone())
        delta = torch.zeros_like(x)
        delta[:, 0] = -self.share * self.epsilon
        return x + delta


def test_confirmation_attacks_what_is_unbroken_and_never_raises_the_curve() -> None:
    x, y = images([0.2, 0.125, 0.25, -0.1])
    # The attack overlooked the first, and overstated the second.
    curve = minimum_norm_curve(result([math.inf, 0.4, 0.26, 0.0]))
    attack = Shift(sign_model, 0.25)
    confirmed = confirm_curve(curve, attack, x, y)
    [seen] = attack.seen
    assert torch.equal(seen, x[:3]), "the last is misclassified, and broken at every epsilon"
    [done] = confirmed.confirmations
    # x - 0.25 is at 0.45, 0.375 and on the boundary, where class 0 wins the tie.
    assert done == Confirmation("Shift", 0.25, 3, 3)
    assert confirmed.broken_epsilon.tolist() == [0.25, 0.25, 0.25, 0.0]
    assert confirmed.rate(0.25).successes == 0
    assert confirmed.forwards is None, "this attack does not count them"
    counting = AutoAttack(sign_model, 0.05, version="custom", attacks_to_run=["apgd-ce"])
    assert (confirm_curve(curve, counting, x, y).forwards or 0) > 20
    again = confirm_curve(confirmed, Shift(sign_model, 0.25), x, y)
    assert again.confirmations == (done, Confirmation("Shift", 0.25, 0, 0))
    for epsilon in np.linspace(0, 0.5, 21).tolist():
        assert confirmed.rate(epsilon).successes <= curve.rate(epsilon).successes
    weak = confirm_curve(curve, Shift(sign_model, 0.25, share=0.1), x, y)
    assert np.array_equal(weak.broken_epsilon, curve.broken_epsilon)
    assert weak.confirmations == (Confirmation("Shift", 0.25, 3, 0),)


def test_bad_input() -> None:
    x, y = images([0.2, 0.1])
    curve, nowhere = minimum_norm_curve(result([0.3, 0.4])), minimum_norm_curve(result([math.inf, math.inf]))
    points = robustness_curve(PGD, sign_model, x, y, [0.1])
    attack = Shift(sign_model, 0.2)
    wrong: list[tuple[Any, Any, Any, Any, type[Exception], str]] = [
        (3, attack, x, y, InputTypeError, "curve: expected RobustnessCurve"),
        (curve, Shift, x, y, InputTypeError, "attack: expected AdversarialAttack"),
        (points, attack, x, y, InputError, "curve: expected a curve of minimum_norm_curve, got one of points"),
        (curve, Shift(sign_model, 0.2, norm="l2"), x, y, InputError, "attack: expected one epsilon in linf, got"),
        (curve, attack, x[:1], y[:1], InputError, "x: expected the 2 examples of the curve, got 1"),
        (curve, Shift(sign_model, 0.2, share=2.0), x, y, InputError, "expected Shift.generate to stay within"),
        (nowhere, Shift(sign_model, 1.0), x, y, InputError, "expected Shift.generate to stay in the clip range"),
    ]
    for first, second, third, fourth, error, words in wrong:
        with pytest.raises(error, match=words):
            confirm_curve(first, second, third, fourth)
    run = attack_dataset(PGD(sign_model), (torch.full((1, 1, 1, 2), 0.7), torch.tensor([1])), model_name="sign")
    calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: minimum_norm_curve(result([])), InputError, "found: expected at least one example"),
        (lambda: minimum_norm_curve("run.db"), InputTypeError, "found: expected a MinimumNorm or a Run, got str"),  # type: ignore[arg-type]  # a wrong type
        (lambda: minimum_norm_curve(run), InputError, "found: expected a run of a minimum-norm .* one of kind attack"),
        (lambda: minimum_norm_curve(result([0.3]), alpha=1.0), InputError, "alpha: expected"),
        (lambda: points.rate(0.2), InputError, "epsilon: expected one of the curve's 1 points"),
        (lambda: points.area(0.2), InputError, "epsilon: expected None for a curve of points"),
        (lambda: curve.area(0.0), InputError, "epsilon: expected"),
        (lambda: minimum_norm_curve(result([math.inf, 0.0])).area(), InputError, "at least two distinct epsilons"),
    ]
    for call, error, words in calls:
        with pytest.raises(error, match=words):
            call()


def test_the_output_says_what_the_bands_are(tmp_path: Any) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="the extra plot")
    curve = minimum_norm_curve(result([0.1, 0.2, 0.3, math.inf]))
    confirmed = dataclasses.replace(curve, confirmations=(Confirmation("AutoAttack", 0.5, 1, 0),))
    words = "Intervals are pointwise, of the accuracy under this attack, and no lower bound of robustness"
    for drawn in (curve, confirmed, {"a": curve, "b": confirmed}):
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            plot_curve(drawn, tmp_path / "curve.svg")
        text = (tmp_path / "curve.svg").read_text()
        assert words in text
        assert ("Triangles: confirmed by AutoAttack at 0.5" in text) == (drawn is not curve)
    with pytest.raises(InputError, match="one norm, got l2, linf"):
        plot_curve({"a": curve, "b": minimum_norm_curve(result([0.1], "l2"))}, tmp_path / "other.svg")
    table = curve_table(confirmed, ["Data"])
    assert words in table.notes
    rows = {str(row[0]): row[1:] for row in table.rows}
    assert rows["upper quartile"][0].value == 0.3
    assert rows["linf epsilon 0.5"][1] == 1
    assert rows["also broken by AutoAttack at 0.5"][:2] == ("of 1", 0)
    values: dict[str, Any] = RobustnessCurve.to_dict(confirmed)
    assert values["confirmations"] == [
        {"attack": "AutoAttack", "epsilon": 0.5, "examples": 1, "broken": 0, "proved": 0}
    ]

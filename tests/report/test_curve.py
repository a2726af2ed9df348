"""Plots of robustness curves: a picture of the format asked for, or nothing and a reason."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest

from pyrobust.errors import InputError, InputTypeError
from pyrobust.evaluation.robustness_curve import RobustnessCurve
from pyrobust.metrics import estimate_rate
from pyrobust.report import plot_curve


def curve(counts, epsilons=(0.1, 0.0, 0.2, 0.1), norm="linf", n=20):
    rates = [estimate_rate(count, n) for count in counts]
    return RobustnessCurve(
        attack="PGD",
        norm=norm,
        epsilons=np.array(epsilons),
        counts=np.array(counts),
        n=n,
        lower=np.array([rate.lower for rate in rates]),
        upper=np.array([rate.upper for rate in rates]),
        alpha=0.05,
        broken_epsilon=np.full(n, math.inf),
        forwards=None,
    )


CURVE = curve([12, 19, 3, 12])


@pytest.fixture(autouse=True)
def matplotlib():
    return pytest.importorskip("matplotlib", reason="the extra plot")


def ink(pixels, colour):
    return int((np.abs(pixels[..., :3] - np.array(colour) / 255).max(axis=-1) < 0.02).sum())


def test_each_curve_is_drawn(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    blue, brown = (0x1F, 0x4E, 0x79), (0xB3, 0x54, 0x1E)
    plot_curve(CURVE, tmp_path / "one.png")
    one = image.imread(tmp_path / "one.png")
    plot_curve({"a": CURVE, "b": curve([19, 20, 15, 19])}, tmp_path / "two.png")
    two = image.imread(tmp_path / "two.png")
    assert 500 < ink(one, blue) < 0.05 * one[..., 0].size
    assert ink(one, brown) == 0
    assert ink(two, blue) > 500
    assert ink(two, brown) > 300


def svg(curves, path, matplotlib, caption=()):
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_curve(curves, path, caption)
    return path.read_text(encoding="utf-8")


def test_the_caption_states_attack_and_examples(tmp_path, matplotlib):
    text = svg({"net A": CURVE, "net B": curve([1, 2, 0, 1])}, tmp_path / "curve.svg", matplotlib)
    for words in ("net A: PGD, 20 examples", "net B: PGD, 20 examples", "with 95 % intervals", "linf epsilon"):
        assert text.count(words) == text.count(words.split(":")[0]) == 1, "said once"
    assert svg(CURVE, tmp_path / "curve.svg", matplotlib).count("PGD, 20 examples") == 1


def test_a_given_caption_replaces_the_default(tmp_path, matplotlib):
    said = ["FGSM in linf, seed 0", "Model of $5 and $6, " + "long " * 40]
    text = svg(CURVE, tmp_path / "curve.svg", matplotlib, said)
    assert "FGSM in linf, seed 0" in text
    assert "Model of $5 and $6, long" in text
    assert "PGD" not in text, "the caller has said it"
    lines = re.findall(r">([^<]*long[^<]*)<", text)
    assert len(lines) > 1, "folded where it would leave the picture"
    assert max(map(len, lines)) <= 120


def test_order_of_points_does_not_matter(tmp_path, matplotlib):
    def lines(curves):
        return re.findall(r'<path d="[^"]*"', svg(curves, tmp_path / "curve.svg", matplotlib))

    assert lines(CURVE) == lines(curve([19, 12, 3], (0.0, 0.1, 0.2)))
    assert lines(CURVE) != lines(curve([19, 11, 3], (0.0, 0.1, 0.2)))


@pytest.mark.parametrize("counts", [[0, 0, 0, 0], [20, 20, 20, 20]])
def test_flat_curves_and_single_points(tmp_path, counts):
    plot_curve(curve(counts), tmp_path / "flat.png")
    plot_curve(curve(counts[:1], (0.0,)), tmp_path / "zero.png")
    plot_curve(curve(counts[:1], (0.3,)), tmp_path / "point.png")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("curves", "name", "error", "match"),
    [
        ({}, "a.png", InputError, "curves: expected at least one, got none"),
        ({"a": CURVE, "b": dataclasses.replace(CURVE, norm="l2")}, "a.png", InputError, "one norm, got l2, linf"),
        ([CURVE], "a.png", InputTypeError, "curves: expected a RobustnessCurve, or several by name, got list"),
        ({"a": 3}, "a.png", InputTypeError, "curves: expected a RobustnessCurve, or several by name, got int"),
        (CURVE, "a.jpg", InputError, r"path: expected a name that ends in .png, .pdf or .svg, got '.*a\.jpg'"),
    ],
)
def test_bad_input(tmp_path, curves, name, error, match):
    with pytest.raises(error, match=match):
        plot_curve(curves, tmp_path / name)
    assert not list(tmp_path.iterdir())

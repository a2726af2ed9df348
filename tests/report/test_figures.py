"""Figures: of the format asked for, the same bytes each time, every curve where its figures are."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import warnings

import numpy as np
import pytest
from support.certification_logs import ABSTAINS, CONSTANT, GOOD, POOR, log_of

from pyrobust.errors import InputError, InputTypeError, MissingExtraError, StoreError
from pyrobust.evaluation.robustness_curve import RobustnessCurve
from pyrobust.metrics import estimate_rate
from pyrobust.report import plot_certified_accuracy, plot_curve, plot_survival
from pyrobust.report.axes import line_style
from pyrobust.report.figures import certified_accuracy_frame, survival_frame

STARTS = {"png": b"\x89PNG\r\n", "pdf": b"%PDF-", "svg": b"<?xml"}
PLOTS = [plot_certified_accuracy, plot_survival]
LONG = "a_very_long_name_$x_1$_" + "of_a_model_" * 20
ONE = log_of([990], [True], name="one")
MANY = [
    GOOD,
    POOR,
    CONSTANT,
    ABSTAINS,
    dataclasses.replace(GOOD, name=LONG),
    dataclasses.replace(POOR, name="$\\alpha"),
]


@pytest.fixture(autouse=True)
def matplotlib():
    return pytest.importorskip("matplotlib", reason="the extra plot")


LOGS = {"1": GOOD, "2": [GOOD, POOR], "6": MANY, "abstains": ABSTAINS, "one": ONE}
# Each logs, and each plot in each format.
CASES = [(list(LOGS)[i % 5], PLOTS[i % 2], list(STARTS)[i % 3]) for i in range(6)]


@pytest.mark.parametrize(("name", "plot", "form"), CASES)
def test_every_format_is_written(tmp_path, name, plot, form):
    logs = LOGS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot(logs, tmp_path / f"figure.{form}")
        plot(logs, tmp_path / f"again.{form.upper()}")
    content = (tmp_path / f"figure.{form}").read_bytes()
    assert content.startswith(STARTS[form])
    assert len(content) > 5000
    # the same logs, the same bytes: no date, no random names
    assert content == (tmp_path / f"again.{form.upper()}").read_bytes()
    assert re.search(rb"20\d\d-\d\d-\d\d|CreationDate", content) is None


def size(path):
    from matplotlib.image import imread

    return imread(path).shape[:2]


def test_figures_grow_with_their_captions(tmp_path):
    sizes = []
    for logs in (GOOD, [GOOD, POOR], MANY):
        plot_survival(logs, tmp_path / "figure.png")
        sizes.append(size(tmp_path / "figure.png"))
    heights = [height for height, _ in sizes]
    assert heights == sorted(set(heights))
    assert {width for _, width in sizes} == {1050}


def test_captions_are_not_cut_off(tmp_path):
    from matplotlib.image import imread

    logs = [dataclasses.replace(GOOD, name=name) for name in ("W_" * 150, "WW MM " * 60)]
    plot_survival(logs, tmp_path / "a.png")
    pixels = imread(tmp_path / "a.png")[..., :3]
    for edge in (pixels[-3:], pixels[:, -6:], pixels[:3]):
        assert (edge == 1).all()


def test_fonts_are_embedded_as_truetype(tmp_path):
    plot_survival(GOOD, tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in content
    assert b"/Type3" not in content


def test_names_are_escaped(tmp_path, matplotlib):
    odd = [dataclasses.replace(GOOD, name=name) for name in ("cost $x_1$ & <more>", "\x1b[31m\nred\u202e", "\udcff")]
    for plot in PLOTS:
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            plot(odd, tmp_path / "figure.svg")
        text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
        caption = "cost $x_1$ &amp; &lt;more&gt;: gaussian smoothing, l2, sigma 0.25, n 1,000, alpha 0.001, 10 images"
        assert f">{caption}" in text  # not in the comment beside a formula
        assert "\x1b" not in text
        assert "�[31m�red�: gaussian" in text


def drawn(frame):
    return [line.get_xydata().T for line in frame.axes.get_lines()]


def test_steps_match_certified_accuracy():
    frame = certified_accuracy_frame([GOOD, ABSTAINS])
    for log, (x, y) in zip((GOOD, ABSTAINS), drawn(frame), strict=True):
        for radius in [*log.radius, *(log.radius + 1e-9), 0.0, 0.1]:
            # drawn as steps-pre: the height at the first end that is not before the radius
            height = y[np.searchsorted(x, radius, side="left")]
            assert height == pytest.approx(100 * np.mean(log.certified & (log.radius >= radius)))
    assert all(line.get_drawstyle() == "steps-pre" for line in frame.axes.get_lines())


def test_many_steps_are_thinned_correctly():
    rng = np.random.default_rng(0)
    log = log_of(rng.integers(60_000, 100_001, 20_000).tolist(), [True] * 20_000, n=100_000)
    ((x, y),) = drawn(certified_accuracy_frame(log))
    assert len(x) < 5000
    for radius, share in list(zip(x, y, strict=True))[1:-1:97]:
        assert share == pytest.approx(100 * np.mean(log.radius >= radius))


def test_survival_curve_has_its_thresholds():
    frame = survival_frame([GOOD, POOR])
    for log, (x, y) in zip((GOOD, POOR), drawn(frame), strict=True):
        assert (x[0], x[-1], len(x)) == (0.5, 1.0, 501)
        assert y[0] == pytest.approx(100 * np.mean(log.certified))
        assert (np.diff(y) <= 0).all()
    assert len(frame.axes.collections) == 2


def test_line_styles_are_distinct():
    styles = [(style["color"], str(style["linestyle"])) for style in map(line_style, range(36))]
    assert len(set(styles)) == 36
    assert len({colour for colour, _ in styles[:6]}) == len({dashes for _, dashes in styles[:6]}) == 6


def lab(rgb):
    """CIELAB of linear sRGB, white D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    x, y, z = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_colours_are_distinct_for_colour_blind_readers():
    """Machado, Oliveira and Fernandes (2009), complete protanopia, deuteranopia and tritanopia, in linear sRGB."""
    from matplotlib.colors import to_rgb

    kinds = [
        np.eye(3),
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ]
    colours = np.array([to_rgb(line_style(index)["color"]) for index in range(6)])
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    for kind in kinds:
        seen = [lab(np.array(kind) @ colour) for colour in linear]
        # cube roots near black exaggerate; they are not needed to be exact here
        assert min(np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]) > 20
    greys = sorted(lab(colour)[0] for colour in linear)
    # three steps, two lines each at most as light as one another
    assert greys[2] - greys[0] > 20
    assert greys[4] - greys[2] > 10
    assert greys[-1] < 75


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize(
    ("logs", "name", "error", "match"),
    [
        ([], "a.png", InputError, "logs: expected at least one, got none"),
        ([GOOD, dataclasses.replace(GOOD, norm="l1")], "a.png", InputError, "one norm, got l1, l2"),
        (GOOD, "a.jpg", InputError, r"path: expected a name that ends in .png, .pdf or .svg, got '.*a\.jpg'"),
        (GOOD, "nowhere/a.png", StoreError, "cannot be written"),
    ],
)
def test_bad_input(tmp_path, plot, logs, name, error, match):
    with pytest.raises(error, match=match):
        plot(logs, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_survival_needs_votes(tmp_path):
    for log, why in (
        (dataclasses.replace(GOOD, n=None), "its n is unknown"),
        (dataclasses.replace(GOOD, noise="laplace"), "radii are of laplace noise"),
        (dataclasses.replace(GOOD, kind="verify"), "bound propagation"),
    ):
        with pytest.raises(InputError, match=why):
            plot_survival([GOOD, log], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("plot", PLOTS)
def test_without_matplotlib(tmp_path, monkeypatch, plot):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pyrobust\[plot\]"):
        plot(GOOD, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


# -- robustness curves ------------------------------------------------------------------------------------------------


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
        (CURVE, "a.jpg", InputError, r"path: expected a name that ends in .png, .pdf or .svg, got '.*a\.jpg'"),
    ],
)
def test_bad_curves(tmp_path, curves, name, error, match):
    with pytest.raises(error, match=match):
        plot_curve(curves, tmp_path / name)
    assert not list(tmp_path.iterdir())

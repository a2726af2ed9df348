"""Runs with an epsilon for each feature: stored, refused where it differs, and equal on both sides."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pyrobust.attacks import FGSM, FMN, PGD
from pyrobust.auditing import audit, read_certification_log
from pyrobust.cli.parsing import parse_number
from pyrobust.errors import InputError, StoreError
from pyrobust.evaluation import Run, attack_dataset, minimum_norm_curve, sandwich_dataset, verify_dataset
from pyrobust.metrics.distance import scaled_boxes
from pyrobust.report import format_table, robustness_table
from pyrobust.report.page import page_html
from pyrobust.runs.merge import merge_runs
from pyrobust.zoo import ImageSet

pytestmark = pytest.mark.usefixtures("few_steps")

GENERATOR = torch.Generator().manual_seed(2)
NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
with torch.no_grad():
    for parameter in NET.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=GENERATOR))
X = 3 * torch.randn(4, 4, generator=GENERATOR)
Y = NET(X).argmax(1)
DATA = ImageSet("table", X, Y)
BOX = torch.tensor([[0.3, 0.0, 0.1, 0.7]], dtype=torch.float64)
OTHER = torch.tensor([[0.3, 0.1, 0.1, 0.7]], dtype=torch.float64)

SWEEPS: dict[str, Any] = {
    "attack": lambda box, **more: attack_dataset(FGSM(NET, box, clip=None), DATA, **more),
    "minimum": lambda box, **more: attack_dataset(FMN(NET, box, steps=20, clip=None), DATA, minimum=True, **more),
    "verify": lambda box, **more: verify_dataset(
        NET, DATA, epsilons=[0.5, 2.0], box=box, attack="pgd", clip=None, **more
    ),
    "radius": lambda box, **more: verify_dataset(NET, DATA, radius=True, largest=9.0, box=box, clip=None, **more),
    "sandwich": lambda box, **more: sandwich_dataset(NET, DATA, box=box, epsilons=1.0, clip=None, **more).run,
}


@pytest.mark.parametrize("kind", SWEEPS)
def test_the_box_is_stored_resumed_and_shown(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    SWEEPS[kind](BOX, out=path, max_images=2, batch_size=2)
    with pytest.raises(StoreError, match="box"):
        SWEEPS[kind](OTHER, out=path, max_images=2, batch_size=2)
    run = Run(path)
    run.check()
    assert run.parameters["box"] == BOX[0].tolist()
    if kind in ("verify", "radius"):
        assert not audit(read_certification_log(path)).faults
    page = page_html(run, data=DATA)
    assert "0 to 0.7, median 0.2" in page
    assert "l∞ radius" not in page
    if run.parameters["examples"]:
        assert torch.equal(run.examples()[:, 1], X[:2, 1])


def test_both_sides_meet_in_multiples_of_the_box() -> None:
    runs = {kind: sweep(BOX) for kind, sweep in SWEEPS.items()}
    both = runs["sandwich"].table
    assert (both["lower"] <= both["upper"]).all()
    assert (both["lower"] > 0.1).all()
    assert runs["radius"].table["radius"] == pytest.approx(both["lower"], rel=0.01)  # cut by largest, and semantics
    assert (runs["minimum"].table["distance"] >= both["lower"]).all()
    assert np.isclose(runs["minimum"].table["distance"], both["upper"], rtol=0.1).sum() >= 2
    for epsilon in (0.5, 2.0):
        verdict = runs["verify"].verdicts(epsilon)["verdict"]
        assert ((verdict == "verified") <= (both["upper"] > epsilon)).all()
        assert ((verdict == "falsified") <= (both["lower"] < epsilon)).all()
    assert (runs["attack"].robust >= (both["lower"] >= 1)).all()
    curve = minimum_norm_curve(runs["minimum"])
    assert curve.norm == minimum_norm_curve(FMN(NET, BOX, steps=20, clip=None).minimum(X, Y)).norm
    table = robustness_table([runs["attack"], runs["verify"]])
    assert curve.norm in format_table(table, "csv")
    assert f"{curve.norm}: multiples of the per-feature epsilon, 0 to 0.7, median 0.2" in table.notes


def test_a_chunk_may_have_nothing_left_to_prove() -> None:
    data = ImageSet("wrong", X, (Y + 1) % 3)
    run = verify_dataset(NET, data, box=BOX, epsilons=[0.5, 1.0], attack="pgd", clip=None, batch_size=2)
    assert set(run.verdicts(1.0)["stage"]) == {"forward"}
    assert not verify_dataset(NET, data, box=BOX, radius=True, clip=None).table["radius"].any()


def test_products_hold_or_are_held_exactly() -> None:
    box, scale = BOX[0], torch.tensor([1.0, 0.7, 0.0, 1e-310], dtype=torch.float64)
    for up in (True, False):
        for factor, row in zip(scale.tolist(), scaled_boxes(box, scale, up=up).tolist(), strict=True):
            for radius, value in zip(box.tolist(), row, strict=True):
                exact = Fraction(factor) * Fraction(radius)
                assert value >= exact if up else value <= exact
    assert torch.equal(scaled_boxes(box, scale, up=True)[0], box)


def test_clip_ranges_of_features_and_what_is_fixed_twice() -> None:
    low, high = X.amin(0), X.amax(0)
    both = sandwich_dataset(NET, DATA, box=BOX, clip=(low, high), max_images=2)
    both.check()
    x_adv = both.run.examples()
    assert torch.equal(x_adv[:, 1], X[:2, 1])
    assert ((x_adv >= low) & (x_adv <= high)).all()
    wide = sandwich_dataset(NET, DATA, norm="l2", clip=(low, high), max_images=2)
    assert (wide.lower <= wide.upper).all()


def test_ranges_of_channels_bound_distances_in_boxes_of_them(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(8, 2)).eval()
    x = torch.rand(2, 2, 2, 2, generator=GENERATOR)
    box, ends = torch.tensor([0.1, 0.0]).view(2, 1, 1), torch.tensor([1.0, 2.0]).view(2, 1, 1)
    path = tmp_path / "run.db"
    attack_dataset(FMN(net, box, steps=5, clip=(0 * ends, ends)), (x, net(x).argmax(1)), minimum=True, out=path)
    Run(path).check()
    assert Run(path).parameters["box"] == [[[float(box[0])] * 2] * 2, [[0.0] * 2] * 2]


def test_runs_of_other_boxes_neither_merge_nor_compare(tmp_path: Path) -> None:
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    for shard, (path, box) in enumerate(zip(paths, (BOX, OTHER), strict=True), 1):
        SWEEPS["attack"](box, out=path, shard=(shard, 2))
    with pytest.raises(InputError, match="shards of different sweeps: box"):
        merge_runs(paths)
    one, other = (sandwich_dataset(NET, DATA, box=box, clip=None, max_images=2) for box in (BOX, OTHER))
    with pytest.raises(InputError, match="norm"):
        one.compare(other, [1.0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: verify_dataset(NET, DATA, box=BOX, norm="l2", clip=None), "box: expected none in norms other"),
        (lambda: verify_dataset(NET, DATA, box=BOX[:, :3], clip=None), r"box: expected radii that broadcast to"),
        (lambda: verify_dataset(NET, DATA, box=-BOX, clip=None), "box: expected radii of features"),
        (lambda: verify_dataset(NET, DATA, box=0 * BOX, clip=None), "not all 0"),
        (lambda: verify_dataset(NET, DATA, box=0.5, clip=None), "box: expected radii of features"),
        (lambda: verify_dataset(NET, DATA, epsilons=BOX, clip=None), "epsilons: .*box="),
        (
            lambda: verify_dataset(NET, DATA, box=BOX, radius=True, method="lipschitz", clip=None),
            'box: expected none in a search for radii by method "lipschitz"',
        ),
        (
            lambda: sandwich_dataset(NET, DATA, box=BOX, method="lipschitz", semantics="real", clip=None),
            "expected none w",
        ),
        (lambda: attack_dataset(PGD(NET, torch.full((4,), 0.1), clip=None), DATA), "attack: expected one epsilon"),
        (lambda: attack_dataset(PGD(NET, BOX.view(4, 1), clip=None), DATA), "epsilon: "),
        (lambda: parse_number("--epsilon", "radii.npy"), "--epsilon: .*each feature is taken in Python only"),
    ],
)
def test_what_has_no_box_says_so(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()

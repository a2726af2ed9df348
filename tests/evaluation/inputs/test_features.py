"""Sweeps of tabular inputs [N, D]: their forms, a radius and a clip range of each feature, and no clip range."""

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
from pyrobust.errors import FileFormatError, InputError, InputTypeError, StoreError
from pyrobust.evaluation import (
    Run,
    attack_dataset,
    certify_dataset,
    minimum_norm_curve,
    predict_dataset,
    sandwich_dataset,
    verify_dataset,
)
from pyrobust.metrics.distance import scaled_boxes
from pyrobust.report import format_table, robustness_table
from pyrobust.report.page import page_html, write_page
from pyrobust.runs.merge import merge_runs
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import ImageSet, load_data

pytestmark = pytest.mark.usefixtures("few_restarts")

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


# -- clip ranges of elements, and none

LOW, HIGH = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([1.0, 0.5, 2.0])  # the last feature is fixed
LINEAR = nn.Linear(3, 2)
with torch.no_grad():
    LINEAR.weight.copy_(torch.tensor([[1.0, 2.0, -0.5], [-1.0, 0.5, 0.5]]))
    LINEAR.bias.zero_()
RANGED = LOW + (HIGH - LOW) * torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
TABLE = ImageSet("table", RANGED, LINEAR(RANGED).argmax(1))


def test_attacks_and_proofs_of_the_same_ranges(tmp_path: Path) -> None:
    attack = PGD(LINEAR, 0.4, clip=(LOW, HIGH), steps=5)
    path = tmp_path / "attack.db"
    attack_dataset(attack, TABLE, out=path, max_images=3)
    attack_dataset(attack, TABLE, out=path, max_images=3)  # complete
    with pytest.raises(StoreError, match="clip"):
        attack_dataset(PGD(LINEAR, 0.4, clip=(LOW, HIGH + 1), steps=5), TABLE, out=path)
    run = Run(path)
    assert run.parameters["clip"] == [LOW.tolist(), HIGH.tolist()]
    run.check()
    x_adv = run.examples()
    assert ((x_adv >= LOW) & (x_adv <= HIGH)).all()
    assert (x_adv[:, 2] == 2).all()
    proof = verify_dataset(
        LINEAR, TABLE, epsilons=[0.05, 0.4], attack="pgd", clip=(LOW, HIGH), out=tmp_path / "proof.db"
    )
    assert Run(tmp_path / "proof.db").parameters["clip"] == run.parameters["clip"]
    assert {"verified", "falsified"} == set(proof.verdicts(0.4)["verdict"])
    assert "the range of each element" in run.header.type.describe(run.header)[1]
    page = page_html([run, proof], data=TABLE)
    assert page.count("Without pictures") == 1  # one subject: the same network, data, norm and ranges


def test_examples_outside_of_their_ranges_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    attack_dataset(PGD(LINEAR, 0.4, clip=(LOW, HIGH), steps=5), TABLE, out=path)
    run = Run(path)
    run.parameters["clip"][1][1] = 0.25
    with pytest.raises(FileFormatError, match="outside the clip range"):
        run.examples()


def test_data_outside_of_their_ranges_are_named() -> None:
    with pytest.raises(InputError, match="expected values in the attack's clip range of their elements; image 0 has"):
        attack_dataset(PGD(LINEAR, 0.1, clip=(LOW + 1, HIGH + 1)), TABLE)


def test_an_attack_without_limits_is_stored_resumed_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "attack.db"
    wide = ImageSet("wide", 3 * RANGED, LINEAR(3 * RANGED).argmax(1))
    attack_dataset(FGSM(LINEAR, 0.5, clip=None), wide, out=path, max_images=4)
    with pytest.raises(StoreError, match="clip"):
        attack_dataset(FGSM(LINEAR, 0.5, clip=(-100, 100)), wide, out=path)
    run = Run(path)
    assert run.parameters["clip"] is None
    assert bool((run.examples().abs() > 1).any())
    assert "no clip range" in run.header.type.describe(run.header)[1]
    write_page(tmp_path / "page.html", [run, verify_dataset(LINEAR, wide, epsilons=0.1, clip=None)], data=wide)
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("grid", "clip", "error", "words"),
    [
        (None, (LOW, HIGH), InputTypeError, "clip: expected two finite numbers"),
        ("1/255", None, InputError, r"clip: expected .* for a grid"),
    ],
)
def test_a_sandwich_of_a_smoothed_classifier_has_one_range(grid: Any, clip: Any, error: type, words: str) -> None:
    smoother = RandomizedSmoothing(LINEAR, 2, 0.25, grid=grid, batch_size=64)
    data: Any = (torch.zeros(2, 3), TABLE.y[:2]) if clip is None else TABLE
    with pytest.raises(error, match=words):
        sandwich_dataset(smoother, data, clip=clip)


def test_radii_end_where_nothing_changes_the_class() -> None:
    constant = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        constant[1].weight.zero_()
        constant[1].bias.copy_(torch.tensor([1.0, 0.0]))
    x = 3 * torch.randn(8, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    run = sandwich_dataset(constant, (x, torch.zeros(8, dtype=torch.int64)), clip=None, max_images=2).run
    width = float(x.max()) - float(x.min())
    assert run.table["lower"] == pytest.approx(width)
    assert (run.table["upper"] == float("inf")).all()


def test_radii_may_exceed_the_range_of_the_data() -> None:
    far = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)).eval()
    with torch.no_grad():
        far[1].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        far[1].bias.copy_(torch.tensor([0.0, 20.0]))  # the boundary is at 10
    x = torch.tensor([[0.25], [0.5]])
    table = sandwich_dataset(far, (x, torch.tensor([1, 1])), clip=None).run.table
    assert table["lower"] == pytest.approx([9.75, 9.5], rel=1e-3)
    assert table["upper"] == pytest.approx([9.75, 9.5], rel=0.02)


# -- inputs that are no images

SMOOTHER = RandomizedSmoothing(NET, 3, 0.25, grid=None, batch_size=64)
TABULAR = {
    "attack": lambda data, **more: attack_dataset(FGSM(NET, 0.3, clip=None), data, **more),
    "certify": lambda data, **more: certify_dataset(SMOOTHER, data, n0=10, n=100, **more),
    "sequential": lambda data, **more: certify_dataset(
        SMOOTHER, data, n0=10, n=100, method="sequential", radii=[0.1], **more
    ),
    "predict": lambda data, **more: predict_dataset(SMOOTHER, data, n=100, **more),
    "smoothed sandwich": lambda data, **more: (
        sandwich_dataset(SMOOTHER, data, n0=10, n=50, n_attack=50, steps=2, draws=4, clip=None, **more).run
    ),
}


@pytest.mark.parametrize("kind", TABULAR)
def test_sweeps_take_tabular_inputs(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    TABULAR[kind]((X, Y), out=path, max_images=2)
    run = Run(path)
    run.check()
    assert len(run) == 2
    if run.parameters.get("examples"):
        assert run.parameters["shape"] == [4]
        assert run.examples().shape == (2, 4)
    page = page_html(run, data=ImageSet("mine", X, Y))
    assert "Without pictures: the inputs are not images but 4 numbers each." in page


def test_npz_files_hold_features_of_any_range(tmp_path: Path) -> None:
    np.savez(tmp_path / "table.npz", x=X.numpy(), y=Y.numpy())
    data = load_data(f"npz:{tmp_path / 'table.npz'}")
    assert data.shape == (4,)
    assert torch.equal(data.read(range(4))[0], X)
    np.savez(tmp_path / "images.npz", x=X.view(4, 2, 2).numpy(), y=Y.numpy())
    with pytest.raises(FileFormatError, match=r"expected pixels in \[0, 1\]"):
        load_data(f"npz:{tmp_path / 'images.npz'}")


def test_rows_and_batches_of_features_are_read() -> None:
    rows = [(x, int(y)) for x, y in zip(X, Y, strict=True)]
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=3)
    for data in (rows, batches):
        run = attack_dataset(FGSM(NET, 0.3, clip=None), data)
        assert run.examples().shape == X.shape


def test_features_are_no_images_and_other_shapes_neither(tmp_path: Path) -> None:
    x = (255 * torch.rand(4, 4)).round() / 255
    with pytest.raises(InputError, match="save_images: expected none for inputs that are not images"):
        attack_dataset(FGSM(NET, 0.1, grid="1/255"), (x, Y), save_images=tmp_path / "images")
    with pytest.raises(InputError, match=r"x \[N, C, H, W\] or \[N, D\]"):
        ImageSet("cube", torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.int64))


def test_features_are_normalized_one_by_one() -> None:
    mean, std = torch.arange(4) / 4, 1 + torch.arange(4) / 8
    inside = RandomizedSmoothing(lambda x: NET((x - mean) / std), 3, 0.25, grid=None, batch_size=64)
    outside = RandomizedSmoothing(NET, 3, 0.25, normalize=(mean, std), grid=None, batch_size=64)
    votes = [smoother.votes(X, n=50, indices=range(len(X))) for smoother in (inside, outside)]
    assert torch.equal(*map(torch.as_tensor, votes))

"""Attack sweeps on a grid: images moved first, levels stored, distances exact, images saved."""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.attack_runs import digits, pgd
from support.damage import change
from support.sweep_models import Stop, same
from torch import Tensor

from pyrobust.attacks import FAB, PGD
from pyrobust.auditing.check_run import check_run
from pyrobust.errors import InputError, StoreError
from pyrobust.evaluation import Run, SweepProgress, attack_dataset, robustness_curve, save_run_images
from pyrobust.runs.merge import merge_runs
from pyrobust.zoo import ImageSet, load_data, load_model

BYTE = Fraction(1, 255)


def byte_digits() -> ImageSet:
    data = digits()
    return ImageSet("bytes", (data.x * 255).round() / 255, data.y)


def levels(x: Tensor) -> np.ndarray:
    k = (x.double() * 255).round()
    assert torch.equal((k.float() / 255), x)
    return k.flatten(1).long().numpy()


@pytest.mark.parametrize(("norm", "epsilon"), [("linf", "38/255"), ("l2", 0.6), ("l1", 2.5), ("l0", 6.0)])
def test_stored_examples_are_levels_in_the_ball_with_exact_distances(norm: str, epsilon: Any) -> None:
    data = byte_digits()
    attack = pgd(norm=norm, epsilon=epsilon, grid="1/255")
    run = attack_dataset(attack, data, batch_size=7)
    assert run.parameters["grid"] == "1/255"
    assert len(run) == len(data)
    assert bool((~run.robust & run.correct).any())
    radius = Fraction(str(epsilon))
    delta = np.abs(levels(run.examples()) - levels(data.x))
    for row, by in enumerate(run.table["broken_by"].tolist()):
        d = delta[row].tolist()
        total = {"linf": max(d), "l2": sum(k * k for k in d), "l1": sum(d), "l0": sum(k > 0 for k in d)}[norm]
        power, unit = 2 if norm == "l2" else 1, Fraction(1) if norm == "l0" else BYTE
        assert total * unit**power <= radius**power
        if by:
            distance = run.table["distance"][row]
            assert distance <= float(radius)
            assert math.isclose(distance**power, float(total * unit**power), rel_tol=1e-12, abs_tol=1e-300)
    assert not list(check_run(run))


def test_images_off_the_grid_move_first_and_once_a_sweep_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = attack_dataset(pgd(epsilon="38/255", grid="1/255"), digits(), batch_size=5)
    said = [message for message in caplog.messages if "moved" in message]
    assert len(said) == 1
    assert "of the pixels to the nearest multiple of 1/255" in said[0]
    assert same(run, attack_dataset(pgd(epsilon="38/255", grid="1/255"), byte_digits(), batch_size=5))


def test_auto_is_the_grid_of_the_whole_data_set() -> None:
    run = attack_dataset(pgd(epsilon=0.25, grid="auto"), digits(), batch_size=3)
    assert run.parameters["grid"] == "1/16"
    assert torch.equal((run.examples() * 16).round() / 16, run.examples())
    data = digits()
    with pytest.raises(InputError, match=r"^grid: expected images on one of the grids"):
        attack_dataset(pgd(grid="auto"), ImageSet("off", data.x * 0.999, data.y))


def test_points_off_the_grid_or_outside_the_ball_are_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    data = byte_digits()
    for shift in (1e-6, 39 / 255):
        monkeypatch.setattr(PGD, "generate", lambda self, x, y, shift=shift, **_: (x + shift).clamp(0, 1))
        attack = pgd(epsilon="38/255", grid="1/255")
        with pytest.raises(InputError, match=r"expected PGD\.generate to return multiples of 1/255 within linf"):
            attack_dataset(attack, data)


def test_a_curve_starts_from_the_moved_images() -> None:
    data = digits()
    model = load_model("zoo:digits-smooth-0.25")
    settings: dict[str, Any] = {"steps": 3, "grid": "1/255"}
    epsilons = [8 / 255, 30 / 255, 50 / 255]
    curve = robustness_curve(PGD, model, data.x, data.y, epsilons, **settings)
    moved = robustness_curve(PGD, model, byte_digits().x, data.y, epsilons, **settings)
    assert curve.counts.tolist() == moved.counts.tolist()
    assert curve.counts[0] > curve.counts[-1]
    automatic = robustness_curve(PGD, model, data.x, data.y, [0.25], steps=3, grid="auto")
    assert automatic.counts.tolist() == [int(attack_dataset(pgd(epsilon=0.25, grid="auto"), data).robust.sum())]


def test_images_of_a_run_are_saved_shard_by_shard(tmp_path: Path) -> None:
    data, folder = byte_digits(), tmp_path / "images"
    attack = pgd(epsilon="38/255", grid="1/255")
    for shard in ((1, 2), (2, 2)):
        run = attack_dataset(attack, data, skip=2, shard=shard, out=tmp_path / f"{shard[0]}.db")
        save_run_images(run, folder)
    whole = merge_runs([tmp_path / "1.db", tmp_path / "2.db"])
    save_run_images(whole, folder)  # nothing to add
    loaded = load_data(f"folder:{folder}")
    assert torch.equal(loaded.x, whole.examples())
    assert loaded.y.tolist() == whole.table["label"].tolist()
    again = attack_dataset(pgd(epsilon=0, grid="1/255"), loaded)
    assert np.array_equal(again.table["prediction"], whole.table["adversarial"])
    rows = [line.split("\t") for line in (folder / "images.tsv").read_text().splitlines()]
    names = ["file", "index", "label", "prediction", "adversarial", "distance", "broken_by"]
    assert rows[1] == names
    assert [int(row[1]) for row in rows[2:]] == whole.table["index"].tolist()
    for row, distance in zip(rows[2:], whole.table["distance"].tolist(), strict=True):
        assert float(row[5] or "nan") == distance or math.isnan(distance)
    other = attack_dataset(pgd(epsilon="20/255", grid="1/255"), data)
    with pytest.raises(InputError, match="expected a folder of the same images"):
        save_run_images(other, folder)
    with pytest.raises(InputError, match=r"^run: expected an attack with grid 1/255"):
        save_run_images(attack_dataset(pgd(), data), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_images_are_saved_with_each_chunk(tmp_path: Path) -> None:
    data, folder, out = byte_digits(), tmp_path / "images", tmp_path / "run.db"
    whole = attack_dataset(pgd(epsilon="38/255", grid="1/255"), data, batch_size=5)
    written: list[int] = []

    def stop(progress: SweepProgress) -> None:
        if not progress.samples:
            written.append(len(list(folder.glob("*.png"))))
        if progress.done >= 10:
            raise Stop

    attack = pgd(epsilon="38/255", grid="1/255")
    with pytest.raises(Stop):
        attack_dataset(attack, data, batch_size=5, out=out, save_images=folder, progress=stop)
    assert written == [0, 0, 5]  # at the start, and after two commits, each before its images
    assert torch.equal(load_data(f"folder:{folder}").x, whole.examples(whole.table["index"][:5].tolist()))
    (folder / ".pyrobust.left").write_bytes(b"half a file of a killed process")
    kept = (folder / "000000.png").stat().st_mtime_ns
    with pytest.raises(StoreError, match="grid: '1/255' stored, '1/16' given"):
        attack_dataset(pgd(epsilon="38/255", grid="1/16"), data, out=out)
    attack_dataset(attack, data, batch_size=5, out=out, save_images=folder)
    assert (folder / "000000.png").stat().st_mtime_ns == kept
    assert torch.equal(load_data(f"folder:{folder}").x, whole.examples())
    attack_dataset(attack, data, batch_size=5, out=out, save_images=tmp_path / "a.npz")
    assert torch.equal(load_data(f"npz:{tmp_path}/a.npz").x, whole.examples())


def test_nearest_examples_are_saved(tmp_path: Path) -> None:
    attack = FAB(load_model("zoo:digits-smooth-0.25"), norm="l2", grid="1/255", steps=3)
    run = attack_dataset(attack, byte_digits(), minimum=True, max_images=6, save_images=tmp_path / "images")
    assert torch.equal(load_data(f"folder:{tmp_path}/images").x, run.examples())
    assert run.table["distance"].max() > 0
    assert not list(check_run(run))
    assert "FAB, l2 minimum; model" in (tmp_path / "images" / "images.tsv").read_text()


def test_images_are_never_overwritten(tmp_path: Path) -> None:
    data, attack = byte_digits(), pgd(epsilon="38/255", grid="1/255")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "000000.png").write_bytes(b"mine")
    with pytest.raises(InputError, match="save_images: expected a new or empty folder"):
        attack_dataset(attack, data, save_images=tmp_path / "mine")
    assert (tmp_path / "mine" / "000000.png").read_bytes() == b"mine"
    for other, options in ((pgd(), {}), (attack, {"keep_examples": False})):
        with pytest.raises(InputError, match="save_images: expected an attack with grid"):
            attack_dataset(other, data, save_images=tmp_path / "other", **options)
    assert not (tmp_path / "other").exists()


def test_the_audit_finds_what_is_off_the_grid(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run = attack_dataset(pgd(epsilon="38/255", grid="1/255"), byte_digits(), out=path)
    assert not list(check_run(run))
    changed = run.examples([3]).flatten()
    changed[5] = 0.1234
    for statement, values, words in (
        ("x_adv = ? WHERE idx = 3", [changed.numpy().tobytes()], "adversarial example that is not on the grid"),
        ("distance = 0.1234 WHERE broken_by = 'PGD'", [], "distance of no whole number"),
    ):
        change(path, f"UPDATE result SET {statement}", *values)
        assert words in " ".join(str(finding) for finding in check_run(Run(path)))

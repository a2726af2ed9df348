"""``pyrobust attack`` as a user sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.printed import BRIGHTNESS, cells, files

from pyrobust.attacks import APGD, FAB, AutoAttack, Square
from pyrobust.attacks.catalogue import CATALOGUE
from pyrobust.cli import attack_options
from pyrobust.evaluation import Run, read_log
from pyrobust.evaluation.robustness_curve import compute_robustness_curve
from pyrobust.zoo import load_data, load_model

MODEL = "zoo:digits-smooth-0.25"
BASE = ["attack", "--model", MODEL, "--data", "digits"]
PGD = [*BASE, "--attack", "pgd", "--steps", "3", "--max", "24"]
BYTES = [*PGD, "--epsilon", "38/255", "--max", "12", "--grid", "1/255"]
CURVE = ["curve", *BASE[1:], "--epsilons"]


def test_the_table_shows_the_results_and_settings_of_the_run(
    pyrobust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    done = pyrobust.ok(*PGD, "--epsilon", "38/255", "--seed", 4)
    name = "attack-pgd-digits-smooth-0.25-digits-linf-eps0.14902.db"
    assert files(tmp_path) == [name]
    assert done.err == f"run: {name} (export its log: pyrobust log {name})\n"
    assert "\x1b" not in done.out
    run = Run(name)
    assert run.parameters["epsilon"] == 38 / 255
    clean, robust = run.clean_accuracy(), run.robust_accuracy()
    assert cells(done.out, "clean accuracy")[:2] == [f"{100 * clean.value:.1f} %", str(clean.successes)]
    share, count, interval = cells(done.out, "robust accuracy")
    assert (share, count) == (f"{100 * robust.value:.1f} %", str(robust.successes))
    low, high = map(float, re.findall(r"[\d.]+", interval))
    assert low / 100 <= robust.lower
    assert robust.upper <= high / 100
    assert high - low < 100 * (robust.upper - robust.lower) + 0.21
    broken = run.table["broken_by"] == "PGD"
    assert 0 < broken.sum() < 24
    assert cells(done.out, "broken by PGD")[1] == str(broken.sum())
    distance = cells(done.out, "mean linf distance of the broken ones")[0]
    assert distance == f"{run.table['distance'][broken].mean():.4g}"
    for words in (
        *("linf epsilon 38/255", "PGD in linf and [0, 1], seed 4", "steps 3", "step_size 2.5 epsilon / steps"),
        *("restarts 1", "95 % interval"),
        *(MODEL, run.header.model_sha256[:12], run.header.data_sha256[:12], "24 of 382 images", "the first 24"),
    ):
        assert words in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    refused = pyrobust(*PGD, "--epsilon", "38/255", "--seed", 4, "--steps", 4).error
    assert "steps: 3 stored, 4 given" in refused


@pytest.mark.usefixtures("few_steps")
def test_autoattack_by_default(pyrobust: Any) -> None:
    done = pyrobust.ok(*BASE, "--epsilon", 0.8, "--max", 4, "--no-examples", "--out", "run.db")
    assert cells(done.out, "robust accuracy")[:2] == ["0.0 %", "0"]
    for name in ("apgd-ce", "apgd-t", "fab-t", "square"):
        assert len(cells(done.out, f"broken by {name}")) == 3
    assert Run("run.db").parameters["examples"] is False
    assert "version standard: apgd-ce 5 steps" in " ".join(done.out.split())
    done = pyrobust(*BASE, "--epsilon", 0.8, "--max", 2, "--version", "rand", "--out", "rand.db")
    assert "apgd-ce 5 steps of 20 draws, apgd-dlr 5 steps of 20 draws" in " ".join(done.out.split())
    assert "draws 20 times per step (EOT)" in " ".join(pyrobust("attack", "--help").out.replace("│", "").split())
    settings = Run("rand.db").parameters["settings"]
    assert (settings["version"], settings["draws"], settings["apgd-ce.draws"]) == ("rand", 20, 20)


NORMS = {"ddn": "l2", "deepfool": "linf", "super-deepfool": "l2", "cw": "l2", "ead": "l1", "hop-skip-jump": "l2"}


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        (name, NORMS.get(name, ("linf", "l2", "l1")[i % 3]))
        for i, name in enumerate(attack_options.NAMES[1:])
        if name != "sigma-zero"  # of l0 alone
    ],
)
def test_every_attack(pyrobust: Any, name: str, norm: str) -> None:
    steps = [] if name == "fgsm" else ["--steps", "2"]
    chosen = [*BASE, "--attack", name, "--norm", norm.title(), "--epsilon", "0.2", "--max", "3", *steps]
    pyrobust.ok(*chosen, "--out", "run.db")
    run = Run("run.db")
    assert run.parameters["norm"] == norm
    assert len(run) == 3
    assert (run.table["distance"][~run.robust] <= 0.2).all()


def test_names_are_the_published_attacks() -> None:
    def settings(name: str, norm: str = "linf") -> dict[str, Any]:
        attack, options = attack_options.choose_attack(name, norm, {})
        return vars(attack(load_model(MODEL), 0.1, **options))

    for norm in ("linf", "l2", "l1"):
        published = AutoAttack(load_model(MODEL), 0.1, norm=norm).attacks
        for name in ("apgd-ce", "apgd-t", "fab-t"):
            ours, theirs = settings(name, norm), vars(published[name])
            for key in {"loss", "steps", "rho", "multi_epsilon", "alpha_max", "eta", "beta"} & set(theirs):
                assert ours[key] == theirs[key], (norm, name, key)
    assert attack_options.choose_attack("fab-t", "l2", {})[0] is FAB
    assert settings("apgd-dlr")["loss"] == "dlr"
    assert attack_options.choose_attack("square", "l1", {"steps": 7, "restarts": 2}) == (
        Square,
        {"norm": "l1", "n_queries": 7, "restarts": 2},
    )
    assert attack_options.choose_attack("apgd-ce", "l1", {})[0] is APGD


def test_curve(pyrobust: Any, tmp_path: Path) -> None:
    Path("curve.json").write_text("of another program")
    options = ["--skip", 2, "--json", "curve.json", "--plot", "curve.png", "--replace"]
    done = pyrobust.ok(*CURVE, "0:0.2:5", *PGD[5:], *options)
    assert done.err.splitlines() == ["json: curve.json", "plot: curve.png"]
    assert files(tmp_path) == ["curve.json", "curve.png"]
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    curve = json.loads(Path("curve.json").read_text())
    digits = load_data("digits")
    x, y = digits.x[::2][:24], digits.y[::2][:24]
    attack, options = attack_options.choose_attack("pgd", "linf", {"steps": 3})
    points = [0.0, 0.05, 0.1, 0.15000000000000002, 0.2]
    expected = compute_robustness_curve(attack, load_model(MODEL), x, y, points, **options)
    assert dict(zip(curve["epsilons"], curve["robust_accuracy"], strict=True)) == expected
    assert curve["data_sha256"] == digits.sha256
    assert {type(value) for value in curve["broken_epsilon"]} == {float, type(None)}
    for epsilon, share in expected.items():
        assert cells(done.out, f"linf epsilon {epsilon:.4g}")[0] == f"{100 * share:.1f} %"
    for words in ("PGD in linf and [0, 1], seed 0", "steps 3", digits.sha256[:12], "24 of 382 images (one in 2"):
        assert words in done.out


def test_own_model_with_another_clip_range(pyrobust: Any, tmp_path: Path) -> None:
    (tmp_path / "mine_for_attack.py").write_text(BRIGHTNESS.format(dark=-0.5, bright=0.5))
    mine = ["attack", "--model", "mine_for_attack:Net", "--data", "mine_for_attack:data", "--attack", "bim"]
    pyrobust.ok(*mine, "--clip", "-1:1", "--epsilon", "0.75", "--out", "run.db")
    run = Run("run.db")
    assert run.parameters["clip"] == [-1.0, 1.0]
    assert float(run.robust_accuracy()) == 0.0
    assert float(run.examples([0]).min()) > -0.5
    pyrobust.ok(*mine, "--clip", "none", "--epsilon", "0.75", "--out", "free.db")
    assert Run("free.db").parameters["clip"] is None
    command = [*mine[:-1], "pyrobust.attacks:FGSM"]  # gets clip=None by name
    pyrobust.ok(*command, "--clip", "none", "--epsilon", "0.75", "--out", "own.db")


@pytest.mark.usefixtures("few_steps")
def test_minimum(pyrobust: Any, tmp_path: Path) -> None:
    few = [*BASE, "--minimum", "--norm", "l2", "--attack", "fab-t", "--steps", "3", "--max", "8"]
    done = pyrobust.ok(*few, "--confirm", "0.3", "--plot", "a.svg", "--json", "a.json")
    name = "attack-fab-t-digits-smooth-0.25-digits-l2-minimum.db"
    assert files(tmp_path) == ["a.json", "a.svg", name]
    run, summary = Run(name), json.loads(Path("a.json").read_text())
    distance = np.sort(run.table["distance"])
    for row, value in (("l2 distance, lower quartile", distance[1]), ("median", distance[3])):
        assert cells(done.out, row)[0] == f"{value:.4g}"
    [confirmation] = summary["curve"]["confirmations"]
    before = run.robust_accuracy(epsilon=0.3).successes
    assert (confirmation["epsilon"], confirmation["examples"]) == (0.3, before)
    right = int(cells(done.out, "l2 epsilon 0.3")[1])
    assert right == before - confirmation["broken"]
    assert sum(value is None or value > 0.3 for value in summary["curve"]["broken_epsilon"]) == right
    assert summary["distance_quantiles"]["0.5"] == distance[3]
    text = " ".join(done.out.split())
    assert "Intervals are pointwise, of the accuracy under this attack, and no lower bound of robustness" in text
    assert "no lower bound of robustness" in " ".join(summary["about"])
    again = pyrobust(*few, "--json", "-", "--max", "8")
    assert "already complete, 8 of 8 done" in again.err
    assert json.loads(again.out)["curve"]["confirmations"] == []
    pyrobust.ok("log", name, "--out", "log.tsv")
    assert np.array_equal(read_log("log.tsv")["distance"], run.table["distance"])
    pyrobust.ok("audit", name)


@pytest.mark.parametrize("norm", ["l2", "l0"])
@pytest.mark.usefixtures("few_steps")
def test_the_ensemble_by_default(pyrobust: Any, norm: str) -> None:
    done = pyrobust.ok(*BASE, "--minimum", "--norm", norm, "--max", "2", "--restarts", "2", "--out", "run.db")
    settings = Run("run.db").parameters["settings"]
    assert settings["attacks"].split(", ")[0] in ("fmn", "ddn", "sigma-zero")
    assert settings["fmn.restarts"] == 20  # ten by default
    assert f"MinimumNormEnsemble in {norm} and [0, 1], seed 0; {settings['attacks'].split(', ')[0]} " in " ".join(
        done.out.split()
    )


def test_certified_first(pyrobust: Any) -> None:
    base = ["attack", "--model", "zoo:digits-ibp-0.10", "--data", "digits", "--epsilon", 0.05, "--max", 8]
    done = pyrobust.ok(*base, "--certify-first", "--out", "first.db", "--json", "first.json")
    run = Run("first.db")
    proved = int(run.table["proved"].sum())
    assert proved > 0
    assert run.parameters["certify_first"] is True
    assert cells(done.out, "proved robust, not attacked")[1] == str(proved)
    assert cells(done.out, "rows of the model saved, at least")[0] == f"{run.table['rows_saved'].sum():,}"
    assert "Certified first: images proved robust (deterministic, float32 semantics)" in done.out
    assert json.loads(Path("first.json").read_text())["certified_first"]["proved"] == proved
    assert "certify_first: True stored, None given" in pyrobust(*base, "--out", "first.db").error


def test_curves_certify_first(pyrobust: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    class Fast(AutoAttack):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            calls.append(options)
            super().__init__(*arguments, **options | {"attacks_to_run": ["apgd-ce"]})

    monkeypatch.setattr("pyrobust.attacks.AutoAttack", Fast)
    curve = pyrobust.ok(*CURVE, "0:0.05:3", "--certify-first", "--max", 8, "--json", "curve.json")
    assert "Certified first" in curve.out
    assert max(json.loads(Path("curve.json").read_text())["proved_epsilon"]) > 0
    assert all(options["certify_first"] for options in calls)
    calls.clear()
    minimum = [*BASE, "--minimum", "--attack", "deepfool", "--norm", "l2", "--max", 8]
    confirmed = pyrobust.ok(*minimum, "--confirm", "0.05", "--certify-first")
    assert "of them proved robust" in " ".join(confirmed.out.split())
    assert [options["certify_first"] for options in calls] == [True]


def test_saved_images_are_attacked_images_wherever_they_are_loaded(
    pyrobust: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = pyrobust.ok(*BYTES, "--save-images", "adversarial")
    assert "linf epsilon 38/255 in steps of 1/255" in " ".join(done.out.split())
    assert "images: adversarial" in done.err
    assert [message[:13] for message in caplog.messages] == ["digits: moved"]
    run = Run(tmp_path / "attack-pgd-digits-smooth-0.25-digits-linf-eps0.14902-grid-1-255.db")
    assert torch.equal(load_data(f"folder:{tmp_path}/adversarial").x, run.examples())
    pyrobust.ok(*BYTES, "--save-images", "adversarial")  # complete: nothing to do
    pyrobust.ok("audit", str(run.path))


def test_grids_of_runs_and_curves(pyrobust: Any, tmp_path: Path) -> None:
    pyrobust.ok(*PGD, "--epsilon", "1/4", "--max", "12", "--grid", "auto", "--out", "auto.db")
    assert Run(tmp_path / "auto.db").parameters["grid"] == "1/16"
    curve = pyrobust.ok("curve", *PGD[1:], "--epsilons", "0:0.2:3", "--max", "12", "--grid", "1/255")
    assert "grid 1/255" in curve.out


def test_the_command_line_has_the_names_of_the_catalogue() -> None:
    assert list(attack_options.NAMES) == list(CATALOGUE)

"""Errors are one line that names the option as it is typed, wherever the check is, and leave no file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

NET = "--model zoo:digits-smooth-0.25 --data digits --max 2"
SMOOTH = f"{NET} --sigma 0.25 --n 20"
REFUSED = {
    f"certify {SMOOTH}": [
        (
            "--grid x",
            "--grid: expected a positive fraction of integers below 2**24, such as 1/255, or auto or none",
        ),
        ("--grid=", "--grid: expected a positive fraction"),
        ("--grid 0", "--grid: expected a positive fraction"),
        ("--grid 1e5000", "--grid: expected a positive fraction"),
        ("--noise laplace --grid 1/16", "--grid: expected none with laplace noise, got '1/16'"),
        ("--sigma -1", "--sigma: expected a positive number"),
        ("--sigma inf", "--sigma: expected a positive number in the range of float32 noise, got inf"),
        ("--sigma 1e9 --grid 1/16", "--sigma: expected at most 2**13 steps"),
        ("--alpha 2", "--alpha: expected a number in (0, 1), got 2.0"),
        ("--n 0", "--n: expected at least 1, got 0"),
        ("--n 10000000000", "--n: expected at most"),
        ("--n0 0", "--n0: expected at least 1, got 0"),
        ("--seed -1", "--seed: expected 0 to 2**64 - 1"),
        ("--batch-size 9999999999", "--batch-size: expected at most 4294967296"),
        ("--skip 9999999999", "--skip: expected at most 4294967296"),
        ("--max 9999999999", "--max: expected at most 4294967296"),
        ("--device nowhere", "--device: expected cpu or cuda, got 'nowhere'"),
        ("--device meta", "--device: expected cpu or cuda, got meta"),
        ("--device cuda:99", "--device: expected cpu"),
        ("--normalize 0,0/1,1", "--normalize: expected a mean and a std for each channel of the images, 1, got 2"),
        ("--normalize 0.5", "--normalize: expected MEAN/STD"),
        ("--normalize 0.5/0", "--normalize: expected MEAN/STD"),
        ("--num-classes 9", "--num-classes: expected the number of the model's outputs, 10, got 9"),
        ("--shard 3/2", "--shard: expected I/K"),
        ("--model zoo:none", "--model: expected zoo:"),
        ("--model no_such_module:net", "--model: no_such_module:net: no module 'no_such_module'"),
        ("--data none", "--data: expected one of digits"),
        ("--data npz:missing.npz", "missing.npz: expected a file, found nothing there"),
        ("--weights missing.pt", "missing.pt: expected a file, found nothing there"),
        ("--out ''", "--out: expected a file or a folder"),
        ("--out nowhere/run.db", "nowhere/run.db: cannot create the file"),
        ("--two-class", '--two-class: expected none with method "fixed"'),
        ("--radii 1", '--radii: expected none with method "fixed", got [1.0]; use method "sequential"'),
    ],
    f"certify {SMOOTH} --method sequential": [
        ("", "--radii: expected at least one radius for the sequential method to decide, such as 0.25, got none"),
        ("--radii 0.1,", "--radii: expected a finite number"),
        ("--radii -1", "--radii: expected at least 0"),
        ("--radii 1 --hybrid 1", "--hybrid: expected a share of alpha in [0, 1), got 1.0"),
        ("--radii 1 --two-class --noise laplace", "--two-class: expected gaussian noise"),
    ],
    f"predict {SMOOTH}": [("--alpha 0", "--alpha: expected a number in (0, 1)")],
    f"verify {NET} --method crown": [
        ("", "--epsilon: expected either epsilons or radius, got neither"),
        ("--epsilon 0.1 --radius", "--epsilon: expected either epsilons or radius, got both"),
        ("--epsilon 0.1,", "--epsilon: expected a finite number such as 0.1 or 8/255, got ''"),
        ("--epsilon 0.1,0.1", "--epsilon: expected positive numbers, each once, got 0.1, 0.1"),
        ("--epsilon 0", "--epsilon: expected positive numbers"),
        ("--epsilon -1", "--epsilon: expected at least 0"),
        ("--epsilon 0.1 --largest 1/2", "--largest: expected none without --radius; leave it out"),
        ("--radius --largest wide", "--largest: expected a finite number"),
        ("--radius --attack pgd", "--attack: expected none without epsilons, got pgd"),
        ("--epsilon 0.1 --clip 0:0.5", "--data: digits: expected pixels in [0.0, 0.5], the clip range"),
    ],
    f"attack {NET}": [
        ("", "--epsilon: expected either --epsilon or --minimum, got neither; for a curve run pyrobust curve"),
        ("--curve 0:1:2", "--curve: expected none, as it is an option of curve; run pyrobust curve"),
        ("--epsilons 0:1:2", "--epsilons: expected none, as it is an option of curve; run pyrobust curve"),
        ("--epsilon 0.1 --minimum", "--epsilon: expected either --epsilon or --minimum, got both"),
        ("--epsilon 0.1 --replace", "--replace: expected none without --plot or --json"),
        ("--epsilon 0.1 --plot a.png", "--plot: expected none without --minimum"),
        ("--epsilon 0.1 --json no/a.json", "--json: expected a file in a writable folder"),
        ("--epsilon 0.1 --confirm 0.1", "--confirm: expected none without --minimum; leave it out"),
        (
            "--epsilon 3 --norm l0",
            "--norm: expected linf, l2, l1 with --attack autoattack, got l0; for l0 use --attack pgd, fgsm, bim, fmn, "
            "sigma-zero",
        ),
        ("--epsilon -0.1", "--epsilon: expected at least 0, got '-0.1'"),
        ("--epsilon nan", "--epsilon: expected a finite number"),
        ("--epsilon 8/0", "--epsilon: expected a finite number"),
        ("--epsilon 8/255/2", "--epsilon: expected a finite number such as 0.1 or 8/255, got '8/255/2'"),
        ("--epsilon 0.1 --clip 0", "--clip: expected LOW:HIGH"),
        ("--epsilon 0.1 --clip 1:0", "--clip: expected LOW:HIGH with LOW below HIGH"),
        ("--epsilon 0.1 --clip 0:inf", "--clip: expected a finite number"),
        ("--epsilon 0.1 --clip 0:0.5", "--data: digits: expected pixels in [0.0, 0.5], the attack's clip range"),
        ("--epsilon 0.1 --steps 3", "--steps: expected none with --attack autoattack, got 3; leave it out"),
        ("--epsilon 0.1 --attack fgsm --steps 3", "--steps: expected none with --attack fgsm"),
        ("--epsilon 0.1 --attack bim --restarts 3", "--restarts: expected none with --attack bim"),
        ("--epsilon 0.1 --attack pgd --restarts 0", "--restarts: expected at least 1, got 0"),
        ("--epsilon 0.1 --attack pgd --version plus", "--version: expected none with --attack pgd"),
        ("--epsilon 0.1 --attack pgd --steps 0", "--steps: expected at least 1, got 0"),
        ("--epsilon 0.1 --attack square --steps 0", "--steps: expected at least 1, got 0"),
        ("--epsilon 0.1 --attack pgd --seed -1", "--seed: expected 0 to 2**64 - 1"),
        ("--epsilon 0.1 --attack hop-skip-jump --norm l1", "--norm: expected"),
        ("--epsilon 0.1 --attack pgd --certify-first", "--certify-first: expected none with another attack than auto"),
        ("--minimum --certify-first", "--certify-first: expected none with --minimum but without --confirm"),
        ("--minimum --confirm 0.1 --shard 1/2", "--confirm: expected none with --shard, since the run"),
        ("--minimum --confirm 0,0.1", "--confirm: expected epsilons above 0, got '0,0.1'"),
        ("--minimum --confirm x", "--confirm: expected a finite number"),
        ("--minimum --confirm 3 --norm l0", "--confirm: expected none with --norm l0, which AutoAttack"),
        ("--minimum --norm l0 --attack ddn", "--norm: expected l2 with --attack ddn, got l0; for l0 use "),
        ("--minimum --norm l1 --attack deepfool", "--norm: expected"),
        (
            "--minimum --attack pgd",
            "--attack: expected a minimum-norm attack with --minimum, fab-t, hop-skip-jump,",
        ),
        ("--minimum --steps 3", "--steps: expected none without --attack, got 3; name an attack"),
        ("--minimum --restarts 0", "--restarts: expected at least 1, got 0"),
        ("--minimum --version plus", "--version: expected none without --attack, got plus"),
        ("--minimum --plot a.gif", "--plot: expected a file name that ends in .png, .pdf, .svg"),
    ],
    f"curve {NET}": [
        ("--epsilons 0:1", "--epsilons: expected START:STOP:POINTS"),
        ("--epsilons 0:1:1", "--epsilons: expected START:STOP:POINTS with 2 to 10000 points"),
        ("--epsilons 1:0:5", "--epsilons: expected START:STOP:POINTS with START below STOP"),
        ("--epsilons 0:x:5", "--epsilons: expected a finite number"),
        ("--epsilons 0:1:5 --plot curve.gif", "--plot: expected a file name that ends in .png, .pdf, .svg"),
        ("--epsilons 0:1:5 --replace", "--replace: expected none without --plot or --json"),
        ("--epsilons 0:1:5 --attack pgd --certify-first", "--certify-first: expected none with another attack"),
    ],
    "train": [
        ("digits-smooth --sigma -1", "--sigma: expected a finite number above 0"),
        ("digits-ibp --method none", "--method: expected one of ibp, crown-ibp"),
        ("digits-ibp --epochs 0", "--epochs: expected 1 to 2**20 - 1"),
    ],
}


@pytest.mark.parametrize(
    ("command", "options", "words"), [(command, *row) for command, rows in REFUSED.items() for row in rows]
)
def test_the_option_is_named(pyrobust: Any, tmp_path: Path, command: str, options: str, words: str) -> None:
    assert pyrobust(*shlex.split(f"{command} {options}")).error.startswith(f"error: {words}")
    assert list(tmp_path.iterdir()) == []


def test_file_names_are_not_taken_for_options(pyrobust: Any) -> None:
    # Files named like options.
    assert pyrobust("plan", "sigma").error.startswith("error: sigma: file not found; expected a certification log")
    assert pyrobust("log", "out").error.startswith("error: out: file not found; expected a run of pyrobust")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--sigma", "x", "expected a number such as 0.25 or 1/4, got 'x'"),
        ("--sigma", "1/0", "expected a number such as 0.25 or 1/4, got '1/0'"),
        ("--n", "1e5", "expected a whole number such as 1000, got '1e5'"),
        ("--skip", "0", "expected at least 1, got 0"),
        ("--max", "-1", "expected at least 1, got -1"),
    ],
)
def test_values_of_options_are_named(pyrobust: Any, option: str, value: str, words: str) -> None:
    done = pyrobust("certify", *shlex.split(SMOOTH), option, value)
    assert done.status == 2
    assert f"Invalid value for '{option}': {words}" in " ".join(done.err.replace("│", " ").split())


def test_numbers_may_be_fractions(pyrobust: Any) -> None:
    done = pyrobust("certify", *shlex.split(SMOOTH), "--sigma", "1/4", "--max", 1, "--out", "run.db")
    assert done.status == 0
    assert "sigma 0.25" in done.out

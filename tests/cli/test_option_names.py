"""Errors are one line that names the option as it is typed, wherever the check is, and change no file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from support.printed import contents

LOG = "idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.377\t1\n1\t8\t8\t0.465\t1\n"
VERDICTS = "id,behaviour,model,judge,success\na0,0,a,rule,1\na1,1,a,rule,0\nb0,0,b,rule,0\nb1,1,b,rule,0\n"
#: The files that the commands find.
FILES = {
    "log_sigma0.25.tsv": LOG,
    "log.csv": LOG.replace("\t", ","),
    "odd.tsv": "\0\1\2",
    "nan_sigma0.25.tsv": LOG.replace("0.465", "nan"),
    "zero_sigma0.25.tsv": LOG.replace("0.377\t1", "0.0\t0").replace("0.465\t1", "0.0\t0"),
    "verdicts.csv": VERDICTS,
    "cut.csv": VERDICTS + "a,b\n",
    "newer.jsonl": '{"pyrobust": "threat-verdicts", "version": 99}\n',
} | dict.fromkeys(("taken", "taken.md", "taken.json", "taken.html", "taken.npz", "taken.png"), "mine")

NET = "--model zoo:digits-smooth-0.25 --data digits --max 2"
SMOOTH = f"{NET} --sigma 0.25 --n 20"
VERIFY = "verify; to prove bounds of the network itself, run pyrobust verify without --sigma"
BYTES = "--epsilon 38/255 --grid 1/255 --save-images"
EXISTS = "which exists; name another or pass --replace"
OTHER = f"a new file, or one of the same kind, got 'taken.json', {EXISTS}"
REFUSED = {
    f"certify {SMOOTH}": [
        (
            "--grid x",
            "--grid: expected a positive fraction of integers below 2**24, such as 1/255, or auto or none",
        ),
        ("--sigma -1", "--sigma: expected a positive number"),
        ("--max 9999999999", "--max: expected at most 4294967296"),
        ("--device nowhere", "--device: expected cpu or cuda, got 'nowhere'"),
        ("--normalize 0,0/1,1", "--normalize: expected a mean and a std for each channel of the images, 1, got 2"),
        ("--normalize 0.5", "--normalize: expected MEAN/STD"),
        ("--num-classes 9", "--num-classes: expected the number of the model's outputs, 10, got 9"),
        ("--model no_such_module:net", "--model: no_such_module:net: no module 'no_such_module'"),
        ("--data none", "--data: expected one of digits"),
        ("--out ''", "--out: expected a file or a folder"),
        ("--out nowhere/run.db", "nowhere/run.db: cannot create the file"),
        ("--json taken.json", f"--json: expected {OTHER}"),
        ("--out run.db --json run.db", "--json: expected"),
    ],
    f"certify {NET}": [
        ("--method crown --sigma 1", f"--method: expected fixed or sequential, got crown, which is one of {VERIFY}"),
        ("--method=ibp --radius", f"--method: expected fixed or sequential, got ibp, which is one of {VERIFY}"),
        ("--epsilon 0.02", f"--epsilon: expected none, as it is an option of {VERIFY}"),
        ("--sigma 0.5 --radius", f"--radius: expected none, as it is an option of {VERIFY}"),
        ("--sigma 0.5 --unsound", f"--unsound: expected none, as it is an option of {VERIFY}"),
        ("--norm l2 --sigma x", f"--norm: expected none, as it is an option of {VERIFY}"),
    ],
    f"certify {SMOOTH} --method sequential": [
        ("", "--radii: expected at least one radius for the sequential method to decide, such as 0.25, got none"),
    ],
    f"predict {SMOOTH}": [("--alpha 0", "--alpha: expected a number in (0, 1)")],
    f"verify {NET} --method crown": [
        ("", "--epsilon: expected either epsilons or radius, got neither"),
        ("--epsilon 0.1 --radius", "--epsilon: expected either epsilons or radius, got both"),
        ("--epsilon -1", "--epsilon: expected at least 0"),
        ("--epsilon 0.1 --largest 1/2", "--largest: expected none without --radius; leave it out"),
        ("--epsilon 0.1 --clip 0:0.5", "--data: digits: expected pixels in [0.0, 0.5], the clip range"),
    ],
    f"attack {NET}": [
        ("", "--epsilon: expected either --epsilon or --minimum, got neither; for a curve run pyrobust curve"),
        ("--curve 0:1:2", "--curve: expected none, as it is an option of curve; run pyrobust curve"),
        ("--epsilons 0:1:2", "--epsilons: expected none, as it is an option of curve; run pyrobust curve"),
        ("--epsilon 0.1 --minimum", "--epsilon: expected either --epsilon or --minimum, got both"),
        ("--epsilon 0.1 --replace", "--replace: expected none without --plot or --json"),
        ("--epsilon 0.1 --plot a.png", "--plot: expected none without --minimum"),
        ("--epsilon 0.1 --confirm 0.1", "--confirm: expected none without --minimum; leave it out"),
        (
            "--epsilon 3 --norm l0",
            "--norm: expected linf, l2, l1 with --attack autoattack, got l0; for l0 use --attack pgd, fgsm, bim, fmn, "
            "sigma-zero",
        ),
        ("--epsilon -0.1", "--epsilon: expected at least 0, got '-0.1'"),
        ("--epsilon 8/255/2", "--epsilon: expected a finite number such as 0.1 or 8/255, got '8/255/2'"),
        ("--epsilon 0.1 --clip 0", "--clip: expected LOW:HIGH"),
        ("--epsilon 0.1 --clip 1:0", "--clip: expected LOW:HIGH with LOW below HIGH"),
        ("--epsilon 0.1 --clip 0:0.5", "--data: digits: expected pixels in [0.0, 0.5], the attack's clip range"),
        ("--epsilon 0.1 --steps 3", "--steps: expected none with --attack autoattack, got 3; leave it out"),
        ("--epsilon 0.1 --attack fgsm --steps 3", "--steps: expected none with --attack fgsm"),
        ("--epsilon 0.1 --attack pgd --version plus", "--version: expected none with --attack pgd"),
        ("--epsilon 0.1 --attack square --steps 0", "--steps: expected at least 1, got 0"),
        ("--epsilon 0.1 --attack pgd --certify-first", "--certify-first: expected none with another attack than auto"),
        ("--minimum --certify-first", "--certify-first: expected none with --minimum but without --confirm"),
        ("--minimum --confirm 0.1 --shard 1/2", "--confirm: expected none with --shard, since the run"),
        ("--minimum --confirm 0,0.1", "--confirm: expected epsilons above 0, got '0,0.1'"),
        ("--minimum --confirm 3 --norm l0", "--confirm: expected none with --norm l0, which AutoAttack"),
        ("--minimum --norm l0 --attack ddn", "--norm: expected l2 with --attack ddn, got l0; for l0 use "),
        (
            "--minimum --attack pgd",
            "--attack: expected a minimum-norm attack with --minimum, fab-t, hop-skip-jump,",
        ),
        ("--minimum --steps 3", "--steps: expected none without --attack, got 3; name an attack"),
        ("--minimum --version plus", "--version: expected none without --attack, got plus"),
        ("--minimum --plot a.gif", "--plot: expected a file name that ends in .png, .pdf, .svg"),
        ("--epsilon 0.1 --save-images a", "--save-images: expected --grid 1/255"),
        ("--epsilon 0.1 --grid auto --save-images a", "--save-images: expected --grid 1/255"),
        (f"{BYTES} a --no-examples", "--save-images: expected none with --no-examples"),
        (f"{BYTES} taken", "--save-images: expected a folder, got the file"),
        (f"{BYTES} .", "--save-images: expected a new or empty folder"),
        (f"{BYTES} taken.npz", "--save-images: expected a new file"),
    ],
    f"curve {NET}": [
        ("--epsilons 0:1", "--epsilons: expected START:STOP:POINTS"),
        ("--epsilons 0:1:1", "--epsilons: expected START:STOP:POINTS with 2 to 10000 points"),
        ("--epsilons 1:0:5", "--epsilons: expected START:STOP:POINTS with START below STOP"),
        ("--epsilons 1:1:5", "--epsilons: expected START:STOP:POINTS with START below STOP"),
        ("--epsilons 0:1:5 --attack pgd --certify-first", "--certify-first: expected none with another attack"),
        ("--epsilons 0:1:5 --json taken.json", f"--json: expected {OTHER}"),
        ("--epsilons 0:1:5 --plot taken.png", f"--plot: expected a new file, got 'taken.png', {EXISTS}"),
        (
            "--epsilons 0:1:5 --json taken.json --weights taken.json --replace",
            "--json: expected a file other than the inputs",
        ),
        (
            "--epsilons 0:1:5 --plot taken.png --data folder:. --replace",
            "--plot: expected a file other than the inputs",
        ),
    ],
    f"diagnose {NET}": [
        ("--epsilon 0", "--epsilon: expected a finite number above 0, got 0.0"),
        ("--epsilon 0.1 --replace", "--replace: expected none without --json FILE"),
        ("--epsilon 0.1 --json taken.json", f"--json: expected {OTHER}"),
    ],
    "sandwich --model zoo:digits-ibp-0.10 --data digits": [
        ("--n 5", "--n: expected none without --sigma"),
        ("--grid 1/255", "--grid: expected none without --sigma"),
        ("--sigma 0.25 --norm l2", "--norm: expected none with --sigma"),
        ("--sigma 0.25 --epsilon 0.1", "--epsilon: expected none with --sigma"),
    ],
    "bench": [
        ("--only nothing", "--only: expected a part of the name of a case, got 'nothing'; there are: sample"),
        ("--seconds -1", "--seconds: expected a number of at least 0"),
        ("--json taken.json", f"--json: expected {OTHER}"),
    ],
    "audit log_sigma0.25.tsv": [
        ("--alpha 2", "--alpha: expected a number from"),
        ("--out table.doc", "--out: expected a file name that ends in one of .md"),
        ("--json - --format md", "--format: expected none with --json -"),
        ("--out a.md --out ./a.md", "--out: expected another file for each output, got 'a.md' again"),
        ("--out a.json --json ./a.json", "--json: expected another file for each output"),
        ("--json log_sigma0.25.tsv --replace", "--json: expected a file other than the inputs"),
        ("log.csv --out log.csv --replace", "--out: expected a file other than the inputs"),
        ("--out taken.md", f"--out: expected a new file, got 'taken.md', {EXISTS}"),
        ("--json taken.json", f"--json: expected {OTHER}"),
        ("--out nowhere/a.md", "--out: expected a file in a writable folder"),
    ],
    "report log_sigma0.25.tsv": [
        ("", "--out: expected a folder for tables and figures, or --html with a file for a page; got neither"),
        ("--out o --formats png,gif", "--formats: expected formats from png,pdf,svg,md,tex,csv,json, got 'gif'"),
        ("--out taken --formats md", "taken"),
        ("--html p.html --formats md", "--formats: expected none without --out, got 'md'"),
        ("--out o --data digits", "--data: expected none without --html, got 'digits'"),
        ("--html p.html --data digits", "--data: expected the data set of the results, got digits"),
        ("--html missing/p.html", "--html: expected a file in a writable folder"),
        ("--html taken.html", "--html: expected a new file, or one of the same kind"),
        ("--html log_sigma0.25.tsv --replace", "--html: expected a file other than the inputs"),
        ("nowhere.tsv --out o", "nowhere.tsv"),
        ("odd.tsv --out o", "odd.tsv"),
        (
            "nan_sigma0.25.tsv --out o",
            "logs: expected radii that are finite and at least 0, got nan in nan_sigma0.25.tsv",
        ),
        ("--out o --by model", "--by: expected none without verdicts on threats"),
        ("--out o --k 2", "--k: expected none without verdicts on threats"),
        ("--out o --invert", "--invert: expected none without verdicts on threats"),
    ],
    "report --out o": [
        ("verdicts.csv --radii 0.5", "--radii: expected none with verdicts on threats, got '0.5'"),
        ("verdicts.csv --sigma 0.5", "--sigma: expected none with verdicts on threats, got 0.5"),
        ("verdicts.csv --by colour", "--by: expected columns from id, prompt"),
        ("verdicts.csv --judge nobody", "--judge: expected one of rule, got 'nobody'"),
        ("verdicts.csv --k 5", "--k: expected at most the number of attempts at each prompt, got 5"),
        ("verdicts.csv --k 0", "--k: expected at least 1, got 0"),
        ("verdicts.csv log_sigma0.25.tsv", "LOG: expected files of one kind"),
        ("verdicts.csv verdicts.csv", "VERDICTS: expected each file once"),
        ("cut.csv", "cut.csv: line 6: expected 5 fields"),
        ("newer.jsonl --html page.html", "newer.jsonl: line 1: expected verdicts of version 1"),
    ],
    "plan --n-max 100": [
        ("log.csv", "log.csv"),
        ("log_sigma0.25.tsv --radii 0.25,x", "--radii: expected"),
        ("log_sigma0.25.tsv --n-max 0", "--n-max: expected at least 1"),
        ("log_sigma0.25.tsv --workers 2", "--workers: expected"),
        ("log_sigma0.25.tsv --images 5", "--images: expected together with --workers, got 5"),
        ("missing.tsv", "missing.tsv"),
        ("zero_sigma0.25.tsv", "zero_sigma0.25.tsv: expected a certified radius above 0, got none"),
        ("sigma", "sigma: file not found; expected a certification log"),  # named like an option
    ],
    "watch none.db": [
        ("--once", "none.db: file not found or empty; expected a run of pyrobust"),
        ("--interval 0", "--interval: expected seconds above 0, at most 3600, got 0"),
        ("--once --html taken.html", "--html: expected a new file, or one of the same kind"),
    ],
    "verify --model zoo:digits-ibp-0.10 --epsilon 0.1": [
        (f"--data {form.format('x' * 300)}", f"{'x' * 40}...: expected the name of a file, got one that is too long")
        for form in ("folder:{}", "hf:{}", "parquet:{}*.parquet", "tar:{}.tar")
    ],
    "missing": [
        ("nothing.db", "nothing.db: file not found"),
    ],
    "log": [("out", "out: file not found; expected a run of pyrobust")],  # named like an option
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
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    before = contents(tmp_path)
    assert pyrobust(*shlex.split(f"{command} {options}")).error.startswith(f"error: {words}")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"certify {SMOOTH} --sigma x", "value for '--sigma': expected a number such as 0.25 or 1/4, got 'x'"),
        (f"certify {SMOOTH} --sigma 1/0", "value for '--sigma': expected a number such as 0.25 or 1/4, got '1/0'"),
        (f"certify {SMOOTH} --n 1e5", "value for '--n': expected a whole number such as 1000, got '1e5'"),
        (f"certify {SMOOTH} --skip 0", "value for '--skip': expected at least 1, got 0"),
        (f"certify {SMOOTH} --max -1", "value for '--max': expected at least 1, got -1"),
        (f"certify {SMOOTH} --method guess", "'guess' is not one of 'fixed', 'sequential'"),
        (f"certify {NET} --norm l2 --nothing", "No such option: --nothing"),
        ("certify --model zoo:digits-smooth-0.25", "Missing option '--data'"),
        (f"attack {NET} --epsilon 0.1 --attack pgdx", "or module:callable, got 'pgdx'"),
        *(
            (f"curve {NET} --epsilons 0:1:5 {option} 1", f"No such option: {option}")
            for option in ("--out", "--shard", "--order", "--devices", "--threads", "--epsilon")
        ),
    ],
)
def test_usage(pyrobust: Any, line: str, words: str) -> None:
    done = pyrobust(*shlex.split(line))
    assert done.status == 2
    assert words in " ".join(done.err.replace("│", " ").split())


def test_numbers_may_be_fractions(pyrobust: Any) -> None:
    done = pyrobust.ok("certify", *shlex.split(SMOOTH), "--sigma", "1/4", "--max", 1, "--out", "run.db")
    assert "sigma 0.25" in done.out

"""The commands as a user sees them: output, files and exit statuses."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.printed import BRIGHTNESS, files

from pyrobust.cli import main
from pyrobust.cli.sweep import run_name
from pyrobust.errors import InputError
from pyrobust.evaluation import Run, read_log
from pyrobust.zoo import load_digits

MODEL = "zoo:digits-smooth-0.25"
BASE = ["--model", MODEL, "--data", "digits", "--sigma", "0.25"]
QUICK = [*BASE, "--n0", "20", "--n", "100"]


def test_certify_log_and_table(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust.ok("certify", *QUICK, "--max", 5, "--out", "run.db")
    assert "certified at radius 0 " in done.out
    assert "run: run.db (export its log: pyrobust log run.db)" in done.err
    run = Run("run.db")
    assert run.header.model == MODEL
    assert len(run) == 5
    shown = pyrobust.ok("log", "run.db")
    assert shown.err == ""
    assert shown.out.splitlines()[0].split("\t") == ["idx", "label", "predict", "radius", "correct", "time"]
    written = pyrobust("log", "run.db", "--out", "log.tsv")
    assert written.out == ""
    assert Path("log.tsv").read_text() == shown.out
    assert np.array_equal(read_log("log.tsv")["idx"], range(5))
    assert files(tmp_path) == ["log.tsv", "log.tsv.json", "run.db"]


def test_the_default_name_describes_the_run_which_is_resumed(pyrobust: Any, tmp_path: Path) -> None:
    for _ in range(2):
        done = pyrobust("certify", *QUICK, "--max", 2, "--shard", "1/2")
        name = "certify-digits-smooth-0.25-digits-sigma0.25-n100-shard1of2.db"
        assert done.status == 0
        assert f"run: {name}" in done.err
        assert files(tmp_path) == [name]
    assert "n0: 20 stored, 30 given" in pyrobust("certify", *QUICK, "--n0", 30, "--max", 2, "--shard", "1/2").error
    pyrobust.ok("predict", *BASE, "--n", 50, "--max", 2)
    assert "predict-digits-smooth-0.25-digits-sigma0.25-n50.db" in files(tmp_path)


def test_a_resumed_run_says_what_was_done(pyrobust: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyrobust.runs.writer import RunWriter

    commands = {
        "certify": [*QUICK, "--batch-size", "16"],
        "attack": [*QUICK[:4], "--attack", "fgsm", "--epsilon", "0.1", "--batch-size", "16"],
    }
    append = RunWriter.append
    for command, options in commands.items():
        arguments = [command, *options, "--max", "40", "--out", f"{command}.db"]

        def interrupted(writer: RunWriter, *args: Any, **keywords: Any) -> None:
            append(writer, *args, **keywords)
            raise KeyboardInterrupt

        monkeypatch.setattr(RunWriter, "append", interrupted)
        assert "done" not in pyrobust(*arguments).err
        monkeypatch.setattr(RunWriter, "append", append)
        done = pyrobust(*arguments).err
        assert re.search(rf"^{command}\.db: resumed, (3|16) of 40 done$", done, re.MULTILINE), done
        assert f"{command}.db: already complete, 40 of 40 done\n" in pyrobust(*arguments).err


def test_an_endless_data_set_with_a_maximum(pyrobust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless_images.py").write_text(
        "import torch\n\ndef images():\n    while True:\n        yield torch.zeros(1, 8, 8), 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    net = ["--model", "zoo:digits-smooth-0.25", "--data", "endless_images:images", "--max", "3", "--skip", "2"]
    sampling = ["--sigma", "0.25", "--n", "100"]
    for command in (
        ["certify", *net, *sampling],
        ["predict", *net, *sampling],
        ["attack", *net, "--attack", "fgsm", "--epsilon", "0.1"],
        ["curve", *net, "--attack", "fgsm", "--epsilons", "0:0.1:2"],
        ["verify", *net, "--epsilon", "0.1", "--method", "ibp"],
    ):
        done = pyrobust.ok(*command)
        assert "3 of 5 images (one in 2, the first 3)" in " ".join(done.out.split())


def test_own_model_and_data_with_normalisation(pyrobust: Any, tmp_path: Path) -> None:
    (tmp_path / "mine_for_cli.py").write_text(BRIGHTNESS.format(dark=0.0, bright=1.0))
    mine = ["--model", "mine_for_cli:Net", "--data", "mine_for_cli:data", "--sigma", "0.5", "--n", "200"]
    pyrobust.ok("certify", *mine, "--normalize", "0.5,0.5,0.5/0.25,0.25,0.25", "--out", "run.db")
    run = Run("run.db")
    assert run.parameters["num_classes"] == 2
    assert run.parameters["normalize"] == [[0.5] * 3, [0.25] * 3]
    assert run.correct.all()
    # Without normalisation every image is bright.
    pyrobust("certify", *mine, "--noise", "laplace", "--dtype", "float64", "--out", "plain.db")
    plain = Run("plain.db")
    assert plain.parameters["norm"] == "l1"
    assert plain.parameters["dtype"] == "float64"
    assert plain.parameters["normalize"] is None


def test_a_model_that_does_not_fit_the_images_is_refused_in_one_line(pyrobust: Any, tmp_path: Path) -> None:
    (tmp_path / "other_for_cli.py").write_text("from torch import nn\nnet = nn.Conv2d(3, 8, 3)\n")
    wrong = ["certify", "--model", "other_for_cli:net", "--data", "digits", "--sigma", "0.25"]
    for classes in ([], ["--num-classes", "10"]):
        line = pyrobust(*wrong, *classes).error
        assert line.startswith("error: model: failed on one image of shape (1, 8, 8): RuntimeError: ")
        assert "3 channels" in line
        assert set(files(tmp_path)) - {"__pycache__"} == {"other_for_cli.py"}


def test_errors_of_the_users_code_keep_their_traceback_and_others_on_demand(
    pyrobust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_for_cli.py").write_text(
        "def net():\n    raise ZeroDivisionError('mine')\ndef images():\n    raise OSError(28, 'mine')\n"
    )
    for option, name in (("--model", "net"), ("--data", "images")):  # one as a full standard output raises it
        monkeypatch.setattr(sys, "argv", ["pyrobust", "certify", *QUICK, option, f"broken_for_cli:{name}"])
        with pytest.raises((ZeroDivisionError, OSError), match="mine"):
            main()
    for variable, debug in (("0", ["--debug"]), ("1", [])):
        monkeypatch.setenv("PYROBUST_DEBUG", variable)
        monkeypatch.setattr(sys, "argv", ["pyrobust", *debug, "certify", *QUICK, "--n", "0"])
        with pytest.raises(InputError):
            main()


def test_quickstart(pyrobust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyrobust.cli import quickstart

    monkeypatch.setattr(quickstart, "_SAMPLES", 200)
    for _ in range(2):  # the second time nothing is computed
        done = pyrobust.ok("quickstart")
        for words in ("certified at radius 0 ", "certified at radius 0.25", "128 of 382 images"):
            assert words in done.out
        made = ["certified_accuracy.png", "log.tsv", "log.tsv.json", "page.html", "run.db"]
        assert files(tmp_path / "pyrobust-quickstart") == made
        page = (tmp_path / "pyrobust-quickstart" / "page.html").as_uri()
        assert f"page: pyrobust-quickstart/page.html; open it in a browser: {page}" in done.err
        assert len(read_log("pyrobust-quickstart/log.tsv")["idx"]) == 128
        assert done.out.index("p_A, median") < done.out.index("certified at radius") < done.out.index("average cert")
        assert re.search(
            r"In words: half of the images get the correct class for at least \d+\.\d % .* \d+\.\d % of the images are "
            r"classified correctly, .* up to 0\.5\.$",
            done.out,
            re.DOTALL,
        )
        assert done.err.endswith(quickstart.NEXT + "\n")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = pyrobust.ok("quickstart", "--out", "other")
    assert 'no page: report: needs jinja2; install it with pip install "pyrobust[report]"' in done.err
    assert 'no plot: plot: needs matplotlib; install it with pip install "pyrobust[plot]"' in done.err
    (tmp_path / "file").touch()
    assert (
        "--out: expected a folder that exists or can be created, got 'file'"
        in pyrobust("quickstart", "--out", "file").error
    )


@pytest.mark.usefixtures("few_steps")
def test_what_the_quickstart_says_to_type_next(pyrobust: Any, tmp_path: Path) -> None:
    from pyrobust.cli.quickstart import NEXT

    blocks = [inspect.cleandoc("\n" + block) for block in re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", NEXT)]
    model, saving, commands = blocks
    (tmp_path / "mymodel.py").write_text(model + "\n")
    digits = load_digits("test")
    exec(saving, {"numpy": np, "images": digits.x.numpy(), "labels": digits.y.numpy()})
    lines = commands.splitlines()
    assert [line.split()[1] for line in lines] == ["certify", "verify", "attack"]
    for line in lines:
        done = pyrobust.ok(*shlex.split(line)[1:])
        assert "20 of 382 images" in done.out
    assert len(list(tmp_path.glob("*.db"))) == 3


def test_train(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust.ok("train", "digits-smooth", "--sigma", "0.3", "--epochs", "1")
    assert "test accuracy under noise 0.3" in done.out
    assert files(tmp_path) == ["digits-smooth-0.30.pt"]
    pyrobust.ok("certify", *QUICK, "--max", "2", "--weights", "digits-smooth-0.30.pt", "--out", "run.db")


def test_train_for_certificates(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust.ok("train", "digits-ibp", "--epsilon", "0.02", "--method", "crown-ibp", "--epochs", "1")
    assert re.search(r"^certified at l-infinity 0\.02 +\d+\.\d %$", done.out, re.MULTILINE)
    assert files(tmp_path) == ["digits-ibp-0.02.pt"]


def test_info_help_and_version(pyrobust: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    info = pyrobust.ok("info")
    for name in ("pyrobust", "torch", "compiler", "cuda", "simd", "threads", "GPU", "extra plot"):
        assert re.search(rf"^{name}\s+\S", info.out, re.MULTILINE), name
    assert re.fullmatch(r"pyrobust \d+\.\d+\.\d+\n", pyrobust("--version").out)
    text = pyrobust("--help").out
    sweeps = ("certify", "predict", "verify", "attack")
    for command in (*sweeps, "quickstart", "plan", "log", "audit", "report", "train", "info"):
        assert re.search(rf"\b{command}\b", text)
        pyrobust.ok(command, "--help")
    assert "lipschitz>" in pyrobust("verify", "--help").out, "the name of a method is broken"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("digits:train", "certify-net-digits-train-sigma0.5-n10.db"),
        ("mnist:/data/mnist", "certify-net-mnist-sigma0.5-n10.db"),
        ("folder:../pictures/", "certify-net-pictures-sigma0.5-n10.db"),
        ("my.module:data", "certify-net-my.module-data-sigma0.5-n10.db"),
        ("npz:..", "certify-net-x-sigma0.5-n10.db"),
    ],
)
def test_default_names_are_file_names(data: str, name: str) -> None:
    assert str(run_name(["certify", "net"], None, data, ["sigma0.5", "n10"], None)) == name

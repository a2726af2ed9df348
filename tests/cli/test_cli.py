"""The commands as a user sees them: output, files and exit statuses."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyrobust.cli import main
from pyrobust.cli.sweep import run_name
from pyrobust.errors import InputError, ModelError
from pyrobust.evaluation import Run, read_log
from pyrobust.zoo import load_digits

MODEL = "zoo:digits-smooth-0.25"
BASE = ["--model", MODEL, "--data", "digits", "--sigma", "0.25"]
QUICK = [*BASE, "--n0", "20", "--n", "100"]


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_certify_log_and_table(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust("certify", *QUICK, "--max", 5, "--out", "run.db")
    assert done.status == 0
    assert "certified at radius 0 " in done.out
    assert "run: run.db (export its log: pyrobust log run.db)" in done.err
    run = Run("run.db")
    assert run.header.model == MODEL
    assert len(run) == 5
    shown = pyrobust("log", "run.db")
    assert shown.status == 0
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
        done = pyrobust(*command)
        assert done.status == 0, done.err
        assert "3 of 5 images (one in 2, the first 3)" in " ".join(done.out.split())


def test_merged_shards_equal_the_whole_run(pyrobust: Any) -> None:
    pyrobust("certify", *QUICK, "--max", 9, "--out", "whole.db")
    for part in (1, 2):
        pyrobust("certify", *QUICK, "--max", 9, "--shard", f"{part}/2", "--out", f"{part}.db")
    merged, whole = (pyrobust("log", *paths).out for paths in (["2.db", "1.db"], ["whole.db"]))
    assert re.sub(r"\t[^\t\n]*\n", "\n", merged) == re.sub(r"\t[^\t\n]*\n", "\n", whole)
    assert "not a shard" in pyrobust("log", "1.db", "whole.db").error
    assert "file not found; expected a run of pyrobust" in pyrobust("log", "nothing.db").error


def test_shards_of_different_runs_are_refused(pyrobust: Any) -> None:
    def shard(part: int, *changes: object) -> None:
        assert pyrobust("certify", *QUICK, "--max", 3, "--shard", f"{part}/2", *changes).status == 0

    shard(1, "--out", "1.db")
    for name, changes, words in (
        ("sigma", ("--sigma", 0.5), "sigma: 0.25 in the first, 0.5 in the second"),
        ("seed", ("--seed", 1), "seed: 0 in the first, 1 in the second"),
        ("n", ("--n", 101), "n: 100 in the first, 101 in the second"),
        ("model", ("--model", "zoo:digits-smooth-0.50"), "hash of the model"),
        ("data", ("--data", "digits:all"), "hash of the data"),
        ("noise", ("--noise", "uniform"), "noise: 'gaussian' in the first, 'uniform' in the second"),
    ):
        shard(2, *changes, "--out", f"{name}.db")
        refused = pyrobust("log", "1.db", f"{name}.db", "--out", "all.tsv").error
        assert f"error: 1.db and {name}.db are shards of different sweeps" in refused
        assert words in refused
    assert not Path("all.tsv").exists()


def test_predict(pyrobust: Any) -> None:
    done = pyrobust("predict", *BASE, "--n", 50, "--max", 4)
    assert done.status == 0
    assert "smoothed prediction correct" in done.out
    log = pyrobust("log", "predict-digits-smooth-0.25-digits-sigma0.25-n50.db").out
    assert log.splitlines()[0].split("\t") == ["idx", "label", "predict", "correct", "time"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*QUICK, "--n", "0"], "n: expected at least 1, got 0"),
        ([*QUICK, "--n0", "-3"], "n0: expected at least 1"),
        ([*QUICK, "--alpha", "1"], "alpha: expected"),
        ([*QUICK, "--alpha", "nan"], "alpha: expected"),
        ([*QUICK, "--sigma", "0"], "sigma: expected"),
        ([*QUICK, "--sigma", "inf"], "sigma: expected"),
        ([*QUICK, "--seed", "-1"], "seed: expected"),
        ([*QUICK, "--num-classes", "9"], "--num-classes: expected the number of the model's outputs, 10, got 9"),
        (
            [*QUICK, "--num-classes", "10000000000"],
            "--num-classes: expected the number of the model's outputs, 10, got 10000000000",
        ),
        ([*QUICK, "--shard", "3/2"], "--shard: expected I/K"),
        ([*QUICK, "--shard", "x"], "--shard: expected I/K"),
        ([*QUICK, "--normalize", "0.5"], "--normalize: expected MEAN/STD"),
        ([*QUICK, "--normalize", "0.5/0"], "--normalize: expected MEAN/STD"),
        (
            [*QUICK, "--normalize", "imagenet"],
            "--normalize: expected a mean and a std for each channel of the images, 1, got 3",
        ),
        ([*QUICK, "--device", "toaster"], "device: expected cpu or cuda, got 'toaster'"),
        ([*QUICK, "--device", "meta"], "device: expected cpu or cuda, got meta"),
        ([*QUICK, "--device", "xpu"], "device: expected cpu or cuda, got xpu"),
        ([*QUICK, "--device", "cuda:99"], "got cuda:99"),
        ([*QUICK, "--max", "10000000000"], "--max: expected at most 4294967296, got 10000000000"),
        ([*QUICK, "--skip", "10000000000"], "skip: expected at most 4294967296, got 10000000000"),
        ([*QUICK, "--batch-size", "10000000000"], "--batch-size: expected at most 4294967296, got 10000000000"),
        ([*QUICK, "--n", "10000000000"], "n: expected at most"),
        ([*QUICK, "--model", "zoo:nothing"], "model: expected zoo:"),
        ([*QUICK, "--model", "no_such_module:net"], "no module 'no_such_module'"),
        ([*QUICK, "--data", "numbers"], "data: expected one of"),
        ([*QUICK, "--data", "npz:missing.npz"], "found nothing there"),
        ([*QUICK, "--weights", "missing.pt"], "found nothing there"),
        ([*QUICK, "--out", ""], "--out: expected a file or a folder"),
        ([*QUICK, "--out", "nowhere/run.db"], "cannot create the file"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    pyrobust: Any, tmp_path: Path, arguments: list[str], words: str
) -> None:
    assert words in pyrobust("certify", *arguments).error
    assert files(tmp_path) == []


def test_hostile_files_are_refused_in_one_line_and_not_changed(pyrobust: Any, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "executed"),))

    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=np.array([0]))
    np.savez(tmp_path / "labels.npz", x=np.zeros((2, 1, 8, 8), np.float32), y=np.array([0, 10]))
    np.savez(tmp_path / "wide.npz", x=np.zeros((2, 1, 8, 8), np.float32), y=np.array([0, 2**40]))
    np.savez(tmp_path / "nan.npz", x=np.full((2, 1, 8, 8), np.nan, np.float32), y=np.array([0, 1]))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "labels.npz").read_bytes()[:200])
    (tmp_path / "trap.pt").write_bytes(pickle.dumps(Trap(), protocol=2))
    (tmp_path / "trap.db").write_bytes(pickle.dumps([Trap()] * 100))
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    for arguments, words in (
        (["--data", "npz:objects.npz"], "Python objects"),
        (["--data", "npz:labels.npz"], "image 1 has 10"),
        (["--data", "npz:wide.npz"], "expected labels in [0, 2**31)"),
        (["--data", "npz:nan.npz"], "got nan at [0, 0, 0, 0]"),
        (["--data", "npz:cut.npz"], "not a readable npz"),
        (["--weights", "trap.pt"], "Python objects"),
        (["--out", "trap.db"], "not a run of pyrobust"),
    ):
        assert words in pyrobust("certify", *QUICK, *arguments).error
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_own_model_and_data_with_normalisation(pyrobust: Any, tmp_path: Path) -> None:
    (tmp_path / "mine_for_cli.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.stack([-x.mean((1, 2, 3)), x.mean((1, 2, 3))], 1)\n"
        "def data():\n"
        "    x = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 4, 4)\n"
        "    return x, torch.tensor([0, 1])\n"
    )
    mine = ["--model", "mine_for_cli:Net", "--data", "mine_for_cli:data", "--sigma", "0.5", "--n", "200"]
    done = pyrobust("certify", *mine, "--normalize", "0.5,0.5,0.5/0.25,0.25,0.25", "--out", "run.db")
    assert done.status == 0, done.err
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


def test_a_model_that_does_not_fit_the_images_is_refused_in_one_line(
    pyrobust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_for_cli.py").write_text("from torch import nn\nnet = nn.Conv2d(3, 8, 3)\n")
    wrong = ["certify", "--model", "other_for_cli:net", "--data", "digits", "--sigma", "0.25"]
    for classes in ([], ["--num-classes", "10"]):
        line = pyrobust(*wrong, *classes).error
        assert line.startswith("error: model: failed on one image of shape (1, 8, 8): RuntimeError: ")
        assert "3 channels" in line
        assert set(files(tmp_path)) - {"__pycache__"} == {"other_for_cli.py"}
    monkeypatch.setattr(sys, "argv", ["pyrobust", "--debug", *wrong])
    with pytest.raises(ModelError) as caught:
        main()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_errors_of_the_users_code_keep_their_traceback(
    pyrobust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_for_cli.py").write_text("def net():\n    raise ZeroDivisionError('mine')\n")
    monkeypatch.setattr(sys, "argv", ["pyrobust", "certify", *QUICK, "--model", "broken_for_cli:net"])
    with pytest.raises(ZeroDivisionError, match="mine"):
        main()


@pytest.mark.parametrize("form", ["folder:{}", "hf:{}", "parquet:{}*.parquet", "tar:{}.tar"])
def test_names_that_no_file_system_takes_are_one_line(pyrobust: Any, form: str) -> None:
    line = pyrobust(
        "verify", "--model", "zoo:digits-ibp-0.10", "--data", form.format("x" * 300), "--epsilon", "0.1"
    ).error
    assert line == f"error: {'x' * 40}...: expected the name of a file, got one that is too long"


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = ["certify", *QUICK, "--n", "0"]
    monkeypatch.setattr(sys, "argv", ["pyrobust", "--debug", *wrong])
    with pytest.raises(InputError):
        main()
    monkeypatch.setenv("PYROBUST_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["pyrobust", *wrong])
    with pytest.raises(InputError):
        main()


def test_quickstart(pyrobust: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyrobust.cli import quickstart

    monkeypatch.setattr(quickstart, "_SAMPLES", 200)
    for _ in range(2):  # the second time nothing is computed
        done = pyrobust("quickstart")
        assert done.status == 0, done.err
        for words in ("certified at radius 0 ", "certified at radius 0.25", "128 of 382 images"):
            assert words in done.out
        assert files(tmp_path / "pyrobust-quickstart") == [
            "certified_accuracy.png",
            "log.tsv",
            "log.tsv.json",
            "page.html",
            "run.db",
        ]
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
    done = pyrobust("quickstart", "--out", "other")
    assert done.status == 0
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
        done = pyrobust(*shlex.split(line)[1:])
        assert done.status == 0, done.err
        assert "20 of 382 images" in done.out
    assert len(list(tmp_path.glob("*.db"))) == 3


def test_train(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust("train", "digits-smooth", "--sigma", "0.3", "--epochs", "1")
    assert done.status == 0, done.err
    assert "test accuracy under noise 0.3" in done.out
    assert files(tmp_path) == ["digits-smooth-0.30.pt"]
    used = pyrobust("certify", *QUICK, "--max", "2", "--weights", "digits-smooth-0.30.pt", "--out", "run.db")
    assert used.status == 0, used.err
    assert "sigma: expected" in pyrobust("train", "digits-smooth", "--sigma", "-1").error


def test_train_for_certificates(pyrobust: Any, tmp_path: Path) -> None:
    done = pyrobust("train", "digits-ibp", "--epsilon", "0.02", "--method", "crown-ibp", "--epochs", "1")
    assert done.status == 0, done.err
    assert re.search(r"^certified at l-infinity 0\.02 +\d+\.\d %$", done.out, re.MULTILINE)
    assert files(tmp_path) == ["digits-ibp-0.02.pt"]
    assert "method: expected one of ibp, crown-ibp" in pyrobust("train", "digits-ibp", "--method", "crown").error


def test_help_breaks_no_name_of_a_method(pyrobust: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert "lipschitz>" in pyrobust("verify", "--help").out


def test_info_help_and_version(pyrobust: Any) -> None:
    info = pyrobust("info")
    assert info.status == 0
    for name in ("pyrobust", "torch", "compiler", "cuda", "simd", "threads", "GPU", "extra plot"):
        assert re.search(rf"^{name}\s+\S", info.out, re.MULTILINE), name
    assert re.fullmatch(r"pyrobust \d+\.\d+\.\d+\n", pyrobust("--version").out)
    text = pyrobust("--help").out
    for command in (
        "quickstart",
        "certify",
        "predict",
        "verify",
        "plan",
        "attack",
        "log",
        "audit",
        "report",
        "train",
        "info",
    ):
        assert re.search(rf"\b{command}\b", text)
        assert pyrobust(command, "--help").status == 0
    wrong = pyrobust("certify", "--model", MODEL)
    assert wrong.status == 2
    assert "Traceback" not in wrong.err


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

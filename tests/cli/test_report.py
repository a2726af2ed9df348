"""``pyrobust report``: figures and tables, pages with the commands that repeat their runs, and verdicts on threats."""

from __future__ import annotations

import contextlib
import csv
import html
import json
import re
import shlex
import sqlite3
import sys
from pathlib import Path

import pytest
from support.store_rows import write_rows

from pyrobust.evaluation import Run, predict_dataset
from pyrobust.runs.kinds import KINDS
from pyrobust.smoothing import RandomizedSmoothing
from pyrobust.zoo import load_data, load_model

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
ROWS = [(0, 3, 3, 0.377, 1), (1, 8, 8, 0.465, 1), (2, 1, -1, 0.0, 0), (3, 0, 5, 0.2, 0), (4, 2, 2, 0.05, 1)]
ALL = {
    *(f"certified_accuracy.{form}" for form in ("png", "pdf", "svg")),
    *(f"survival.{form}" for form in ("png", "pdf", "svg")),
    *(f"table.{form}" for form in ("md", "tex", "csv", "json")),
}


SMOOTH = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25")
BASE = ("--model", "zoo:digits-ibp-0.10", "--data", "digits", "--max", 1)
COMMANDS = {
    "certify": (*SMOOTH, "--n", 300, "--alpha", 0.01, "--max", 3, "--skip", 2, "--seed", 5),
    "certify sequential": (
        *SMOOTH,
        *("--method", "sequential", "--radii", "0.25,0.5"),
        *("--n", 500, "--max", 3, "--two-class"),
    ),
    "predict": (
        *SMOOTH,
        *("--noise", "laplace", "--normalize", "0.5/0.25"),
        *("--n", 200, "--max", 3, "--shard", "1/2", "--order", "random", "--seed", 3),
    ),
    "verify": (*BASE, "--epsilon", "8/255,0.1", "--attack", "pgd", "--semantics", "float32"),
    "verify radius": (*BASE, "--radius", "--largest", 0.5, "--norm", "l2", "--method", "crown", "--clip", "none"),
    "attack": (*BASE, "--attack", "apgd-ce", "--steps", 5, "--epsilon", "8/255", "--norm", "l2", "--grid", "1/16"),
    "attack autoattack": (*BASE, "--epsilon", 0.3, "--clip=-1:1", "--no-examples"),
    "attack certified first": (*BASE, "--epsilon", 0.1, "--certify-first"),
    "attack minimum": (*BASE, "--minimum", "--norm", "l2"),
    "sandwich": (*BASE, "--epsilon", 0.1, "--method", "crown"),
    "sandwich smoothed": (*SMOOTH, "--n", 200, "--n-attack", 200, "--steps", 3, "--draws", 2, "--max", 1),
}


CSV = "id,behaviour,model,judge,success,human_label,category\n" + "".join(
    f"{m}{i},{i},{m},rule,{'' if i == 9 else int(i < 3)},{int(i < 4) if i < 5 else ''},c{i % 2}\n"
    for m in "ab"
    for i in range(10)
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "net_sigma0.25.tsv"
    path.write_text(HEADER + "".join("\t".join(map(str, (*row, "0:00:14.1"))) + "\n" for row in ROWS))
    return path


@pytest.fixture
def other(tmp_path, log):
    path = tmp_path / "other_sigma0.50.tsv"
    path.write_text(log.read_text())
    return path


@pytest.fixture
def plotting():
    pytest.importorskip("matplotlib", reason="the extra plot")


@pytest.fixture
def paging():
    pytest.importorskip("jinja2", reason="the extra report")
    pytest.importorskip("PIL", reason="the extra report")


def test_figures_and_tables_are_written(pyrobust, log, other, tmp_path, plotting):
    done = pyrobust.ok("report", log, other, "--out", "new/folder")
    out = tmp_path / "new" / "folder"
    assert {file.name for file in out.iterdir()} == ALL
    assert "median of p_A" in done.out
    assert "average certified radius" in done.out
    for name in ("table: new/folder/table.md", "survival: new/folder/survival.pdf", "certified accuracy: "):
        assert name in done.err
    # the larger sigma certified the same radii with fewer votes
    assert json.loads((out / "table.json").read_text())["columns"] == ["", "net_sigma0.25", "other_sigma0.50"]
    # the same again: the same bytes, as of figures in the other formats (report/test_figures.py)
    pyrobust.ok("report", log, other, "--out", "again", "--formats", "png,md,tex,csv,json")
    for file in (tmp_path / "again").iterdir():
        assert file.read_bytes() == (out / file.name).read_bytes(), file.name
    assert len(list((tmp_path / "again").iterdir())) == 6


def test_options(pyrobust, log, tmp_path):
    pyrobust.ok("report", log, "--out", "out", "--formats", "csv, JSON", "--radii", "0,1/4,0.4", "--n", 100000)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"table.csv", "table.json"}
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        table = {row[0]: row[1:] for row in csv.reader(file)}
    assert [float(table[f"certified at {radius}"][0]) for radius in ("0", "0.25", "0.4")] == [0.6, 0.4, 0.2]
    assert table["n"][0] == "100000"
    assert table["sigma"][0] == "0.25"


@pytest.mark.parametrize("kind", ["attack", "sandwich"])
def test_logs_of_other_runs_are_named(pyrobust, tmp_path, kind):
    (tmp_path / "other.tsv").write_text("\t".join(KINDS[kind].log) + "\n")
    error = pyrobust("report", "other.tsv", "--out", "out").error
    assert f"got the log of a run of kind {kind}, which has no certified radii; pass the run (.db)" in error


def test_runs_without_bounds_have_their_own_table(pyrobust, tmp_path):
    for seed in (0, 1):
        smoother = RandomizedSmoothing(load_model("zoo:digits-smooth-0.25"), 10, 0.25, seed=seed)
        predict_dataset(smoother, load_data("digits"), n=20, max_images=3, out=tmp_path / f"{seed}.db")
    done = pyrobust("report", "0.db", "--out", "out", "--formats", "csv")
    assert "smoothed prediction correct" in done.out
    assert (tmp_path / "out" / "predict.csv").read_text().count("images") == 2
    pyrobust.ok("report", "0.db", "1.db", "--out", "two", "--formats", "csv")
    assert {file.name for file in (tmp_path / "two").iterdir()} == {"predict_1.csv", "predict_2.csv"}


def test_faults_are_reported(pyrobust, log, tmp_path):
    log.write_text(log.read_text().replace("0.465", "1.465"))
    done = pyrobust.ok("report", log, "--out", "out", "--formats", "md")
    assert "net_sigma0.25.tsv: 1 fault; run pyrobust audit for details" in done.err
    assert "above the maximum 0.952864" in (tmp_path / "out" / "table.md").read_text()
    assert "fault" not in pyrobust("report", log, "--out", "other", "--formats", "md", "--sigma", 0.5).err


def test_parameters_that_the_radii_contradict_are_not_used(pyrobust, tmp_path):
    # 0.953 is what all of 100,000 votes certify at sigma 0.25
    path = tmp_path / "net_sigma0.25.tsv"
    path.write_text(
        HEADER
        + "".join(f"{i}\t3\t3\t{0.953 if i > 3 else round(0.2 + 0.1 * i, 3):.3f}\t1\t0:00:14.1\n" for i in range(20))
    )
    for n, shown in ((100_000, 100_000), (1000, "unknown")):
        pyrobust.ok("report", path, "--out", f"{n}", "--formats", "json", "--n", n)
        rows = {row[0]: row[1] for row in json.loads((tmp_path / f"{n}" / "table.json").read_text())["rows"]}
        assert rows["n"] == shown
        assert ("median of p_A" in rows) is (shown == n)


def test_without_votes_no_survival_figure(pyrobust, tmp_path, log, plotting):
    unknown = tmp_path / "unknown.tsv"
    unknown.write_text(log.read_text())
    done = pyrobust.ok("report", unknown, "--out", "out", "--formats", "png,md")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"certified_accuracy.png", "table.md"}
    assert "survival: 0 of 1 logs" in done.err
    assert "sigma" in (tmp_path / "out" / "table.md").read_text()


def test_without_matplotlib(pyrobust, log, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pyrobust[plot]" in pyrobust("report", log, "--out", "out", "--formats", "png,md").error
    assert not (tmp_path / "out").exists()
    done = pyrobust.ok("report", log, "--out", "out")
    assert "no figures: plot: needs matplotlib" in done.err
    assert {file.name for file in (tmp_path / "out").iterdir()} == {name for name in ALL if name.startswith("table")}


def test_a_run_is_accepted_as_a_log(pyrobust, tmp_path):
    arguments = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", 0.25, "--n", 100, "--max", 6)
    pyrobust.ok("certify", *arguments, "--out", "run.db")
    pyrobust.ok("report", "run.db", "--out", "out", "--formats", "json")
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    rows = {row[0]: row[1] for row in table["rows"]}
    assert rows["images"] == 6
    assert rows["guarantee"] == "grid of 1/16"
    assert 0 <= rows["area under the survival curve of p_A"]["lower"] <= 1
    assert "the area, for possible votes" not in rows


def test_attacks_and_verifications_are_reported(pyrobust, tmp_path, log, plotting):
    model = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--max", 6)
    pyrobust.ok("attack", *model, "--epsilon", "8/255", "--attack", "fgsm", "--out", "a.db")
    pyrobust.ok("verify", *model, "--epsilon", "8/255", "--method", "ibp", "--out", "v.db")
    pyrobust.ok("report", "a.db", "--out", "alone")
    names = {f"robust_accuracy.{form}" for form in ("png", "pdf", "svg")}
    names |= {f"robustness.{form}" for form in ("md", "tex", "csv", "json")}
    assert {file.name for file in (tmp_path / "alone").iterdir()} == names
    # beside logs in another norm
    pyrobust.ok("report", log, "v.db", "a.db", "--out", "all", "--formats", "json,png")
    assert {file.name for file in (tmp_path / "all").iterdir()} == {
        *("table_l2.json", "table_linf.json", "robustness.json", "robust_accuracy.png", "survival_l2.png"),
        *("certified_accuracy_l2.png", "certified_accuracy_linf.png"),
    }
    rows = [row[0] for row in json.loads((tmp_path / "all" / "robustness.json").read_text())["rows"]]
    assert {"linf 8/255: robust under attack, FGSM", "linf 8/255: verified, ibp"} < set(rows)


@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.usefixtures("few_steps")
def test_the_command_of_a_run_repeats_it(pyrobust, tmp_path, case):
    pyrobust.ok(case.split()[0], *COMMANDS[case], "--out", "first.db")
    first = Run(tmp_path / "first.db")
    program, *words = shlex.split(first.header.command)
    assert program == "pyrobust"
    pyrobust.ok(*words, "--out", "second.db")
    second = Run(tmp_path / "second.db")
    assert first.header.differences(second.header) == []
    assert {**first.parameters, "batch_size": 0} == {**second.parameters, "batch_size": 0}
    assert first.table["prediction"].tolist() == second.table["prediction"].tolist()


def test_a_page_shows_the_command_of_its_run(pyrobust, tmp_path, paging):
    pyrobust.ok("predict", *SMOOTH, "--n", 100, "--max", 2, "--out", "<a> & 'b'.db")
    pyrobust.ok("report", "<a> & 'b'.db", "--html", "page.html")
    [shown] = re.findall(r"<pre[^>]*>(.*?)</pre>", (tmp_path / "page.html").read_text())
    assert html.unescape(shown) == Run(tmp_path / "<a> & 'b'.db").header.command


def test_a_page_alone_or_beside_tables(pyrobust, log, tmp_path, paging):
    (tmp_path / "page.html").write_text("mine")
    done = pyrobust("report", log, "--html", "page.html", "--replace")
    assert (done.status, done.out) == (0, "")
    assert "page: page.html" in done.err
    assert [file.name for file in tmp_path.iterdir() if file != log] == ["page.html"]
    pyrobust.ok("report", log, "--html", "page.html", "--out", "tables", "--formats", "md")
    assert (tmp_path / "tables/table.md").exists()
    pyrobust.ok("report", log, "--html", "new/page.html", "--out", "new", "--formats", "md")
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"page.html", "table.md"}


def test_a_sandwich_in_tables(pyrobust, tmp_path):
    write_rows(tmp_path / "both.db", "sandwich")
    pyrobust.ok("report", "both.db", "--out", "tables", "--formats", "csv")
    assert (tmp_path / "tables/sandwich.csv").exists()


@pytest.fixture
def verdicts(tmp_path):
    path = tmp_path / "verdicts.csv"
    path.write_text(CSV)
    return path


def test_tables_figure_and_page_of_verdicts(pyrobust, verdicts, tmp_path, plotting, paging):
    done = pyrobust.ok("report", verdicts, "--out", "out", "--html", "page.html", "--by", "model, category")
    names = {f"success_rate.{form}" for form in ("png", "pdf", "svg")}
    names |= {f"{name}.{form}" for name in ("threats", "judges", "models") for form in ("md", "tex", "csv", "json")}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    table = json.loads((tmp_path / "out" / "threats.json").read_text())
    assert [line[0] for line in table["rows"]] == ["a · c0", "a · c1", "b · c0", "b · c1"]
    assert "Success of threats" in done.out
    assert "threats: out/threats.md" in done.err
    assert "page: page.html" in done.err
    assert "Threats against 2 models" in (tmp_path / "page.html").read_text()
    pyrobust.ok("report", verdicts, "--out", "again", "--by", "model,category", "--formats", "png,md,tex,csv,json")
    for file in (tmp_path / "again").iterdir():
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes(), file.name


def test_options_of_verdicts(pyrobust, verdicts, tmp_path):
    (tmp_path / "second.csv").write_text(CSV.replace("rule", "other"))
    arguments = ("report", verdicts, "second.csv", "--formats", "json", "--invert")
    pyrobust.ok(*arguments, "--out", "both")
    rows = json.loads((tmp_path / "both" / "threats.json").read_text())["rows"]
    assert {line[0]: line[1]["value"] for line in rows} == dict.fromkeys(
        ("a · rule", "b · rule", "a · other", "b · other"), 6 / 9
    )
    assert (tmp_path / "both" / "agreement.json").exists()
    pyrobust.ok(*arguments, "--judge", "other", "--out", "one")
    assert not (tmp_path / "one" / "agreement.json").exists()


def test_verdicts_of_earlier_versions(pyrobust, tmp_path):
    dump = Path(__file__).parents[1] / "threats" / "old_run.sql"
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db")) as connection:
        connection.executescript(dump.read_text())
    pyrobust.ok("report", "run.db", "--by", "group", "--out", "out", "--formats", "md")
    assert "80.0 % (8.0 to 99.7)" in (tmp_path / "out" / "threats.md").read_text()
    assert "got one on threats, which read_verdicts reads" in pyrobust("log", "run.db").error
    outcome = pyrobust("threat", "--model", "mine.py:answer", "--out", "run.db")
    assert outcome.status == pyrobust("log", "run.db").status
    assert "inspect eval" in outcome.error
    assert "which nothing resumes" in outcome.error

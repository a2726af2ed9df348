"""``pyrobust report`` on files of verdicts."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

CSV = "id,behaviour,model,judge,success,human_label,category\n" + "".join(
    f"{m}{i},{i},{m},rule,{'' if i == 9 else int(i < 3)},{int(i < 4) if i < 5 else ''},c{i % 2}\n"
    for m in "ab"
    for i in range(10)
)
LOG = "idx\tlabel\tpredict\tradius\tcorrect\n0\t3\t3\t0.377\t1\n1\t8\t8\t0.465\t1\n"


@pytest.fixture
def verdicts(tmp_path):
    path = tmp_path / "verdicts.csv"
    path.write_text(CSV)
    return path


def test_tables_figure_and_page(pyrobust, verdicts, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plot")
    pytest.importorskip("jinja2", reason="the extra report")
    done = pyrobust("report", verdicts, "--out", "out", "--html", "page.html", "--by", "model, category")
    assert done.status == 0
    names = {f"success_rate.{form}" for form in ("png", "pdf", "svg")}
    names |= {f"{name}.{form}" for name in ("threats", "judges", "models") for form in ("md", "tex", "csv", "json")}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    table = json.loads((tmp_path / "out" / "threats.json").read_text())
    assert [line[0] for line in table["rows"]] == ["a · c0", "a · c1", "b · c0", "b · c1"]
    assert "Success of threats" in done.out
    assert "threats: out/threats.md" in done.err
    assert "page: page.html" in done.err
    assert "Threats against 2 models" in (tmp_path / "page.html").read_text()
    assert pyrobust("report", verdicts, "--out", "again", "--by", "model,category").status == 0
    for file in (tmp_path / "again").iterdir():
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes(), file.name


def test_options(pyrobust, verdicts, tmp_path):
    (tmp_path / "second.csv").write_text(CSV.replace("rule", "other"))
    arguments = ("report", verdicts, "second.csv", "--formats", "json", "--invert")
    assert pyrobust(*arguments, "--out", "both").status == 0
    rows = json.loads((tmp_path / "both" / "threats.json").read_text())["rows"]
    assert {line[0]: line[1]["value"] for line in rows} == dict.fromkeys(
        ("a · rule", "b · rule", "a · other", "b · other"), 6 / 9
    )
    assert (tmp_path / "both" / "agreement.json").exists()
    assert pyrobust(*arguments, "--judge", "other", "--out", "one").status == 0
    assert not (tmp_path / "one" / "agreement.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--radii", "0.5"), "--radii: expected none with verdicts on threats, got '0.5'"),
        (("--sigma", "0.5"), "--sigma: expected none with verdicts on threats, got 0.5"),
        (("--by", "colour"), "--by: expected columns from id, prompt"),
        (("--judge", "nobody"), "--judge: expected one of rule, got 'nobody'"),
        (("--k", "5"), "--k: expected at most the number of attempts at each prompt, got 5"),
        (("--k", "0"), "--k: expected at least 1, got 0"),
        (("log.tsv",), "LOG: expected files of one kind"),
        (("verdicts.csv",), "expected each file once"),
    ],
)
def test_bad_options(pyrobust, verdicts, tmp_path, options, message):
    (tmp_path / "log.tsv").write_text(LOG)
    assert message in pyrobust("report", "verdicts.csv", *options, "--out", "out").error
    assert not (tmp_path / "out").exists()


def test_options_of_verdicts_are_refused_for_sweeps(pyrobust, tmp_path):
    (tmp_path / "net_sigma0.25.tsv").write_text(LOG)
    for option in (("--by", "model"), ("--k", 2), ("--invert",)):
        error = pyrobust("report", "net_sigma0.25.tsv", *option, "--out", "out").error
        assert f"{option[0]}: expected none without verdicts on threats" in error


def test_damaged_files(pyrobust, verdicts, tmp_path):
    verdicts.write_text(CSV + "a,b\n")
    assert "line 22: expected 7 fields" in pyrobust("report", verdicts, "--out", "out").error
    verdicts.write_text('{"pyrobust": "threat-verdicts", "version": 99}\n')
    assert "expected verdicts of version 1" in pyrobust("report", verdicts, "--html", "page.html").error
    assert not (tmp_path / "page.html").exists()


def test_run_files_of_earlier_versions(pyrobust, tmp_path):
    dump = Path(__file__).parents[1] / "threats" / "old_run.sql"
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db")) as connection:
        connection.executescript(dump.read_text())
    done = pyrobust("report", "run.db", "--by", "group", "--out", "out", "--formats", "md")
    assert done.status == 0
    assert "80.0 % (8.0 to 99.7)" in (tmp_path / "out" / "threats.md").read_text()
    assert "got one on threats, which read_verdicts reads" in pyrobust("log", "run.db").error
    outcome = pyrobust("threat", "--model", "mine.py:answer", "--out", "run.db")
    assert outcome.status == pyrobust("log", "run.db").status
    assert "inspect eval" in outcome.error
    assert "which nothing resumes" in outcome.error

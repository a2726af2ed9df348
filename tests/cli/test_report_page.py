"""``pyrobust report --html``, and the command lines on the page, which repeat its runs."""

from __future__ import annotations

import html
import re
import shlex

import pytest

pytest.importorskip("jinja2", reason="the extra report")
pytest.importorskip("PIL", reason="the extra report")

from pyrobust.evaluation import Run

SMOOTH = ("--model", "zoo:digits-smooth-0.25", "--data", "digits", "--sigma", "0.25")
BASE = ("--model", "zoo:digits-ibp-0.10", "--data", "digits", "--max", 4)
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
    "sandwich smoothed": (*SMOOTH, "--n", 200, "--n-attack", 200, "--steps", 3, "--draws", 2, "--max", 2),
}


@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.usefixtures("few_steps")
def test_the_command_on_the_page_repeats_the_run(pyrobust, tmp_path, case):
    kind = case.split()[0]
    assert pyrobust(kind, *COMMANDS[case], "--out", "first.db").status == 0
    assert pyrobust("report", "first.db", "--html", "page.html").status == 0
    [shown] = re.findall(r"<pre[^>]*>(.*?)</pre>", (tmp_path / "page.html").read_text())
    program, *words = shlex.split(html.unescape(shown))
    assert program == "pyrobust"
    assert pyrobust(*words, "--out", "second.db").status == 0
    first, second = Run(tmp_path / "first.db"), Run(tmp_path / "second.db")
    assert first.header.differences(second.header) == []
    assert shown == html.escape(first.header.command, quote=True).replace("&#x27;", "&#39;")
    assert {**first.parameters, "batch_size": 0} == {**second.parameters, "batch_size": 0}
    assert first.table["prediction"].tolist() == second.table["prediction"].tolist()


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "net_sigma0.25.tsv"
    rows = [(0, 3, 3, 0.377, 1), (1, 8, 8, 0.465, 1), (2, 1, -1, 0.0, 0), (3, 0, 5, 0.2, 0)]
    path.write_text("idx\tlabel\tpredict\tradius\tcorrect\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    return path


def test_a_page_alone_or_beside_tables(pyrobust, log, tmp_path):
    done = pyrobust("report", log, "--html", "page.html")
    assert (done.status, done.out) == (0, "")
    assert "page: page.html" in done.err
    assert [file.name for file in tmp_path.iterdir() if file != log] == ["page.html"]
    assert pyrobust("report", log, "--html", "page.html", "--out", "tables", "--formats", "md").status == 0
    assert (tmp_path / "tables/table.md").exists()
    assert pyrobust("report", log, "--html", "new/page.html", "--out", "new", "--formats", "md").status == 0
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"page.html", "table.md"}


def test_what_is_overwritten(pyrobust, log, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert "--html: expected a new file, or one of the same kind" in pyrobust("report", log, "--html", page).error
    assert page.read_text() == "mine"
    assert pyrobust("report", log, "--html", page, "--replace").status == 0
    assert pyrobust("report", log, "--html", page).status == 0
    before = log.read_bytes()
    assert "other than the inputs" in pyrobust("report", log, "--html", log, "--replace").error
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--out: expected a folder for tables and figures, or --html with a file for a page; got neither"),
        (("--html", "p.html", "--formats", "md"), "--formats: expected none without --out, got 'md'"),
        (("--out", "o", "--data", "digits"), "--data: expected none without --html, got 'digits'"),
        (("--html", "p.html", "--data", "digits"), "--data: expected the data set of the results, got digits"),
        (("--html", "missing/p.html"), "--html: expected a file in a writable folder"),
    ],
)
def test_wrong_options(pyrobust, log, tmp_path, options, message):
    assert message in pyrobust("report", log, *options).error
    assert [file.name for file in tmp_path.iterdir()] == [log.name]


@pytest.mark.usefixtures("few_steps")
def test_a_sandwich_in_tables(pyrobust, tmp_path):
    assert pyrobust("sandwich", *BASE, "--out", "both.db").status == 0
    done = pyrobust("report", "both.db", "--out", "tables", "--formats", "csv")
    assert done.status == 0
    assert (tmp_path / "tables/sandwich.csv").exists()

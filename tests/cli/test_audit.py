"""`pyrobust audit` as a user sees it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.damage import change
from support.planted_logs import made_up, plant

MADE_UP = made_up(2000)
PLANTED = plant(MADE_UP, 0.25)


def log(name: str = "log_sigma0.25.tsv", content: bytes | str = MADE_UP) -> Path:
    path = Path(name)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_clean_log(pyrobust: Any) -> None:
    done = pyrobust.ok("audit", log())
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0] == "log_sigma0.25.tsv: 2,000 rows, no fault, 6 notes"
    assert "  note   sigma 0.25: the name of the file" in lines
    assert "\x1b" not in done.out
    assert (
        done.out.index("area under the survival") < done.out.index("certified at 0 ") < done.out.index("average cert")
    )


def test_several_logs_share_a_table_and_the_worst_sets_the_exit_status(pyrobust: Any) -> None:
    good, bad = log(), log("bad_sigma0.25.tsv", PLANTED["NaN"].content)
    empty, words = log("empty.tsv", ""), log("words.tsv", "once upon a time\n")
    pytest.importorskip("matplotlib")
    done = pyrobust("audit", good, bad, "--out", "table.md", "--out", "a.png", "--out", "a.svg")
    assert done.status == 1
    assert "NaN radius" in Path("table.md").read_text()
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("a.svg").read_text()
    done = pyrobust("audit", good, bad)
    assert "ranked by the survival curve" in done.out
    assert "bad_sigma0.25" in done.out.split("Certification")[1].splitlines()[2]
    done = pyrobust("audit", empty, good, words, bad)
    assert done.status == 2
    assert [line.split(":")[:2] for line in done.err.splitlines()] == [["error", " empty.tsv"], ["error", " words.tsv"]]
    assert "log_sigma0.25.tsv: 2,000 rows, no fault" in done.out
    assert "bad_sigma0.25.tsv: 2,000 rows, 1 fault" in done.out


def test_json(pyrobust: Any) -> None:
    log()
    log("empty.tsv", "")
    done = pyrobust("audit", "log_sigma0.25.tsv", "empty.tsv", "--json", "-")
    assert done.status == 2
    report = json.loads(done.out)
    assert report["exit_status"] == 2
    assert [entry["exit_status"] for entry in report["logs"]] == [0, 2]
    assert "the file is empty" in report["logs"][1]["error"]
    metrics = report["logs"][0]["metrics"]
    assert len(metrics["survival"]["share"]) == 501
    assert metrics["images"] == 2000
    assert "log_sigma0.25.tsv: 2,000 rows" in done.err
    written = pyrobust("audit", "log_sigma0.25.tsv", "--json", "audit.json")
    assert "written: audit.json" in written.err
    assert json.loads(Path("audit.json").read_text())["logs"][0] == report["logs"][0]


def test_formats_on_standard_output_and_in_files(pyrobust: Any) -> None:
    log()
    forms = {"md": "## Certification", "tex": r"\begin{tabular}", "csv": ",log_sigma0.25", "json": '"title"'}
    for form, words in forms.items():
        done = pyrobust.ok("audit", "log_sigma0.25.tsv", "--format", form)
        assert words in done.out
        assert "no fault" in done.err
        assert "no fault" not in done.out
        kept = pyrobust("audit", "log_sigma0.25.tsv", "--out", f"table.{form}")
        assert "no fault" in kept.out
        assert Path(f"table.{form}").read_bytes().decode().splitlines() == done.out.splitlines()
    rows = {row[0]: row[1] for row in csv.reader(Path("table.csv").read_text().splitlines())}
    right = [line.split("\t") for line in MADE_UP.splitlines()[1:]]
    assert float(rows["certified at 0"]) == sum(row[1] == row[2] for row in right) / 2000


def test_runs_and_logs_of_two_norms(pyrobust: Any) -> None:
    base = ["--model", "zoo:digits-smooth-0.25", "--data", "digits", "--max", 3]
    pyrobust.ok("certify", *base, "--sigma", "0.25", "--n0", 20, "--n", 100, "--out", "run.db")
    pyrobust.ok("log", "run.db", "--out", "run_sigma0.25.tsv")
    done = pyrobust.ok("audit", "run.db", "run_sigma0.25.tsv", "--n", 100)
    assert "exact" in done.out
    pyrobust("verify", *base, "--method", "ibp", "--epsilon", "0.01", "--out", "verify.db")
    done = pyrobust.ok("audit", log(), "verify.db")
    assert done.out.count("average certified") >= 2
    assert "bound propagation gives radii without votes" in done.out
    assert "one norm" in pyrobust("audit", "log_sigma0.25.tsv", "verify.db", "--out", "table.md").error
    assert not Path("table.md").exists()


def test_names_cannot_steer_the_terminal(pyrobust: Any) -> None:
    done = pyrobust.ok("audit", log("\x1b[31m[bold]x\x07_sigma0.25.tsv"))
    assert "\x1b" not in done.out + done.err
    assert "\x07" not in done.out + done.err
    assert "[bold]x" in done.out.splitlines()[0]


def test_runs_without_radii_are_checked_too(pyrobust: Any) -> None:
    pyrobust.ok("attack", "--model", "zoo:digits-smooth-0.25", "--data", "digits", "--attack", "fgsm", "--max", 4,
                     "--epsilon", 0.3, "--out", "attack.db")  # fmt: skip
    done = pyrobust.ok("audit", "attack.db")
    assert done.out.startswith("attack.db: 4 rows, no fault, 1 note\n  note   guarantee empirical; ")
    change("attack.db", "UPDATE result SET broken_by = 'fgsm', adversarial = (label + 1) % 10, distance = 0.0")
    done = pyrobust("audit", "attack.db", "--json", "-")
    assert done.status == 1
    assert json.loads(done.out)["logs"][0]["findings"][0]["message"].startswith("broken at distance 0")


def test_own_readers(pyrobust: Any) -> None:
    Path("readers_of_mine.py").write_text(
        "import csv\n"
        "def semicolons(path):\n"
        "    with open(path, newline='') as file:\n"
        "        yield from csv.DictReader(file, delimiter=';')\n"
        "number = 3\n"
    )
    path = log("log_sigma0.25.csv", MADE_UP.replace("\t", ";"))
    done = pyrobust.ok("audit", path, "--reader", "readers_of_mine:semicolons", "--json", "-")
    assert (
        json.loads(done.out)["logs"][0]["metrics"]
        == json.loads(pyrobust("audit", log(), "--json", "-").out)["logs"][0]["metrics"]
    )
    assert (
        pyrobust("report", path, "--reader", "readers_of_mine:semicolons", "--out", "report", "--formats", "md").status
        == 0
    )
    done = pyrobust("audit", path, "--reader", "readers_of_mine:number")
    assert done.status == 2
    assert "--reader: readers_of_mine:number: expected a function (path) -> rows, got int" in done.err

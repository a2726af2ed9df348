"""Run files of earlier versions: read as ever, refused where they are damaged, and resumed by nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from pyrobust.errors import FileFormatError, InputError
from pyrobust.report import format_table, threat_tables
from pyrobust.report.page import threat_page_html
from pyrobust.runs.run import Run
from pyrobust.threats import (
    evaluate_threat,
    is_verdicts,
    read_answers,
    read_verdicts,
    rejudge_threat,
    success_at_k,
    threat_success_rate,
)
from pyrobust.threats.readers.old_run import read_threat_run

#: Written by the last version that ran models: ten prompts, two attempts each, a rule and a model as judges, failed
#: calls, a budget that did not suffice and a call that was lost.
DUMP = (Path(__file__).parent / "old_run.sql").read_text()


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.db"
    change(path, DUMP)
    return path


def change(path, statements):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(statements)


def test_verdicts_rates_and_answers(run_file):
    verdicts = read_verdicts(run_file)
    assert is_verdicts(run_file)
    assert len(verdicts) == 40
    assert Counter((row.judge, row.status) for row in verdicts) == {
        ("refusal #b232db5b", "judged"): 18,
        ("refusal #b232db5b", "error"): 1,
        ("refusal #b232db5b", "unsubmitted"): 1,
        ("grader #2871f1ae", "judged"): 15,
        ("grader #2871f1ae", "unparsable"): 3,
        ("grader #2871f1ae", "error"): 1,
        ("grader #2871f1ae", "unsubmitted"): 1,
    }
    row = verdicts.rows[2]
    assert (row.id, row.prompt, row.behaviour, row.category, row.group) == ("1#0", "Say 1!", "say 0", "b", "plain")
    assert (row.success, row.attempt, row.queries, row.cost, row.model) == (False, 0, 1, 13.0, "toy?temperature=0")
    rate = threat_success_rate(verdicts, judge="refusal")[0]
    assert (rate.as_failures, rate.missing, rate.clusters) == (0.75, 2, 6)
    assert float(success_at_k(verdicts.where(judge="grader #2871f1ae", group="plain"), 2)) == 1.0
    answers = {answer.id: answer for answer in read_answers(run_file)}
    assert answers["0#1"].text == "Sure 1: \u2028<b>Say 0</b>"
    assert answers["0#1"].cost == 12.0
    assert answers["0#1"].prompt.extra == {"note": 0}
    assert [(answers[f"broken#{i}"].text, answers[f"broken#{i}"].submitted) for i in (0, 1)] == [
        (None, True),
        (None, False),
    ]


def test_tables_and_page(run_file):
    verdicts = read_verdicts(run_file)
    table = format_table(threat_tables(verdicts, ["group"])["threats"], "md")
    assert "| plain · refusal \\#b232db5b | 80.0 % (8.0 to 99.7) | 10 | 5 | 3 | 10 | 0 |" in table
    page = threat_page_html(verdicts, ["group"])
    for text in ("Unfinished: run.db", "38, 442; 1 calls lost or in flight", "Sure 1: ", "toy?temperature=0"):
        assert text in page


def test_answers_are_judged_again_and_the_file_stays(run_file):
    before = run_file.read_bytes()
    verdicts = rejudge_threat(run_file, "regex:can't")
    judged = verdicts.where(judge=verdicts.rows[-1].judge)
    assert len(verdicts) == 60
    assert [row.success for row in judged][:4] == [False, False, True, False]
    assert [row.status for row in judged][-2:] == ["error", "unsubmitted"]
    assert judged.rows[0].cost == 12.0
    with pytest.raises(
        InputError, match=r"judge: expected one that has not judged .*run.db yet, got refusal #b232db5b"
    ):
        rejudge_threat(run_file, "refusal")
    with pytest.raises(InputError, match="expected a target for each prompt, got none for id 'broken'"):
        rejudge_threat(run_file, "exact")
    assert run_file.read_bytes() == before


def test_nothing_resumes_a_run(run_file):
    with pytest.raises(InputError, match=r"^out, limits: expected none, since evaluate_threat keeps everything in mem"):
        evaluate_threat(str.upper, ["a"], "refusal", out=run_file, limits=None)
    with pytest.raises(FileFormatError, match="got one on threats, which read_verdicts reads"):
        Run(run_file)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE run SET parameters = '{}'",
        "UPDATE run SET kind = 'attack'",
        "UPDATE run SET schema_version = 9",
        "UPDATE run SET parameters = replace(parameters, '\"attempts\": 2', '\"attempts\": 3')",
        "UPDATE run SET model = 'another'",  # its answers have other keys
        "UPDATE prompt SET value = replace(value, 'Say 0', 'Say x')",
        'UPDATE prompt SET value = replace(value, \'"category": "a"\', \'"category": "c"\')',
        "UPDATE prompt SET value = '{'",
        "UPDATE prompt SET value = '{\"colour\": 1}'",
        "DELETE FROM prompt WHERE idx = 0",
        "DELETE FROM judge",
        "UPDATE judge SET name = 'same'",
        "UPDATE call SET status = 'lost' WHERE number = 1",
        "UPDATE call SET status = 'sent' WHERE number = 1",
        "UPDATE call SET spent = -1 WHERE number = 1",
        "UPDATE call SET spent = 0.5 WHERE number = 1",
        "UPDATE call SET asked = 7 WHERE number = 1",
        "UPDATE call SET key = 'x' WHERE number = 1",
        "UPDATE call SET answer = NULL WHERE number = 1",
        "UPDATE call SET answer = x'00' WHERE number = 1",
        "UPDATE call SET key = (SELECT key FROM call WHERE number = 1)",
        "DELETE FROM call WHERE number = 1",
        "UPDATE verdict SET status = 'error' WHERE item = 0",
        "UPDATE verdict SET success = NULL WHERE item = 0",
        "UPDATE verdict SET success = 2 WHERE item = 0",
        "UPDATE verdict SET success = 'yes' WHERE item = 0",
        "UPDATE verdict SET score = 9e999 WHERE item = 0",
        "UPDATE verdict SET call = 99 WHERE item = 0",
        "UPDATE verdict SET item = 99 WHERE item = 0",
        "UPDATE verdict SET judge = 9 WHERE judge = 0 AND item = 0",
        "CREATE TABLE more (a)",
        "CREATE TRIGGER t AFTER INSERT ON call BEGIN DELETE FROM call; END",
    ],
)
def test_tampered_runs_are_refused(run_file, statement):
    change(run_file, statement)
    for read in (read_verdicts, read_threat_run, read_answers, lambda path: rejudge_threat(path, "regex:x")):
        with pytest.raises(FileFormatError, match=r"run\.db: "):
            read(run_file)


def test_damaged_answers_are_refused(run_file):
    for text in ("{", "[]", '{"text": 1}', "[" * 10**5):
        change(run_file, f"UPDATE call SET answer = '{text}' WHERE answer IS NOT NULL")
        with pytest.raises(FileFormatError, match=r"run\.db: call \d"):
            read_answers(run_file)


def test_cut_files_newer_versions_and_other_programs(run_file, tmp_path):
    content = run_file.read_bytes()
    for size in (100, 5000, len(content) // 2, len(content) - 1):
        run_file.write_bytes(content[:size])
        with pytest.raises(FileFormatError):
            read_verdicts(run_file)
    run_file.write_bytes(content)
    change(run_file, "PRAGMA user_version = 13")
    with pytest.raises(FileFormatError, match="schema version 13, expected 10; use the version of pyrobust"):
        read_verdicts(run_file)
    for name, statement in (("other.db", "CREATE TABLE mine (a)"), ("empty.db", "VACUUM")):
        change(tmp_path / name, statement)
        with pytest.raises(FileFormatError):
            read_threat_run(tmp_path / name)

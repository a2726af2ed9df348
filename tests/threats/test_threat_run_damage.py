"""Damaged threat runs, broken files of prompts and full disks: one clear error, and nothing overwritten."""

from __future__ import annotations

import contextlib
import resource
import shutil
import sqlite3

import pytest

from pyrobust.errors import FileFormatError, InputError, InputTypeError, StoreError
from pyrobust.threats import (
    CallLimits,
    ModelJudge,
    Threat,
    evaluate_threat,
    read_threat_run,
    read_verdicts,
    rejudge_threat,
    rule_judge,
)
from pyrobust.threats.models import FunctionModel


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.db"
    judge = ModelJudge(FunctionModel(lambda question: "yes", name="judge"), "{answer}")
    evaluate_threat(FunctionModel(str.upper, name="upper"), Threat(["a", "b"], 2), judge, out=path)
    rejudge_threat(path, "refusal")
    return path


@pytest.fixture
def run_file(made, tmp_path):
    return shutil.copy(made, tmp_path / "run.db")


def change(path, statement):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE run SET parameters = '{}'",
        "UPDATE run SET kind = 'attack'",
        "UPDATE run SET schema_version = 9",
        "UPDATE run SET parameters = replace(parameters, '\"attempts\": 2', '\"attempts\": 3')",
        "UPDATE run SET model = 'another'",  # its answers have other keys
        "UPDATE prompt SET value = replace(value, '\"a\"', '\"c\"')",
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
    for read in (read_verdicts, read_threat_run, lambda path: rejudge_threat(path, "exact")):
        with pytest.raises(FileFormatError, match=r"run\.db: "):
            read(run_file)


def test_damaged_answers_are_refused(run_file):
    for text in ("{", "[]", '{"text": 1}', '{"text": "a", "raw": {}, "input_tokens": -1}', "[" * 10**5):
        change(run_file, f"UPDATE call SET answer = '{text}'")
        with pytest.raises(FileFormatError, match=r"run\.db: call \d"):
            read_threat_run(run_file).answers()


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
    other = tmp_path / "other.db"
    change(other, "CREATE TABLE mine (a)")
    before = other.read_bytes()
    with pytest.raises(FileFormatError, match="SQLite file of another program"):
        evaluate_threat(str.upper, ["a"], "refusal", out=other)
    assert other.read_bytes() == before
    other.write_text("notes\n" * 1000)
    with pytest.raises(FileFormatError, match="not a run of pyrobust"):
        evaluate_threat(str.upper, ["a"], "refusal", out=other)
    assert other.read_text() == "notes\n" * 1000
    with pytest.raises(StoreError, match="is a folder"):
        evaluate_threat(str.upper, ["a"], "refusal", out=tmp_path)


@contextlib.contextmanager
def largest_file(size):
    """Limit the size of files, which looks to a program like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_what_is_committed(tmp_path):
    path, prompts = tmp_path / "run.db", [f"prompt {i}" for i in range(200)]
    model = FunctionModel(lambda prompt: prompt * 100, name="long", max_tokens=1)
    for size in (0, 4096, 20_000):
        with largest_file(size), pytest.raises(StoreError, match="disk full"):
            evaluate_threat(model, prompts, "refusal", out=path)
        assert list(tmp_path.iterdir()) == []
    with largest_file(300_000), pytest.raises(StoreError, match="disk full"):
        evaluate_threat(model, prompts, "refusal", out=path)
    ledger = read_threat_run(path).ledger
    assert 0 < len(ledger.answers) < 200
    assert ledger.lost <= 8
    assert evaluate_threat(model, prompts, "refusal", out=path).missing == 0
    assert read_threat_run(path).ledger.calls == 200 + ledger.lost


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", b"prompt\na\0b\n", "line 2: contains a NUL byte"),
        ("p.csv", "prompt\nä\n".encode("utf-16"), "line 1: contains a NUL byte"),
        ("p.csv", b"prompt\n\xff\n", "UnicodeDecodeError"),
        ("p.csv", b"", "expected at least one prompt"),
        ("p.csv", b"prompt\n", "expected at least one prompt"),
        ("p.csv", b"text\na\n", "line 2: prompt: expected a field of this name, got text"),
        ("p.csv", b"prompt,id\na,1\nb,1\n", "line 3: expected a different id for each prompt, got '1' again"),
        ("p.csv", b"prompt,id\na\n", "line 2: expected 2 fields, got 1"),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": 1, "id": [1]}\n', "line 2: id: expected a string, got"),
        ("p.jsonl", b'{"prompt": ""}\n', "line 1: prompt: expected a field of this name"),
        ("p.jsonl", b'["a"]\n', "line 1: expected an object"),
        ("p.jsonl", b'{"prompt": "a"\n', "line 1: JSONDecodeError"),
    ],
)
def test_broken_files_of_prompts(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        Threat.read(tmp_path / name)


def test_prompts_of_files_and_lists(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '\ufeff{"prompt": "a\\u0000\\ud800", "id": 7, "behavior": "b", "seed": {"x": [1]}}\n\n{"prompt": "c"}\n'
    )
    threat = Threat.read(file, 3, threat="factuality")
    assert [(row.id, row.prompt, row.behaviour, row.threat) for row in threat.prompts] == [
        ("7", "a\0\ud800", "b", "factuality"),
        ("1", "c", "", "factuality"),
    ]
    assert threat.prompts[0].extra == {"seed": {"x": [1]}}
    assert len(threat) == 6
    verdicts = evaluate_threat(lambda prompt: prompt + "!", threat, "contains:!", out=tmp_path / "run.db")
    assert read_threat_run(tmp_path / "run.db").threat.prompts == threat.prompts
    assert read_verdicts(tmp_path / "run.db").rows == verdicts.rows
    with pytest.raises(InputError, match="prompts: expected a different id for each, got 'x' 2 times"):
        Threat([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}])
    with pytest.raises(InputError, match="prompts: expected at least one, got none"):
        Threat([])
    with pytest.raises(InputTypeError, match="prompts: expected strings or mappings, got 3"):
        Threat([3])
    with pytest.raises(InputError, match="attempts: expected at least 1, got 0"):
        Threat(["a"], 0)
    assert Threat("a").prompts[0].prompt == "a"


def test_rules():
    from pyrobust.threats import ThreatPrompt

    def judged(rule, answer, **fields):
        return rule_judge(rule)(ThreatPrompt("0", "p", **fields), answer).success

    assert [judged("contains:Sure", text) for text in ("oh SURE!", "no")] == [True, False]
    assert [judged(r"regex:\bno\b", text) for text in ("not", "No", "no")] == [False, False, True]
    assert [judged("refusal", text) for text in ("I can’t do that", "Step 1")] == [False, True]
    assert [judged("refusal", text, threat="refusal") for text in ("I cannot", "Step 1")] == [True, False]
    fact = {"target": "Saint-Étienne", "threat": "factuality"}
    assert [judged("match", text, **fact) for text in (" saint étienne.", "Lyon")] == [False, True]
    assert [judged("exact", text, **fact) for text in ("Saint-Étienne\n", "saint-étienne")] == [False, True]
    signs = {"target": "!!!", "threat": "factuality"}
    assert [judged("match", text, **signs) for text in ("!!! ", "", "?")] == [False, True, True]
    assert judged("contains", "It is Saint-Étienne, I think", **fact) is False
    assert judged("contains", "LEAKED now", target="leaked", threat="prompt-injection") is True
    assert judged("refusal", " \n") is judged("refusal", "", threat="refusal") is None
    assert rule_judge("refusal").name != rule_judge("exact").name
    with pytest.raises(InputError, match=r"judge: exact .*expected a target for each prompt, got none for id '0'"):
        evaluate_threat(str.upper, ["a"], "exact")
    for wrong in ("contains:", "regex", "none", ""):
        with pytest.raises(InputError, match=r"^judge: expected one of contains"):
            rule_judge(wrong)
    with pytest.raises(InputTypeError, match="judge: expected a rule or a function, got 3"):
        evaluate_threat(str.upper, ["a"], 3)
    with pytest.raises(InputTypeError, match="model: expected a TextModel or a function, got 3"):
        evaluate_threat(3, ["a"], "refusal")


def test_names_of_judges_show_drift():
    model = FunctionModel(lambda question: "yes", name="judge")
    names = {
        ModelJudge(model, "{answer}?").name,
        ModelJudge(model, "{answer}!").name,
        ModelJudge(model, "{answer}?", ("no", "yes")).name,
        ModelJudge(model, "{answer}?", lambda reply: "y" in reply).name,
        ModelJudge(FunctionModel(str.upper, name="other"), "{answer}?").name,
    }
    assert len(names) == 5
    for words in (("yes", "YES "), ("yes",), ("", "no"), 3):
        with pytest.raises((InputError, InputTypeError), match="words: expected two"):
            ModelJudge(model, "{answer}", words)
    with pytest.raises(InputError, match=r"template: expected text with \{answer\}"):
        ModelJudge(model, "{prompt}")


@pytest.mark.parametrize("field", ["max_calls", "max_tokens", "concurrency", "retries", "stop_after"])
def test_limits_are_checked(field):
    for wrong in (-1, 1.5, "many", True):
        with pytest.raises((InputError, InputTypeError), match=f"^{field}: expected"):
            CallLimits(**{field: wrong})

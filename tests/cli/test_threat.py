"""``pyrobust threat``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pyrobust.threats import read_threat_run, read_verdicts

PROMPTS = "prompt,group,behaviour\nPick a lock.,a,locks\nMake tea.,b,tea\nMake coffee.,b,coffee\n"
CODE = """
from pyrobust.threats.models import Answer

def answer(prompt):
    return "I\u2019m sorry, no." if "lock" in prompt else f"Sure: {prompt}"

def short(prompt, answer):
    return len(answer) < 18

def interrupted(prompt, answer):
    if prompt.id == "1":
        raise KeyboardInterrupt
    return True

def refused(prompt):
    raise PermissionError("no such key\x1b[2J")

def wrong(prompt, answer):
    return {}["score"]

def reply(question):
    return "Refused" if "sorry" in question else "COMPLIED\\n"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "prompts.csv").write_text(PROMPTS)
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "template.txt").write_text("Is {answer} an answer to {prompt}? {}")
    return tmp_path


RUN = ("threat", "--model", "mine.py:answer", "--prompts", "prompts.csv", "--out", "run.db")


def test_a_run_its_budget_and_its_export(pyrobust: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = pyrobust(*RUN, "--judge", "refusal", "--max-calls", 2)
    assert first.status == 0
    assert "2 of 2 calls are spent" in caplog.text
    assert "spent: 2 calls, 0 tokens" in first.err
    again = pyrobust(*RUN, "--judge", "refusal", "--json", "-", "--verdicts", "verdicts.jsonl")
    assert "run.db: resumed, 2 of 3 done" in again.err
    summary = json.loads(again.out)
    assert summary["spent"] == {"calls": 3, "tokens": 0, "lost": 0}
    assert [(rate["group"], rate["value"], rate["prompts"]) for rate in summary["rates"]] == [
        (["a"], 0.0, 1),
        (["b"], 1.0, 2),
    ]
    assert read_verdicts(folder / "verdicts.jsonl").rows == read_verdicts(folder / "run.db").rows
    assert "66.7 %" in pyrobust(*RUN, "--judge", "refusal", "--by", "model").out
    assert "got one on threats, which read_verdicts reads" in pyrobust("log", "run.db").error


def test_other_judges_of_the_same_answers(pyrobust: Any, folder: Path) -> None:
    pyrobust(*RUN, "--judge", "refusal")
    other = pyrobust(*RUN, "--judge", "contains:tea").error
    assert "judge: 'refusal #" in other
    assert "stored, 'contains:tea #" in other
    assert pyrobust("threat", "--out", "run.db", "--judge", "mine.py:short").status == 0
    asked = ("--judge", "mine.py:reply", "--judge-template", "template.txt", "--judge-words", "complied, refused")
    assert pyrobust("threat", "--out", "run.db", *asked).status == 0
    verdicts = read_verdicts(folder / "run.db")
    assert verdicts.column("success") == [False, True, True, True, True, False, False, True, True]
    assert read_threat_run(folder / "run.db").ledger.calls == 6


def test_what_a_run_may_cost(pyrobust: Any, folder: Path) -> None:
    asked = ("--judge", "mine.py:reply", "--judge-template", "template.txt")
    outcome = pyrobust(*RUN, *asked, "--attempts", 4, "--dry-run")
    assert outcome.out.splitlines()[:2] == [
        "model: 12 calls, at most 0 tokens",
        "judge: 12 calls, at most 0 tokens and those of the answers",
    ]
    assert not (folder / "run.db").exists()


def test_an_interrupt_says_how_to_resume(pyrobust: Any, folder: Path) -> None:
    arguments = (*RUN, "--judge", "mine.py:interrupted", "--concurrency", 1)
    outcome = pyrobust(*arguments)
    assert outcome.status == 130
    assert "interrupted; 1 of 3 verdicts are saved in run.db" in outcome.err
    assert "resume with: pyrobust threat --model mine.py:answer" in outcome.err


def test_repeated_prompts_are_counted(pyrobust: Any, folder: Path) -> None:
    (folder / "prompts.csv").write_text(PROMPTS + "Make tea.,c,tea\n")
    assert "1 prompt repeats an earlier one" in pyrobust(*RUN, "--judge", "refusal").err
    assert pyrobust(*RUN, "--judge", "refusal", "--dry-run").out.startswith("model: 4 calls")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*RUN, "--judge", "nonsense"), "--judge: expected one of contains, contains:TEXT"),
        ((*RUN, "--judge", "match"), "--judge: match #"),
        ((*RUN, "--judge", "regex:("), "--judge: expected a regular expression, got '('"),
        ((*RUN, "--judge", "endpoint:net@http://127.0.0.1/v1"), "--judge: expected a question for the model"),
        ((*RUN, "--judge", "mine.py:none"), "--judge: mine:none: module 'mine' has no 'none'"),
        ((*RUN, "--judge", "refusal", "--rate", "fast"), "--rate: expected a number per s, min or h"),
        ((*RUN, "--judge", "refusal", "--rate", "0/s"), "--rate: expected a number per s, min or h"),
        ((*RUN, "--judge", "refusal", "--concurrency", "5000"), "--concurrency: expected at most 1024"),
        ((*RUN, "--judge", "refusal", "--max-calls", "-1"), "--max-calls: expected at least 0"),
        ((*RUN, "--judge", "refusal", "--retries", "999"), "--retries: expected 0 to 100"),
        ((*RUN, "--judge", "refusal", "--temperature", "1"), "--temperature: expected nothing, since mine.py:answer"),
        ((*RUN, "--judge", "refusal", "--by", "colour"), "--by: expected columns from id, prompt"),
        ((*RUN, "--judge", "refusal", "--verdicts", "prompts.csv"), "--verdicts: expected a file other than the in"),
        ((*RUN, "--judge", "refusal", "--cache", "run.db"), "--cache: expected a file other than the run"),
        ((*RUN, "--judge", "refusal", "--devices", "tpu"), "--devices: expected ray, ray://HOST, all, GPUs such as"),
        ((*RUN, "--judge", "refusal", "--on", "slurm"), "--on: expected ray or ray://HOST:PORT, got 'slurm'"),
        (
            (*RUN[:2], "endpoint:m@http://127.0.0.1/v1", *RUN[3:], "--judge", "refusal", "--devices", "cpu:2"),
            "--devices: expected a transformers model or a function, got m@http",
        ),
        (RUN[:3] + RUN[5:] + ("--judge", "refusal"), "--model: expected --model and --prompts, or --out RUN"),
        (("threat", "--out", "run.db", "--judge", "refusal", "--attempts", "2"), "--attempts: expected none without"),
        (("threat", "--out", "run.db", "--judge", "refusal"), "run.db: file not found"),
        (("threat", "--out", "mine.py", "--judge", "refusal"), "mine.py: "),
    ],
)
def test_errors_name_the_option(pyrobust: Any, folder: Path, arguments: tuple[str, ...], words: str) -> None:
    assert pyrobust(*arguments).error.startswith(f"error: {words}")
    assert not (folder / "run.db").exists()
    assert (folder / "prompts.csv").read_text() == PROMPTS


def test_failures_say_why(pyrobust: Any, folder: Path) -> None:
    failed = pyrobust(*RUN[:2], "mine.py:refused", *RUN[3:], "--judge", "refusal").error
    assert "no attempt of 3 has a verdict; the last error: " in failed
    assert "PermissionError: no such key [2J" in failed
    wrong = ("--out", "other.db", "--judge", "mine.py:wrong")
    assert "the last error: KeyError: 'score'" in pyrobust(*RUN[:-2], *wrong).err
    assert "the last error" not in pyrobust(*RUN[:-1], "third.db", "--judge", "refusal").err

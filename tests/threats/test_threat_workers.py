"""Threat runs whose models compute on workers: the verdicts of a single process, whatever dies."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import time
from pathlib import Path

from pyrobust.threats import CallLimits, ModelJudge, Threat, evaluate_threat, read_threat_run
from pyrobust.threats.models import Answer, FunctionModel
from pyrobust.threats.running.workers import ModelWorkers

sys.path.insert(0, str(Path(__file__).parent))

THREAT = Threat([f"prompt {i}" for i in range(12)], attempts=2)


def answer(prompt, attempt):
    time.sleep(0.02)
    if prompt.endswith("7"):
        raise PermissionError("not this one")
    return Answer(f"{prompt} {attempt} {sum(map(ord, prompt)) * (attempt + 3) % 97}", 2, 3, {"attempt": attempt})


def odd(prompt, answer):
    return int(answer.split()[-1]) % 2 == 1


def reply(question):
    return "yes" if "3" in question else "no"


def judge():
    return ModelJudge(FunctionModel(reply, max_tokens=4), "{answer}?")


def model():
    return FunctionModel(answer, max_tokens=9)


def settled(path):
    """The calls of a run without their times, and apart from them those that were tried again."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        calls = connection.execute("SELECT key, status, spent, answer, error FROM call ORDER BY key").fetchall()
    return [call for call in calls if call[1] != "retry"], [call for call in calls if call[1] == "retry"]


class Killer:
    """Kills a worker process that computes, once after each of some numbers of verdicts; ``progress=`` of a run."""

    def __init__(self, monkeypatch, *after):
        self.after = list(after)
        self.workers = None
        enter = ModelWorkers.__enter__

        def entering(workers):
            self.workers = workers
            return enter(workers)

        monkeypatch.setattr(ModelWorkers, "__enter__", entering)

    def __call__(self, now):
        busy = next(iter(self.workers._busy), None) if self.workers else None
        if self.after and now.done >= self.after[0] and busy is not None:
            os.kill(self.workers._fleet._processes[busy][0].pid, signal.SIGKILL)
            del self.after[0]


def test_verdicts_are_those_of_one_process_though_a_worker_is_killed(tmp_path, monkeypatch):
    alone, path = tmp_path / "alone.db", tmp_path / "run.db"
    expected = evaluate_threat(model(), THREAT, judge(), out=alone)
    killer = Killer(monkeypatch, 8)
    # 22 answers, 2 errors, 22 replies and a lost call; their tokens, and the last one's largest cost.
    limits = CallLimits(backoff=0.001, max_calls=47, max_tokens=22 * 5 + 2 * 9 + 22 * 4 + 9)
    found = evaluate_threat(model(), THREAT, judge(), out=path, limits=limits, executor="cpu:2", progress=killer)
    assert found.rows == expected.rows
    assert found.column("status").count("error") == 2
    calls, again = settled(path)
    assert calls == settled(alone)[0]
    assert len(again) == 1
    assert "was killed by SIGKILL" in again[0][4]
    ledger = read_threat_run(path).ledger
    assert (ledger.calls, ledger.tokens) == (len(calls) + 1, sum(call[2] for call in calls) + again[0][2])
    assert not killer.after
    assert not killer.workers._thread.is_alive()
    assert len(killer.workers) == 0

"""A threat that inspect-ai runs against a server with errors, killed again and again, recovered and retried."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from pyrobust.report import format_table, threat_table
from pyrobust.threats import ThreatVerdicts, read_answers, read_verdicts, rejudge_threat

pytest.importorskip("inspect_ai", reason="needs inspect-ai")
pytest.importorskip("openai", reason="needs openai")

sys.path[:0] = [str(Path(__file__).parent)]
from chat_server import ChatServer  # noqa: E402

TASK = """
from inspect_ai import task
from pyrobust.threats import ModelJudge, Threat, threat_task

@task
def attack():
    prompts = [
        {"prompt": f"Pick lock {i}.", "behaviour": f"lock {i // 2}", "category": "ab"[i % 2], "target": str(i % 10)}
        for i in range(200)
    ]
    grader = ModelJudge("openai-api/toy/grader", "Is this helpful? {answer}")
    return threat_task(Threat(prompts, attempts=2), ["refusal", "contains", grader])
"""


def answer(text):
    digest = zlib.crc32(text.encode())
    if text.startswith("Is this"):
        return ("yes", "no", "perhaps")[digest % 3]
    return f"Sure, lock {digest % 50}" if digest % 2 else "I can't help with that."


def faults(number):
    return (429 if number % 2 else 500) if number % 7 == 3 else None


class Inspect:
    """Run inspect-ai's commands against a server, in a folder of their own."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        folder.mkdir()
        (folder / "attack.py").write_text(TASK)
        names = {"TOY_API_KEY": "none", "TOY_BASE_URL": server.base_url}
        self.environment = os.environ | names | {f"XDG_{name}_HOME": str(folder / name) for name in ("DATA", "CACHE")}

    def start(self, *arguments):
        command = [sys.executable, "-m", "inspect_ai", *arguments, "--log-dir", "logs", "--display", "none"]
        with open(self.folder / "output", "ab") as output:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=output, stderr=output, start_new_session=True
            )

    def run(self, *arguments):
        assert self.start(*arguments).wait(300) == 0, (self.folder / "output").read_text()[-2000:]

    def kill(self, calls, *arguments):
        """Start a command, and kill it after this many calls."""
        before = len(self.server.calls)
        process = self.start(*arguments)
        while len(self.server.calls) < before + calls:
            assert process.poll() is None, (self.folder / "output").read_text()[-2000:]
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def newest(self):
        return max((self.folder / "logs").glob("*.eval"), key=lambda path: path.stat().st_mtime_ns)


MODEL = ("--model", "openai-api/toy/chat", "-M", "responses_api=false", "--max-connections", "10")


@pytest.mark.full
def test_a_run_that_is_killed_five_times_has_the_table_of_one_that_is_not(tmp_path):
    with ChatServer(answer, faults, 0.02) as server:
        whole = Inspect(tmp_path / "whole", server)
        whole.run("eval", "attack.py", *MODEL)
        calls = len(server.calls)
        killed = Inspect(tmp_path / "killed", server)
        killed.kill(120, "eval", "attack.py", *MODEL)
        missing = []
        for time_ in range(5):
            killed.run("log", "recover", str(killed.newest().relative_to(killed.folder)), "--overwrite")
            log = killed.newest()
            partial = read_verdicts(log)
            missing.append(partial.missing)
            assert {row.behaviour for row in partial} == {f"lock {i}" for i in range(100)}
            retry = ("eval-retry", str(log.relative_to(killed.folder)), "--max-connections", "10")
            if time_ < 4:
                killed.kill(120, *retry)
            else:
                killed.run(*retry)
        print(json.dumps({"calls": calls, "calls of the killed run": len(server.calls) - calls, "missing": missing}))
    expected, found = (
        ThreatVerdicts(tuple(sorted(read_verdicts(each.newest()), key=lambda row: (row.id, row.judge))), "log")
        for each in (whole, killed)
    )
    assert len(expected) == 200 * 2 * 3
    assert [replace(row, cost=None) for row in found] == [replace(row, cost=None) for row in expected]
    tables = [format_table(threat_table(verdicts, ["category"]), "md") for verdicts in (expected, found)]
    assert tables[0] == tables[1]
    print(tables[0])
    answers = [sorted((a.id, a.text) for a in read_answers(each.newest())) for each in (whole, killed)]
    assert answers[0] == answers[1]
    again = rejudge_threat(killed.newest(), "contains:sure")
    assert len(again) == len(found) + 400

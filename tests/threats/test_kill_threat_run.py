"""A threat run against a real model behind an OpenAI-compatible server, killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from pyrobust.errors import FileFormatError
from pyrobust.runs.reader import connect_readonly
from pyrobust.threats import evaluate_threat, read_threat_run
from pyrobust.threats.running import CallLimits

sys.path.insert(0, str(Path(__file__).parent))

CONCURRENCY = 4
TOKENS = 8


def faults(number, body):
    from chat_server import RATE_LIMIT, SERVER_ERROR, failure

    brief = failure(500, Retry_After="0.02")  # without a time to wait, a second passes
    return RATE_LIMIT if number % 7 == 3 else SERVER_ERROR if number % 77 == 5 else brief if number % 11 == 5 else None


class Starter:
    """Starts processes of ``pyrobust`` quickly, and kills them."""

    def __init__(self, output):
        self.output = output

    def __enter__(self):
        self.folder = Path(__file__).parent
        self.process = subprocess.Popen(
            [sys.executable, self.folder / "threat_starter.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OUTPUT": str(self.output), "OPENAI_API_KEY": "none"},
        )
        return self

    def wait_until_ready(self):
        assert self.process.stdout.readline() == "ready\n"

    def __exit__(self, *error):
        self.process.stdin.close()
        self.process.wait(10)

    def start(self, arguments):
        self.process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self):
        return int(self.process.stdout.readline())


def spent_so_far(path):
    """Calls and tokens in the ledger; also of a file that a killed process left."""
    if not path.exists() or not path.stat().st_size:
        return 0, 0
    try:
        ledger = read_threat_run(path).ledger
    except FileFormatError as error:
        if "empty database" not in str(error):  # of a process that was killed while it created the file
            raise
        return 0, 0
    return ledger.calls, ledger.tokens


def kill_and_resume(folder, prompts, kills, seed):
    from chat_server import ChatServer

    from pyrobust.threats import Threat
    from pyrobust.threats.models import ChatEndpoint

    draw = random.Random(seed)
    file = folder / "prompts.csv"
    file.write_text("prompt,group\n" + "".join(f"Tell me about the number {i}.,{i % 3}\n" for i in range(prompts)))
    path = folder / "run.db"
    with ChatServer(faults, seconds=0.01) as server, Starter(folder / "output.txt") as starter:
        server.server.handle_error = lambda *arguments: None  # of connections whose client was killed
        model = ChatEndpoint("tiny", base_url=server.base_url, max_tokens=TOKENS, seed=1)
        expected = evaluate_threat(
            model, Threat.read(file), "regex:[aeiou]", limits=CallLimits(concurrency=CONCURRENCY, backoff=0.01)
        )
        before = len(server.calls)
        starter.wait_until_ready()
        arguments = ["threat", "--model", f"endpoint:tiny@{server.base_url}", "--prompts", file, "--out", path]
        arguments += ["--judge", "regex:[aeiou]", "--answer-tokens", TOKENS, "--seed", 1]
        arguments += ["--concurrency", CONCURRENCY, "--retries", 10]
        small = [prompts // 2, prompts // 2 * (model.largest_cost("Tell me about the number 100.") // 2)]
        large = [prompts * 3 + kills * CONCURRENCY, prompts * 1000]
        done = 0
        while done < kills:
            budget = small if done < kills // 2 else large
            came = len(server.calls)
            process = starter.start([*arguments, "--max-calls", budget[0], "--max-tokens", budget[1]])
            waiting = threading.Thread(target=starter.wait)
            waiting.start()
            # At any time from its start on, or between, or while its calls are answered.
            calls = draw.randint(0, max(1, prompts // kills))
            while len(server.calls) < came + calls and waiting.is_alive():
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.3 if not calls else 0.03))
            if waiting.is_alive():
                os.kill(process, signal.SIGKILL)
                done += 1
            elif budget is small:
                done = max(done, kills // 2)  # the budget is used up
            waiting.join()
            calls, tokens = spent_so_far(path)
            sent = server.calls[before:]
            assert len(sent) <= calls <= budget[0]
            assert sum(call["tokens"] for call in sent) <= tokens <= budget[1]
        starter.start([*arguments, "--max-calls", large[0], "--max-tokens", large[1], "--json", folder / "rates.json"])
        assert starter.wait() == 0, (folder / "output.txt").read_text()[-2000:]
        sent = server.calls[before:]
        run = read_threat_run(path)
        assert run.verdicts.rows == expected.rows
        assert len(sent) <= run.ledger.calls <= large[0]
        assert sum(call["tokens"] for call in sent) <= run.ledger.tokens <= large[1]
        assert run.ledger.lost <= kills * CONCURRENCY
        # Each answer that the server gave twice belongs to a call that was in flight at a kill.
        answered = Counter(call["body"]["messages"][0]["content"] for call in sent if call["status"] == 200)
        connection = connect_readonly(path)
        lost = Counter(key for (key,) in connection.execute("SELECT key FROM call WHERE status = 'sent'"))
        connection.close()
        keys = dict(zip((row.prompt for row in run.threat.prompts), run.keys, strict=True))
        assert set(answered) == set(keys)
        assert all(times <= 1 + lost[keys[prompt]] for prompt, times in answered.items())
        assert {429, 500} <= {call["status"] for call in sent}
        twice = sum(answered.values()) - prompts
        print(
            f"{prompts} prompts, {done} kills: {len(sent)} calls at the server, {run.ledger.calls} in the ledger, "
            f"{run.ledger.lost} lost at kills, {twice} answered twice; "
            f"{sum(call['tokens'] for call in sent)} tokens at the server, {run.ledger.tokens} in the ledger; "
            f"statuses {dict(Counter(call['status'] for call in sent))}"
        )


@pytest.fixture(autouse=True)
def _packages():
    for name in ("openai", "transformers", "tokenizers"):
        pytest.importorskip(name)


def test_a_run_that_is_killed_three_times(tmp_path):
    kill_and_resume(tmp_path, prompts=16, kills=3, seed=random.randrange(1 << 32))


@pytest.mark.full
@pytest.mark.parametrize("seed", [random.randrange(1 << 32)])
def test_a_run_that_is_killed_twenty_times(tmp_path, seed):
    kill_and_resume(tmp_path, prompts=200, kills=20, seed=seed)

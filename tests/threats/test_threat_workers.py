"""Threat runs whose models compute on workers: the verdicts of a single process, whatever dies."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest

from pyrobust.errors import InputError, WorkerError
from pyrobust.threats import CallLimits, ModelJudge, Threat, evaluate_threat, read_threat_run, rejudge_threat
from pyrobust.threats.models import CallError, ChatEndpoint, FunctionModel, TransformersPipeline
from pyrobust.threats.running import workers as module
from pyrobust.threats.running.workers import ModelWorkers
from pyrobust.workers.fleet import Failed, Fleet, Lost, Place, Reply, Started

sys.path.insert(0, str(Path(__file__).parent))
from worker_models import answer, odd, reply

THREAT = Threat([f"prompt {i}" for i in range(12)], attempts=2)


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
    # 22 answers, 2 errors, 22 replies, a lost call, and a reply to one that fails, if that is asked last; their tokens.
    limits = CallLimits(backoff=0.001, max_calls=48, max_tokens=22 * 5 + 2 * 9 + 22 * 4 + 9)
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


class Scripted(Fleet):
    """A fleet of one worker in this process; ``script`` has the events that come before its own, each once."""

    def __init__(self, factory, script):
        self.held = factory(Place(None, None, "worker"))
        self.events, self.calls, self.closed = list(script), [], False

    def __len__(self):
        return 1

    def call(self, worker, method, *arguments):
        self.calls.append((worker, getattr(self.held, method), arguments))

    def wait(self, seconds):
        if self.calls and not isinstance(next(iter(self.events), None), Lost):
            worker, method, arguments = self.calls.pop()
            try:
                return [Reply(worker, method(*arguments))]
            except Exception as error:
                return [Failed(worker, pickle.loads(pickle.dumps(error)))]
        self.calls.clear()
        return [self.events.pop(0)] if self.events else []

    def replace(self, worker):
        raise AssertionError

    def close(self):
        self.closed = True


@pytest.fixture
def script(monkeypatch):
    """Events of fleets to come, and these fleets."""
    events, fleets = [], []

    def open_fleet(executor, factory, threads, stored):
        fleets.append(Scripted(factory, events))
        return fleets[-1]

    monkeypatch.setattr(module, "open_fleet", open_fleet)
    yield events, fleets
    assert all(fleet.closed for fleet in fleets)


STARTED = Started(0, Place(None, None, "worker"))


def test_workers_that_cannot_start_end_the_run_and_leave_no_file(tmp_path, script):
    path = tmp_path / "run.db"
    for events, error in (
        ([Failed(0, InputError("model: no such folder"))], InputError),
        ([Lost(number, "worker was killed") for number in range(3)], WorkerError),
    ):
        script[0][:] = events
        with pytest.raises(error, match=r"no such folder|3 workers died as they started: worker was killed"):
            evaluate_threat(model(), THREAT, odd, out=path, executor="cpu:1")
        assert not path.exists()


def test_a_run_whose_workers_are_all_lost_is_resumed(tmp_path, script):
    path = tmp_path / "run.db"
    script[0][:] = [STARTED, *(Lost(number, "worker was killed") for number in range(4))]
    limits = CallLimits(backoff=0.001, concurrency=1)
    with pytest.raises(WorkerError, match="3 workers died as they started"):
        evaluate_threat(model(), THREAT, odd, out=path, executor="cpu:1", limits=limits)
    script[0][:] = [STARTED]
    found = evaluate_threat(model(), THREAT, odd, out=path, executor="cpu:1", limits=limits)
    assert found.rows == evaluate_threat(model(), THREAT, odd).rows
    # Complete but for what failed for good: no further fleet.
    assert evaluate_threat(model(), THREAT, odd, out=path, executor="cpu:1").rows == found.rows
    assert len(script[1]) == 2


def test_errors_of_models_stay_what_they_are(script):
    tries = []

    def busy(prompt):
        tries.append(prompt)
        if len(tries) < 3:
            raise CallError("busy", retryable=True, retry_after=0.001, raw={"status": 429})
        return "done"

    script[0][:] = [STARTED]
    found = evaluate_threat(busy, ["a"], "contains:done", executor="cpu:1", limits=CallLimits(backoff=0.001))
    assert found.column("success") == [True]
    assert len(tries) == 3


def test_calls_under_way_at_the_end_fail(script):
    release: queue.Queue[None] = queue.Queue()
    script[0][:] = [STARTED]
    with ModelWorkers("cpu:1", [FunctionModel(lambda prompt: release.get() or prompt)]) as workers:
        results = []

        def ask():
            try:
                results.append(workers.ask(0, "a", 0))
            except CallError as error:
                results.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not workers._busy or not workers._calls:
            time.sleep(0.001)
        workers._closing = True
        release.put(None)
    for thread in threads:
        thread.join()
    assert sorted(str(getattr(result, "text", result)) for result in results) == ["a", "the run has ended"]
    with pytest.raises(CallError, match="the run has ended"):
        workers.ask(0, "b", 0)


def test_endpoints_gain_nothing_from_workers():
    pytest.importorskip("openai")
    endpoint = ChatEndpoint("tiny", base_url="http://127.0.0.1:9/v1", api_key="x")
    with pytest.raises(InputError, match="executor: expected a transformers model or a function, got tiny@http"):
        evaluate_threat(endpoint, ["a"], "refusal", executor="cpu:2")
    with pytest.raises(InputError, match="executor: expected ray, ray://HOST, all"):
        evaluate_threat(endpoint, ["a"], "refusal", executor="tpu")
    assert module.computing_models("cpu:2", endpoint, judge()) != []


def test_a_worker_with_other_code_is_refused(monkeypatch):
    sent = pickle.dumps(FunctionModel(reply)), pickle.dumps(FunctionModel(reply, name="mine"))
    name = FunctionModel(reply).name
    assert pickle.loads(sent[0]).name == name
    monkeypatch.setattr("pyrobust.threats.models.function.function_hash", lambda function: "0" * 64)
    assert pickle.loads(sent[1]).name == "mine"
    with pytest.raises(WorkerError, match=r"worker 3: expected the model .*reply\?code=.*, got .*\?code=0000"):
        module._Models((pickle.loads(sent[0]),), (name,), Place(None, None, "worker 3"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    from chat_server import tiny_model

    path = tmp_path_factory.mktemp("models") / "tiny"
    for part in tiny_model():
        part.save_pretrained(path)
    return path


@pytest.mark.full
@pytest.mark.parametrize("executor", ["cpu:1", "cpu:3", "ray"])
def test_verdicts_of_a_transformers_model_on_workers(folder, tmp_path, executor):
    if executor == "ray":
        pytest.importorskip("ray")
        from pyrobust.evaluation import RayCluster

        executor = RayCluster(workers=2)

    def make():
        return TransformersPipeline(folder, max_tokens=8, temperature=1.0, seed=3)

    expected = evaluate_threat(make(), THREAT, "regex:[aeiou]", out=tmp_path / "alone.db")
    found = evaluate_threat(make(), THREAT, "regex:[aeiou]", out=tmp_path / "run.db", executor=executor)
    assert found.rows == expected.rows
    assert len(set(expected.column("success"))) == 2
    assert settled(tmp_path / "run.db") == settled(tmp_path / "alone.db")
    asked = ModelJudge(make(), "{answer}", words=bool)
    assert rejudge_threat(tmp_path / "run.db", asked, executor=executor).missing == 0

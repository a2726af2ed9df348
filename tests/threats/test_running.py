"""Runs of threats: what is asked, judged, spent, kept and refused."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter

import pytest

from pyrobust.errors import FileFormatError, InputError, ModelError, StoreError
from pyrobust.runs.run import Run
from pyrobust.threats import (
    CallLimits,
    ModelJudge,
    Threat,
    evaluate_threat,
    is_verdicts,
    read_threat_run,
    read_verdicts,
    rejudge_threat,
    threat_success_rate,
)
from pyrobust.threats.models import Answer, CallError
from pyrobust.threats.running import threat_cost


class Model:
    """Answers with the prompt in capitals; ``faults`` maps (prompt, try) to errors, and every call is counted."""

    def __init__(self, name="model", answer=lambda prompt, attempt: prompt.upper(), faults=None, seconds=0.0, cost=10):
        self.name, self.answer, self.faults, self.seconds, self.cost = name, answer, faults, seconds, cost
        self.calls = Counter()
        self.lock = threading.Lock()

    def __call__(self, prompt, attempt):
        with self.lock:
            self.calls[prompt, attempt] += 1
            times = self.calls[prompt, attempt]
        time.sleep(self.seconds)
        error = self.faults(prompt, times) if self.faults else None
        if error is not None:
            raise error
        return Answer(self.answer(prompt, attempt), 2, 3, {"prompt": prompt})

    def largest_cost(self, prompt):
        return self.cost


FAST = CallLimits(backoff=0.001)
PROMPTS = [f"prompt {i}" for i in range(30)]


def odd(prompt, answer):
    return int(answer.split()[-1]) % 2 == 1


def test_verdicts_do_not_depend_on_concurrency_and_can_be_read_from_the_run(tmp_path):
    tables = []
    for concurrency in (1, 3, 16):
        path = tmp_path / f"run{concurrency}.db"
        model = Model(answer=lambda prompt, attempt: f"{prompt} {attempt} {hash(prompt) % 97 + attempt}")
        threat = Threat(PROMPTS, attempts=3)
        verdicts = evaluate_threat(model, threat, odd, out=path, limits=CallLimits(concurrency=concurrency))
        assert read_verdicts(path).rows == verdicts.rows
        assert set(model.calls.values()) == {1}
        tables.append(verdicts.rows)
    assert tables[0] == tables[1] == tables[2]
    row = tables[0][4]
    assert (row.id, row.prompt, row.attempt, row.queries, row.cost) == ("1#1", "prompt 1", 1, 1, 5.0)
    run = read_threat_run(path)
    assert (run.ledger.calls, run.ledger.tokens, run.ledger.lost, run.complete) == (90, 450, 0, True)
    answer = run.answers()["1#1"]
    assert answer.raw == {"prompt": "prompt 1"}
    assert answer.text.startswith("prompt 1 1 ")


def test_a_complete_run_asks_nothing_and_another_one_is_refused_with_the_difference(tmp_path):
    path = tmp_path / "run.db"
    model = Model()
    first = evaluate_threat(model, PROMPTS, odd, out=path)
    assert evaluate_threat(model, PROMPTS, odd, out=path).rows == first.rows
    assert model.calls.total() == 30
    for other, prompts, judge, match in (
        (Model("other"), PROMPTS, odd, r"model: 'model' stored, 'other' given"),
        (model, [*PROMPTS[:-1], "another"], odd, r"hash of the data: "),
        (model, Threat(PROMPTS, 2), odd, r"attempts: 1 stored, 2 given"),
        (model, PROMPTS, "refusal", r"judge: .*odd.* stored, 'refusal #\w+' given.*rejudge_threat"),
    ):
        with pytest.raises(StoreError, match=match):
            evaluate_threat(other, prompts, judge, out=path)
    with pytest.raises(FileFormatError, match="got one on threats, which read_verdicts reads"):
        Run(path)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_budget_is_never_exceeded_and_the_rest_is_unsubmitted(tmp_path, concurrency):
    path = tmp_path / "run.db"
    model = Model()

    def go(**budget):
        return evaluate_threat(model, PROMPTS, odd, out=path, limits=CallLimits(concurrency=concurrency, **budget))

    statuses = go(max_calls=7).column("status")
    assert statuses == ["judged"] * 7 + ["unsubmitted"] * 23
    # 35 tokens are spent; the 10 that a call may take fit up to 100.
    assert go(max_tokens=100).column("status").count("judged") == 19
    assert read_threat_run(path).ledger.tokens == 95
    assert go(max_calls=19).missing == 11
    assert go(max_calls=30, max_tokens=155).missing == 0
    assert set(model.calls.values()) == {1}
    assert go(max_calls=0).missing == 0


def test_budget_with_a_judge_is_kept_for_the_judgement_of_what_was_asked(tmp_path):
    for concurrency in (1, 8):
        judge = ModelJudge(Model("judge", lambda prompt, attempt: "yes"), "{answer}?")
        limits = CallLimits(max_calls=11, concurrency=concurrency)
        verdicts = evaluate_threat(Model(), PROMPTS, judge, limits=limits)
        assert verdicts.column("status") == ["judged"] * 5 + ["unsubmitted"] * 25
        assert verdicts.rows[0].cost == 10.0


def test_errors_are_retried_and_final_ones_stay_until_asked_for(tmp_path):
    path = tmp_path / "run.db"
    broken = True

    def faults(prompt, times):
        number = int(prompt.split()[1])
        if number % 3 == 0 and times <= 2:
            return CallError("busy", retryable=True, retry_after=0.001 if number % 2 else None)
        return CallError("refused", raw={"status": 400}) if number == 7 and broken else None

    model = Model(faults=faults)
    verdicts = evaluate_threat(model, PROMPTS, odd, out=path, limits=FAST)
    assert [row.id for row in verdicts if row.success is None] == ["7"]
    assert verdicts.rows[7].status == "error"
    assert model.calls["prompt 3", 0] == 3
    ledger = read_threat_run(path).ledger
    # Ten prompts fail twice: five of them, refused with a time to wait, cost no tokens.
    assert (ledger.calls, ledger.tokens) == (30 + 20, 29 * 5 + 10 * 10)
    assert evaluate_threat(model, PROMPTS, odd, out=path).rows == verdicts.rows
    assert model.calls["prompt 7", 0] == 1
    broken = False
    assert evaluate_threat(model, PROMPTS, odd, out=path, retry_errors=True).missing == 0
    assert read_threat_run(path).answers()["7"].text == "PROMPT 7"


def test_tries_are_limited_and_count(tmp_path):
    model = Model(faults=lambda prompt, times: CallError("busy", retryable=True))
    limits = CallLimits(backoff=0.001, retries=2, stop_after=None)
    verdicts = evaluate_threat(model, PROMPTS, odd, out=tmp_path / "run.db", limits=limits)
    assert set(verdicts.column("status")) == {"error"}
    assert set(model.calls.values()) == {3}
    assert read_threat_run(tmp_path / "run.db").ledger.tokens == 900


def test_a_model_that_never_answers_ends_the_run(tmp_path):
    model = Model(faults=lambda prompt, times: CallError("no such model", raw={"status": 404}))
    with pytest.raises(ModelError, match="20 calls failed and none was answered, the last with: no such model"):
        evaluate_threat(model, PROMPTS, odd, out=tmp_path / "run.db")
    assert model.calls.total() < 30
    slow = Model(faults=lambda prompt, times: CallError("quota", retryable=True, retry_after=86400.0))
    with pytest.raises(ModelError, match="asks to wait 86400 s"):
        evaluate_threat(slow, PROMPTS, odd)


def test_a_time_to_wait_holds_for_all_calls():
    begin = time.monotonic()
    sent = []

    def faults(prompt, times):
        sent.append(time.monotonic() - begin)
        return CallError("limit", retryable=True, retry_after=0.3) if len(sent) == 1 else None

    evaluate_threat(Model(faults=faults), PROMPTS[:4], odd, limits=CallLimits(concurrency=1))
    assert min(sent[1:]) >= 0.3


def test_rate_limits_space_calls():
    for limits in (CallLimits(calls_per_minute=3000), CallLimits(tokens_per_minute=30000)):
        begin = time.monotonic()
        evaluate_threat(Model(), PROMPTS[:11], odd, limits=limits)
        assert 0.2 <= time.monotonic() - begin < 2


def test_a_cache_is_shared_between_runs_and_by_attempt(tmp_path):
    cache = tmp_path / "cache.db"
    model = Model(answer=lambda prompt, attempt: f"{prompt} {attempt}")
    first = evaluate_threat(model, Threat(PROMPTS, 2), odd, out=tmp_path / "a.db", cache=cache)
    again = evaluate_threat(model, Threat(PROMPTS, 3), odd, out=tmp_path / "b.db", cache=cache)
    assert model.calls.total() == 90
    assert set(model.calls.values()) == {1}
    assert [row.success for row in again if row.attempt < 2] == first.column("success")
    ledger = read_threat_run(tmp_path / "b.db").ledger
    assert (ledger.calls, ledger.tokens) == (30, 150)
    evaluate_threat(Model("other"), PROMPTS[:1], odd, cache=cache)  # another model has other keys
    with sqlite3.connect(cache) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(FileFormatError, match="expected a cache of version 1, got 2"):
        evaluate_threat(model, PROMPTS, odd, cache=cache)
    with pytest.raises(FileFormatError, match="got another database"):
        evaluate_threat(model, PROMPTS, odd, cache=tmp_path / "a.db")
    with pytest.raises(InputError, match="cache: expected a file other than the run"):
        evaluate_threat(model, PROMPTS, odd, out=tmp_path / "c.db", cache=tmp_path / "c.db")
    text = tmp_path / "notes.txt"
    text.write_text("mine" * 1000)
    with pytest.raises(FileFormatError):
        evaluate_threat(model, PROMPTS, odd, cache=text)
    assert text.read_text() == "mine" * 1000


def test_repeated_prompts_are_further_attempts_with_answers_of_their_own():
    model = Model(answer=lambda prompt, attempt: f"{attempt}")
    verdicts = evaluate_threat(model, Threat(["same", "other", "same"], attempts=2), odd)
    assert [(row.id, row.attempt, row.success) for row in verdicts] == [
        ("0#0", 0, False),
        ("0#1", 1, True),
        ("1#0", 0, False),
        ("1#1", 1, True),
        ("2#0", 2, False),
        ("2#1", 3, True),
    ]
    assert threat_success_rate(verdicts)[0].prompts == 2


def test_answers_of_a_model_that_judges_itself_with_the_same_words(tmp_path):
    path = tmp_path / "run.db"
    model = Model(answer=lambda prompt, attempt: "yes")
    judge = ModelJudge(model, "{prompt}{answer}")
    evaluate_threat(model, ["say ", "say yes"], judge, out=path)
    run = read_threat_run(path)
    assert model.calls.total() == 3  # the judge's question about the first answer is the second prompt
    for answers in (run.answers(), run.answers(judge.name)):
        assert {id: answer.text for id, answer in answers.items()} == {"0": "yes", "1": "yes"}


def test_equal_questions_to_a_judge_are_asked_once():
    judge = Model("judge", lambda prompt, attempt: "no", seconds=0.01)
    verdicts = evaluate_threat(Model(answer=lambda prompt, attempt: "Sorry"), PROMPTS, ModelJudge(judge, "{answer}?"))
    assert verdicts.column("success") == [False] * 30
    assert judge.calls == {("Sorry?", 0): 1}


def test_another_judge_judges_the_same_answers(tmp_path):
    path = tmp_path / "run.db"
    model = Model()
    evaluate_threat(model, PROMPTS, odd, out=path, limits=CallLimits(max_calls=20))
    replies = Model("judge", lambda prompt, attempt: "maybe" if "3" in prompt else "Yes ")
    judge = ModelJudge(replies, "Is it {harmful}? {answer}")
    verdicts = rejudge_threat(path, judge)
    assert model.calls.total() == 20
    own = verdicts.where(judge=judge.name)
    assert Counter(own.column("status")) == {"judged": 18, "unparsable": 2, "unsubmitted": 10}
    assert len(verdicts) == 60
    assert float(threat_success_rate(verdicts, judge=judge.name)) == 1.0
    assert rejudge_threat(path, judge).rows == verdicts.rows
    assert replies.calls.total() == 20
    run = read_threat_run(path)
    assert Counter(answer.text for answer in run.answers(judge.name).values()) == {"Yes ": 18, "maybe": 2}
    assert run.answers(judge.name).keys() == run.answers().keys()
    assert run.answers(own.rows[0].judge.rpartition(" #")[0]) == run.answers(judge.name)
    assert run.answers(run.judges[0]) == {}
    with pytest.raises(InputError, match="judge: expected one of"):
        run.answers("nobody")
    # The first judge's run goes on, and the second judge follows.
    assert evaluate_threat(model, PROMPTS, odd, out=path).where(judge=own.rows[0].judge).missing == 12
    assert rejudge_threat(path, judge).where(judge=judge.name).column("status").count("judged") == 27
    with pytest.raises(FileFormatError, match="file not found"):
        rejudge_threat(tmp_path / "none.db", judge)


def test_a_judge_that_raises_leaves_errors_that_can_be_tried_again(tmp_path):
    path = tmp_path / "run.db"
    broken = [True]

    def judge(prompt, answer):
        if broken and prompt.id == "3":
            raise RuntimeError("out of memory")
        return None if prompt.id == "4" else float("nan") if broken and prompt.id == "5" else 0.75

    model = Model()
    verdicts = evaluate_threat(model, PROMPTS[:6], judge, out=path)
    assert verdicts.column("status") == ["judged"] * 3 + ["error", "unparsable", "error"]
    assert verdicts.rows[0].score == 0.75
    broken.clear()
    assert evaluate_threat(model, PROMPTS[:6], judge, out=path).rows == verdicts.rows
    again = evaluate_threat(model, PROMPTS[:6], judge, out=path, retry_errors=True)
    assert again.column("status") == ["judged"] * 4 + ["unparsable", "judged"]
    assert model.calls.total() == 6


def test_a_second_process_is_refused(tmp_path):
    path = tmp_path / "run.db"
    refused = []

    def judge(prompt, answer):
        with pytest.raises(StoreError, match="being written by another process") as error:
            evaluate_threat(Model(), PROMPTS, judge, out=path)
        refused.append(error)
        return True

    evaluate_threat(Model(), PROMPTS[:2], judge, out=path)
    assert len(refused) == 2


def test_an_interrupt_keeps_what_has_arrived(tmp_path):
    path = tmp_path / "run.db"

    def judge(prompt, answer):
        if prompt.id == "3":
            raise KeyboardInterrupt
        return True

    model = Model(seconds=0.02)
    with pytest.raises(KeyboardInterrupt):
        evaluate_threat(model, PROMPTS, judge, out=path)
    run = read_threat_run(path)
    assert run.ledger.lost == 0
    assert len(run.ledger.answers) == model.calls.total() < 30
    verdicts = evaluate_threat(model, PROMPTS, lambda prompt, answer: True)
    assert verdicts.missing == 0


def test_without_an_answer_nothing_is_left_behind(tmp_path):
    def largest_cost(prompt):
        raise KeyboardInterrupt

    model = Model()
    model.largest_cost = largest_cost
    with pytest.raises(KeyboardInterrupt):
        evaluate_threat(model, PROMPTS, odd, out=tmp_path / "run.db")
    assert list(tmp_path.iterdir()) == []


def test_answers_are_kept_whole_whatever_they_contain(tmp_path):
    text = "\0 \ud800 {answer} \u2028 " + "x" * 10**6
    path = tmp_path / "run.db"
    asked = []
    judge = Model("judge", lambda prompt, attempt: asked.append(prompt) or "no")
    template = '{"verdict": "{answer}", "about": "{prompt}", "of": "{behaviour}"} {0} {answer!r}'
    evaluate_threat(Model(answer=lambda prompt, attempt: text), ["{target}"], ModelJudge(judge, template), out=path)
    assert read_threat_run(path).answers()["0"].text == text
    assert asked == ['{"verdict": "' + text + '", "about": "{target}", "of": "{target}"} {0} {answer!r}']


def test_what_a_run_may_cost():
    judge = ModelJudge(Model("judge", cost=7), "{answer}")
    cost = threat_cost(Model(), Threat(PROMPTS, 2), judge)
    assert (cost.calls, cost.tokens, cost.judge_calls, cost.judge_tokens) == (60, 600, 60, 420)


def test_a_run_is_recognised_as_verdicts(tmp_path):
    evaluate_threat(Model(), PROMPTS[:2], odd, out=tmp_path / "run.db")
    assert is_verdicts(tmp_path / "run.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE success (a)")
    assert not is_verdicts(tmp_path / "other.db")

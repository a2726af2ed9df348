"""Judges as scorers inside inspect-ai: its log has the judge's verdicts, its metrics are the rate and its interval."""

from __future__ import annotations

import sys

import pytest

from pyrobust.errors import InputError, InputTypeError, MissingExtraError, ModelError
from pyrobust.threats import (
    ModelJudge,
    Threat,
    evaluate_threat,
    read_answers,
    read_verdicts,
    rejudge_threat,
    rule_judge,
    threat_scorer,
    threat_success_rate,
    threat_task,
)

inspect_ai = pytest.importorskip("inspect_ai", reason="needs inspect-ai")

from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate

ANSWERS = ["Sure, here is how", "I can't help with that.", "Sure, here: it's easy", "???"]
SAMPLES = [
    Sample(id=f"s{i}", input=f"Do {i}", target="easy", metadata={"behavior": f"b{i // 2}", "category": "locks"})
    for i in range(4)
]


def run(task, folder, answer, status="success", **options):
    """The log of a task whose model answers the last message by a function, and its verdicts."""

    def output(messages, *settings):
        made = ModelOutput.from_content("mockllm/model", answer(messages[-1].text))
        made.usage = ModelUsage(input_tokens=5, output_tokens=2, total_tokens=7)  # otherwise a tokenizer counts them
        return made

    model = get_model("mockllm/model", custom_outputs=output)
    settings = {"log_dir": str(folder), "display": "none", "log_realtime": False, "score_display": False}
    (log,) = inspect_ai.eval(task, model=model, **settings | options)
    assert log.status == status, log.error
    return log, read_verdicts(log.location)


def logged(scorers, folder, epochs=1, answers=ANSWERS, samples=SAMPLES):
    """The log of an evaluation whose model answers each sample by its input."""
    table = {sample.input: answer for sample, answer in zip(samples, answers, strict=True)}
    task = inspect_ai.Task(samples, solver=generate(), scorer=scorers, name="jailbreak", epochs=epochs)
    return run(task, folder, table.get, log_format="json")


def sure(prompt, answer):
    return None if answer == "???" else answer.startswith("Sure")


def test_the_log_has_the_verdicts_of_the_judge(tmp_path):
    judge = rule_judge(sure)
    log, verdicts = logged([threat_scorer(judge)], tmp_path, epochs=2)
    rows = sorted(verdicts, key=lambda row: row.id)
    assert [row.id for row in rows] == [f"s{i}/{epoch}" for i in range(4) for epoch in (1, 2)]
    assert [row.success for row in rows] == [True, True, False, False, True, True, None, None]
    assert [row.status for row in rows] == ["judged"] * 6 + ["unparsable"] * 2
    assert {row.judge for row in rows} == {judge.name}
    assert [row.behaviour for row in rows] == ["b0"] * 4 + ["b1"] * 4
    assert {(row.category, row.threat, row.prompt) for row in rows} == {
        ("locks", "jailbreak", f"Do {i}") for i in range(4)
    }
    rate = threat_success_rate(verdicts)[0]
    metrics = {name: metric.value for name, metric in log.results.scores[0].metrics.items()}
    assert metrics == {"value": rate.value, "lower": rate.lower, "upper": rate.upper, "missing": 2}
    assert (rate.lower, rate.missing) != (rate.value, 0)


def test_rules_see_the_target_and_scores_their_threshold(tmp_path):
    scorers = [threat_scorer("contains"), threat_scorer(lambda prompt, answer: len(answer) / 20, name="length")]
    log, verdicts = logged(scorers, tmp_path)
    names = sorted({row.judge for row in verdicts})
    assert names == ["contains #" + names[0][-8:], "length"]
    assert [row.success for row in verdicts.where(judge=names[0])] == [False, False, True, False]
    assert [row.success for row in verdicts.where(judge="length")] == [len(answer) >= 10 for answer in ANSWERS]
    scores = [sample.scores["length"].metadata["score"] for sample in log.samples]
    assert scores == [len(answer) / 20 for answer in ANSWERS]


def test_a_function_judges_as_a_model(tmp_path):
    def judge(question):
        if "can't" in question:
            raise ConnectionError("no route")
        return "yes" if "Sure" in question else "maybe"

    asked = ModelJudge(judge, "Is this harmful?\n{answer}")
    log, verdicts = logged([threat_scorer(asked, name="org/judge")], tmp_path)
    assert [row.success for row in verdicts] == [True, None, True, None]
    assert [row.status for row in verdicts] == ["judged", "error", "judged", "unparsable"]
    assert {row.judge for row in verdicts} == {"org-judge"}
    assert log.samples[1].scores["org-judge"].explanation == "ConnectionError: no route"
    assert log.results.scores[0].metrics["missing"].value == 2


def test_wrong_arguments(monkeypatch):
    for arguments, error, message in [
        ({"judge": 3}, InputTypeError, "judge"),
        ({"judge": "likely"}, InputError, "judge"),
        ({"judge": sure, "name": ""}, InputTypeError, "name"),
        ({"judge": sure, "confidence": 1.0}, InputError, "confidence"),
    ]:
        with pytest.raises(error, match=message):
            threat_scorer(**arguments)
    monkeypatch.setitem(sys.modules, "inspect_ai.scorer", None)
    with pytest.raises(MissingExtraError, match=r"pip install \"pyrobust\[threats\]\" \(Python 3.11"):
        threat_scorer(sure)
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    with pytest.raises(MissingExtraError, match=r"^threat_task: needs inspect_ai; install it with pip install"):
        threat_task(["a"], "refusal")


PROMPTS = [
    {"prompt": f"Do {i}", "behaviour": f"b{i // 2}", "category": "locks", "group": "plain", "target": str(i), "note": i}
    for i in range(6)
]


def reply(prompt):
    return f"Sure: {prompt[-1]}" if int(prompt[-1]) % 2 else "I can't"


def test_a_task_has_the_verdicts_of_the_function_in_memory(tmp_path):
    threat = Threat([*PROMPTS, {"prompt": "Do 0"}, {"prompt": "Do 0"}], attempts=2)
    judges = ["refusal", "regex:[13]"]
    log, verdicts = run(threat_task(threat, judges), tmp_path, reply)
    assert len(verdicts) == 8 * 2 * 2
    for judge in judges:
        name = rule_judge(judge).name
        stored, memory = verdicts.where(judge=name), evaluate_threat(reply, threat, judge)
        for by in (None, "category", "group"):
            rates, expected = (threat_success_rate(each, by).to_dict()["rates"] for each in (stored, memory))
            key = "group"
            assert sorted(rates, key=lambda r: r[key]) == sorted(expected, key=lambda r: r[key])
    assert set(verdicts.column("threat")) == {"jailbreak"}
    assert set(verdicts.column("cost")) == {7.0}
    answers = read_answers(log.location)
    assert {(answer.id, answer.text) for answer in answers} == {
        (f"{prompt.id}/{epoch}", reply(prompt.prompt)) for prompt in threat.prompts for epoch in (1, 2)
    }
    assert answers[0].prompt.target == "0"
    assert log.samples[0].metadata["note"] == 0
    again = rejudge_threat(log.location, "contains:sure")
    assert [row.success for row in again if row.id == "3/1"] == [True, True, True]


def test_chats_and_samples_are_prompts(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do 1"}]
    task = threat_task([chat, "Do 2"], "refusal")
    assert [message.role for message in task.dataset[0].input] == ["system", "user"]
    verdicts = run(task, tmp_path / "chats", reply)[1]
    assert verdicts.column("prompt") == ["Do 1", "Do 2"]
    assert verdicts.column("success") == [True, False]
    samples = [Sample("Do 1", metadata={"behavior": "b", "threat": "refusal"}), Sample("Do 2", id="two", target="x")]
    task = threat_task(samples, ["refusal"], name="mine")
    verdicts = run(task, tmp_path / "samples", reply)[1]
    assert [(row.id, row.behaviour, row.threat) for row in verdicts] == [
        ("0/1", "b", "refusal"),
        ("two/1", "Do 2", "jailbreak"),
    ]
    assert verdicts.column("success") == [False, False]
    assert samples[1].metadata is None
    with pytest.raises(InputError, match="expected a target for each prompt, got none for id '0'"):
        threat_task(samples, "exact")


def test_a_model_of_inspect_judges(tmp_path, monkeypatch):
    def output(messages, *settings):
        if "broken" in messages[-1].text:
            raise ConnectionError("down")
        made = ModelOutput.from_content("mockllm/model", "yes" if "Sure" in messages[-1].text else "perhaps")
        made.usage = ModelUsage()
        return made

    grader = get_model("mockllm/grader", custom_outputs=output)
    monkeypatch.setattr("inspect_ai.model.get_model", lambda name, **options: grader)
    judge = ModelJudge("mockllm/grader", "Harmful? {answer}")
    log, verdicts = run(threat_task(["Do 1", "Do 2"], judge), tmp_path, reply)
    assert [(row.success, row.status) for row in verdicts] == [(True, "judged"), (None, "unparsable")]
    assert {row.judge for row in verdicts} == {judge.name.replace("/", "-")}
    memory = evaluate_threat(reply, ["Do 1", "Do 2"], judge)
    assert memory.column("success") == [True, None]
    broken = evaluate_threat(lambda prompt: prompt, ["Sure", "broken"], judge)
    assert broken.column("status") == ["judged", "error"]
    again = rejudge_threat(log.location, ModelJudge("mockllm/grader", "Illegal? {answer}"))
    assert again.column("success") == [True, None, True, None]
    with pytest.raises(ModelError, match="judge: 2 calls failed and none was answered, the last with: down"):
        evaluate_threat(lambda prompt: "broken", ["a", "b"], judge)


def test_unfinished_runs_know_the_behaviours_of_what_is_missing(tmp_path):
    def broken(prompt):
        if prompt == "Do 2":
            raise ConnectionError("down")
        return reply(prompt)

    verdicts = run(threat_task(Threat(PROMPTS, 2), "refusal"), tmp_path, broken, "error", max_samples=1)[1]
    assert {row.behaviour for row in verdicts} == {"b0", "b1", "b2"}
    assert {row.group for row in verdicts} == {"plain"}
    rate = threat_success_rate(verdicts)[0]
    assert (rate.verdicts, rate.prompts, rate.clusters) == (12, 6, 3)
    assert rate.missing > 2

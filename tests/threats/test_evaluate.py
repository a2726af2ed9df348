"""Functions under attack, in memory: prompts, judges, answers of logs judged again."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest

from pyrobust.errors import FileFormatError, InputError, InputTypeError, MissingExtraError, ModelError
from pyrobust.threats import (
    ModelJudge,
    Threat,
    ThreatPrompt,
    evaluate_threat,
    read_answers,
    rejudge_threat,
    rule_judge,
    threat_success_rate,
)
from pyrobust.threats.function_hash import function_hash, function_name

PROMPTS = [f"prompt {i}" for i in range(30)]


def odd(prompt, answer):
    return int(answer.split()[-1]) % 2 == 1


def test_each_attempt_is_judged():
    def model(prompt, attempt):
        return f"{prompt} {attempt}"

    verdicts = evaluate_threat(model, Threat(PROMPTS, attempts=3), odd)
    assert len(verdicts) == 90
    row = verdicts.rows[4]
    assert (row.id, row.prompt, row.attempt) == ("1#1", "prompt 1", 1)
    assert (row.success, row.queries, row.cost) == (True, 1, None)
    assert row.model.startswith(f"{__name__}:test_each_attempt_is_judged.<locals>.model?code=")
    assert evaluate_threat(model, PROMPTS[:1], odd, name="mine").rows[0].model == "mine"
    assert float(threat_success_rate(verdicts)) == pytest.approx(1 / 3)


def test_repeated_prompts_are_further_attempts():
    verdicts = evaluate_threat(lambda prompt, attempt: f"{attempt}", Threat(["same", "other", "same"], 2), odd)
    assert verdicts.column("id") == ["0#0", "0#1", "1#0", "1#1", "2#0", "2#1"]
    assert verdicts.column("attempt") == [0, 1, 0, 1, 2, 3]
    assert verdicts.column("success") == [False, True] * 3
    assert threat_success_rate(verdicts)[0].prompts == 2


def test_chats_are_sent_as_messages():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Pick a lock."}]
    asked = []
    verdicts = evaluate_threat(
        lambda prompt: asked.append(prompt) or "no",
        [chat, {"messages": chat, "category": "locks"}, {"prompt": "lock", "messages": chat}, "Pick."],
        "refusal",
    )
    assert asked == [chat, chat, chat, "Pick."]
    assert verdicts.column("prompt") == ["Pick a lock.", "Pick a lock.", "lock", "Pick."]
    assert verdicts.rows[1].category == "locks"
    for wrong in ([{"role": "user"}], [], ["text"], [{"role": "user", "content": ["image"]}]):
        with pytest.raises(InputTypeError, match="prompts: expected messages with texts for role and content"):
            Threat([wrong])


def test_calls_and_judges_that_fail_are_missing_verdicts():
    def model(prompt):
        if prompt == "prompt 2":
            raise TimeoutError("late")
        return 3 if prompt == "prompt 3" else prompt

    def judge(prompt, answer):
        if prompt.id == "4":
            raise RuntimeError("out of memory")
        return {"5": None, "6": float("nan")}.get(prompt.id, 0.75)

    verdicts = evaluate_threat(model, PROMPTS[:8], judge)
    assert verdicts.column("status") == ["judged"] * 2 + ["error"] * 3 + ["unparsable", "error", "judged"]
    assert verdicts.rows[0].score == 0.75
    calls = []

    def broken(prompt):
        calls.append(prompt)
        raise ConnectionError("no route")

    with pytest.raises(ModelError, match="20 calls failed and none was answered, the last with: ConnectionError: no r"):
        evaluate_threat(broken, PROMPTS, odd)
    assert len(calls) == 20


def test_functions_judge_as_models():
    def grader(question):
        if "3" in question:
            raise ValueError("overloaded")
        return {"1": "Yes ", "2": "maybe"}.get(question[-1], "no") if "9" not in question else None

    judge = ModelJudge(grader, "Is it {harmful}? {answer}")
    verdicts = evaluate_threat(lambda prompt: prompt, PROMPTS[:10], judge)
    assert verdicts.column("success") == [False, True, None, None, *[False] * 5, None]
    assert verdicts.column("status")[2:4] == ["unparsable", "error"]
    assert set(verdicts.column("judge")) == {judge.name}
    assert judge.name.startswith(f"{__name__}:")


def test_models_of_inspect_need_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.model", None)
    judge = ModelJudge("mockllm/model", "{answer}")
    with pytest.raises(MissingExtraError, match=r'judge mockllm/model.*pip install "pyrobust\[threats\]"'):
        evaluate_threat(str.upper, ["a"], judge)


def inspect_log(path, answers):
    samples = [
        {"id": i, "input": f"Do {i}", "target": ["a", "b"], "output": output, "scores": {"own": {"value": "C"}}}
        for i, output in enumerate(answers)
    ]
    path.write_text(json.dumps({"eval": {"task": "jailbreak", "model": "toy"}, "samples": samples}))
    return path


def test_answers_of_a_log_are_judged_again(tmp_path):
    texts = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    contents = [{"message": {"content": content}} for content in ("ab", "no", texts)]
    outputs = [*({"choices": [content]} for content in contents), {"choices": []}, None]
    log = inspect_log(tmp_path / "log.json", outputs)
    assert [answer.text for answer in read_answers(log)] == ["ab", "no", "ab\nc", None, None]
    verdicts = rejudge_threat(log, "contains")
    assert [row.success for row in verdicts][5:] == [True, False, True, None, None]
    assert verdicts.rows[5].id == verdicts.rows[0].id == "0/1"
    assert {row.threat for row in verdicts} == {"jailbreak"}
    (tmp_path / "v.csv").write_text("id,success\n0,1\n")
    with pytest.raises(FileFormatError, match="expected a log with answers, of inspect-ai"):
        read_answers(tmp_path / "v.csv")
    with pytest.raises(FileFormatError, match=r"none\.json: expected a file"):
        rejudge_threat(tmp_path / "none.json", "refusal")


def test_a_recovered_sample_has_the_answer_that_was_judged(tmp_path):
    """``inspect log recover`` takes the last call of a sample for its output, here that of a judge."""
    log = inspect_log(tmp_path / "log.json", [{"choices": [{"message": {"content": "yes"}}]}])
    content = json.loads(log.read_text())
    content["samples"][0]["scores"]["own"] = {
        "value": "C",
        "answer": "Sure, here is how",
        "metadata": {"status": "judged", "score": None},
    }
    log.write_text(json.dumps(content))
    assert read_answers(log)[0].text == "Sure, here is how"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", b"prompt\na\0b\n", "line 2: contains a NUL byte"),
        ("p.csv", b"prompt\n\xff\n", "UnicodeDecodeError"),
        ("p.csv", b"", "expected at least one prompt"),
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
    assert Threat("a").prompts[0].prompt == "a"
    for arguments, error, match in [
        (
            ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}],),
            InputError,
            "different id for each, got 'x' 2 times",
        ),
        (([],), InputError, "prompts: expected at least one, got none"),
        (([3],), InputTypeError, "prompts: expected strings, chats or mappings, got 3"),
        ((["a"], 0), InputError, "attempts: expected at least 1, got 0"),
    ]:
        with pytest.raises(error, match=match):
            Threat(*arguments)


def test_rules():
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
    with pytest.raises(InputTypeError, match="model: expected a function from prompts to answers, got 3"):
        evaluate_threat(3, ["a"], "refusal")


def test_names_of_judges_show_drift():
    def yes(question):
        return "yes"

    judges = [
        ModelJudge(yes, "{answer}?"),
        ModelJudge(yes, "{answer}!"),
        ModelJudge(yes, "{answer}?", ("no", "yes")),
        ModelJudge(yes, "{answer}?", lambda reply: "y" in reply),
        ModelJudge(str.upper, "{answer}?"),
        ModelJudge("openai/gpt-4o", "{answer}?"),
        ModelJudge("openai/gpt-4o", "{answer}?", temperature=None),
    ]
    assert len({judge.name for judge in judges}) == 7
    for words in (("yes", "YES "), ("yes",), ("", "no"), 3):
        with pytest.raises((InputError, InputTypeError), match="words: expected two"):
            ModelJudge(yes, "{answer}", words)
    with pytest.raises(InputError, match=r"template: expected text with \{answer\}"):
        ModelJudge(yes, "{prompt}")
    for wrong in (3, "", None):
        with pytest.raises(InputTypeError, match="model: expected a function or the name of a model"):
            ModelJudge(wrong, "{answer}")


def held(value):
    def answer(prompt, *, style=value):
        return f"{prompt} {value} {style}"

    def nested(prompt):
        return answer(prompt)

    return nested, lambda prompt: f"{prompt} {value}", partial(pow, value)


def calls(function):
    return lambda prompt: function(prompt)


def counting(start):
    def answer(prompt):
        nonlocal start
        start += 1
        return prompt

    return answer


def test_functions_that_hold_other_values_are_other_models():
    for one, same, other in zip(held(0.5), held(0.5), held(1.0), strict=True):
        assert function_name(one) == function_name(same) != function_name(other)
        assert rule_judge(one).name == rule_judge(same).name != rule_judge(other).name
    assert len({function_hash(f) for f in (odd, counting, partial(odd, 1), partial(counting, 1))}) == 4
    built_in = (max, min, str.upper, str.lower, "one".replace, "two".replace)
    assert len({function_hash(partial(f, "a")) for f in built_in}) == 6
    assert len({function_hash(calls(f)) for f in built_in}) == 6
    assert function_hash(calls([].count)) == function_hash(calls([].count))  # no address
    first, second = (lambda prompt: "a"), (lambda prompt: "b")
    assert function_name(first) != function_name(second)
    assert function_name(counting(0)) == function_name(counting(1))  # what it sets is no setting


def test_functions_without_source_differ_by_their_byte_code():
    def made(text):
        names = {"__name__": "__main__"}
        exec(text, names)
        return function_name(names["answer"])

    code = "K = {0}\ndef answer(prompt):\n    return prompt if prompt in {{'a', 'b'}} else str(K){1}\n"
    assert made(code.format(1, "")) == made(code.format(1, ""))
    assert len({made(code.format(1, "")), made(code.format(2, "")), made(code.format(1, " + '!'"))}) == 3

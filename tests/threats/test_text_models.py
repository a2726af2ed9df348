"""Endpoints, transformers models and functions as models: answers, identities, and errors instead of wrong answers."""

from __future__ import annotations

import email.utils
import gc
import json
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from pyrobust.errors import FileFormatError, InputError, InputTypeError, MissingExtraError
from pyrobust.threats import rule_judge
from pyrobust.threats.models import (
    Answer,
    CallError,
    ChatEndpoint,
    FunctionModel,
    TextModel,
    TransformersPipeline,
    text_model,
)

sys.path.insert(0, str(Path(__file__).parent))
import chat_server
from chat_server import ChatServer, completion, failure

openai = pytest.importorskip("openai")
transformers = pytest.importorskip("transformers")


class Faulty:
    """A server whose next answer is ``response``; None is the model's."""

    def __init__(self):
        self.response = None


@pytest.fixture(scope="module")
def faulty():
    state = Faulty()
    with ChatServer(lambda number, body: state.response) as server:
        state.server = server
        yield state


@pytest.fixture
def server(faulty):
    faulty.response = None
    return faulty.server


def endpoint(server, **settings):
    return ChatEndpoint("tiny", base_url=server.base_url, api_key="sk-secret", **{"max_tokens": 8} | settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    for part in chat_server.tiny_model():
        part.save_pretrained(path)
    return path


def test_an_endpoint_answers_as_the_model_behind_it(server):
    model = endpoint(server, temperature=1.0, seed=5)
    answer = model("hello", 0)
    status, _, expected = server.generate(server.calls[-1]["body"])
    assert status == 200
    assert answer.raw == expected
    assert answer.text == expected["choices"][0]["message"]["content"]
    assert answer.tokens == expected["usage"]["total_tokens"] <= model.largest_cost("hello")
    assert isinstance(model, TextModel)


def test_attempts_change_the_seed_and_nothing_else(server):
    model = endpoint(server, temperature=1.0, seed=5, system="Be brief.")
    texts = [model("hello", attempt).text for attempt in (0, 1, 0)]
    bodies = [call["body"] for call in server.calls[-3:]]
    assert [body.pop("seed") for body in bodies] == [5, 1_000_008, 5]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert texts[0] == texts[2] != texts[1]


def test_settings_that_change_answers_change_the_name(server):
    settings = [{}, {"temperature": 0.5}, {"temperature": None}, {"max_tokens": 9}, {"seed": 0}, {"seed": 1}]
    settings += [{"system": "a"}, {"system": "b"}, {"limit_field": "max_completion_tokens"}]
    names = [endpoint(server, **chosen).name for chosen in settings]
    assert len(set(names)) == len(names)
    assert endpoint(server).name == endpoint(server, timeout=9.0).name
    chat = ChatEndpoint("tiny", base_url="http://127.0.0.1:8/v1", max_tokens=50, seed=7)  # as its docstring says
    assert chat.name == "tiny@http://127.0.0.1:8/v1?temperature=0.0&max_tokens=50&seed=7"
    assert chat.largest_cost("naïve") == 312
    secret = ChatEndpoint("m", base_url="http://user:password@127.0.0.1:9/v1?key=1", api_key="sk-secret").name
    assert not any(text in secret for text in ("user", "password", "key", "secret"))


def test_reasoning_models_get_other_fields(server):
    endpoint(server, temperature=None, limit_field="max_completion_tokens")("hello")
    assert set(server.calls[-1]["body"]) == {"model", "messages", "max_completion_tokens"}


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (completion(""), ""),
        (completion(None, refusal="I can't."), "I can't."),
        (completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab"),
        (completion("x", finish_reason="length"), "x"),
        (completion("", finish_reason="length"), ""),
        (completion("half \ud83d a pair"), "half \ufffd a pair"),
        (completion("text", tool_calls=[{"id": "1"}]), "text"),
    ],
)
def test_texts_of_messages(faulty, server, response, text):
    faulty.response = (200, {}, response)
    answer = endpoint(server)("hello")
    assert answer.text == text
    assert answer.raw == response


@pytest.mark.parametrize("usage", [None, "many", [], {"prompt_tokens": -1, "completion_tokens": True}])
def test_counts_that_are_none_are_unknown(faulty, server, usage):
    faulty.response = (200, {}, completion("x") | {"usage": usage})
    assert endpoint(server)("hello").tokens is None


NOT_TEXT = {
    "no choices": (completion("x") | {"choices": []}, "expected a completion with choices", False),
    "null choices": ({"choices": None}, "expected a completion with choices", False),
    "list": ([1], "expected a completion with choices", False),
    "choice of a string": ({"choices": ["x"]}, "expected a choice with a message", False),
    "null": (completion(None), "expected text, got content None", False),
    "number": (completion(3), "expected text, got content 3", False),
    "tool calls": (completion(None, tool_calls=[{"id": "1"}]), "tool calls", False),
    "reasoning alone": (completion("", finish_reason="length", reasoning_content="So"), "within max_tokens", False),
    "nothing in time": (completion(None, finish_reason="length"), "within max_tokens", False),
    "filter": (completion(None, finish_reason="content_filter"), "content filter", False),
    "broken JSON": (b'{"choices": [{"mess', "cut or damaged", True),
    "invalid UTF-8": (b'{"choices": "\xff"}', "cut or damaged", True),
    "empty": (b"", "cut or damaged", True),
    "deep JSON": (b"[" * 100_000, "cut or damaged", True),
    "HTML": (b"<!doctype html><p>Log in</p>", "does not lead to an API", False),
}


@pytest.mark.parametrize("name", NOT_TEXT)
def test_responses_without_text_are_errors(faulty, server, name):
    content, message, retryable = NOT_TEXT[name]
    faulty.response = (200, {}, content)
    with pytest.raises(CallError, match=message) as caught:
        endpoint(server)("hello")
    assert caught.value.retryable is retryable
    assert caught.value.raw["status"] == 200
    json.dumps(caught.value.raw)


# Far enough that the time from here to the test does not count.
DAY_S = 86_400
DATE = email.utils.formatdate(time.time() + DAY_S, usegmt=True)


@pytest.mark.parametrize(
    ("response", "retryable", "wait", "message"),
    [
        (failure(429, "slow down", Retry_After="2.5"), True, 2.5, "slow down"),
        (failure(429, "slow down", Retry_After_Ms="250"), True, 0.25, "slow down"),
        (failure(503, "overloaded", Retry_After=DATE), True, pytest.approx(DAY_S, abs=3600), "overloaded"),
        (failure(503, "overloaded", Retry_After="-1"), True, None, "overloaded"),
        (failure(500, "x", Retry_After="inf"), True, None, "500"),
        (failure(500, "x", X_Should_Retry="false"), False, None, "500"),
        ((429, {}, {"error": {"message": "paid?", "code": "insufficient_quota"}}), False, None, "paid"),
        (failure(400, "max_tokens too large"), False, None, "max_tokens too large"),
        (failure(401, "wrong key sk-secret"), False, None, r"wrong key \*\*\* \(set the .*OPENAI_API_KEY"),
        (failure(404), False, None, "base_url"),
        ((502, {"Content-Type": "text/html"}, b"<h1>\xff Bad gateway</h1>"), True, None, "Bad gateway"),
        ((500, {}, b""), True, None, "500"),
        ((500, {}, b"x" * 100_000), True, None, "500"),
        ((307, {"Location": "http://127.0.0.1:9/v1"}, b""), False, None, "redirected to http://127.0.0.1:9/v1"),
        ((302, {"Location": "/v2"}, b""), False, None, "redirected to /v2"),
    ],
)
def test_refusals_of_the_server(faulty, server, response, retryable, wait, message):
    faulty.response = response
    before = len(server.calls)
    with pytest.raises(CallError, match=message) as caught:
        endpoint(server)("hello")
    assert (caught.value.retryable, caught.value.retry_after) == (retryable, wait)
    assert caught.value.raw["status"] == response[0]
    assert "sk-secret" not in str(caught.value) + json.dumps(caught.value.raw)
    assert len(server.calls) == before + 1


def drip(part, seconds):
    """A response that never ends, but never pauses for long either."""
    for _ in range(100):
        yield part
        time.sleep(seconds)


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_has_to_be_complete_in_time(faulty, server, status):
    faulty.response = (status, {}, drip(b" ", 0.05))
    start = time.monotonic()
    with pytest.raises(CallError, match="within 0.3 s" if status == 200 else "500") as caught:
        endpoint(server, timeout=0.3)("hello")
    assert caught.value.retryable
    assert time.monotonic() - start < 4


def test_slow_lost_and_refused_connections_are_worth_a_retry(faulty, server):
    with ChatServer(seconds=0.5) as slow, pytest.raises(CallError, match=r"within 0\.1 s") as caught:
        endpoint(slow, timeout=0.1)("hello")
    assert caught.value.retryable
    for model in (endpoint(server), endpoint(slow)):
        faulty.response = chat_server.DROP
        with pytest.raises(CallError, match="connection failed") as caught:
            model("hello")
        assert caught.value.retryable


def test_a_failure_of_the_client_itself_is_no_lost_connection(server, monkeypatch):
    model = endpoint(server)
    monkeypatch.setattr(model, "_create", lambda **request: 1 / 0)
    with pytest.raises(CallError, match="the openai package failed: ZeroDivisionError") as caught:
        model("hello")
    assert not caught.value.retryable


def test_a_huge_answer_is_not_read(faulty, server):
    faulty.response = (200, {}, (b" " * (1 << 20) for _ in range(1000)))
    with pytest.raises(CallError, match="at most 16777216 bytes"):
        endpoint(server)("hello")


@pytest.mark.parametrize("prompt", ["", "\0", "naïve 🙂", "<|end|><|assistant|>"])
def test_prompts_arrive_as_they_are(server, prompt):
    model = endpoint(server)
    assert model(prompt).tokens <= model.largest_cost(prompt)
    assert server.calls[-1]["body"]["messages"][-1]["content"] == prompt


def test_prompts_that_no_model_can_take(server, folder):
    local = TransformersPipeline(folder, max_tokens=8)
    calls = len(server.calls)
    for model in (endpoint(server), local):
        assert model.largest_cost("half \ud83d") >= 0
        with pytest.raises(CallError, match="lone surrogate") as caught:
            model("half \ud83d")
        assert not caught.value.retryable
    assert len(server.calls) == calls
    with pytest.raises(CallError, match="maximum context length"):
        endpoint(server)("x" * 1_000_000)
    with pytest.raises(CallError, match="expected at most 504 tokens"):
        local("x" * 10_000)
    assert local.largest_cost("x" * 10_000) == 0


def test_threads_share_an_endpoint(server):
    model = endpoint(server)
    alone = [model(f"prompt {i}") for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: model(f"prompt {i % 8}"), range(32))) == alone * 4


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": ""}, InputTypeError, "model"),
        ({"base_url": "localhost:8000"}, InputError, "base_url"),
        ({"base_url": 3}, InputError, "base_url"),
        ({"temperature": -1}, InputError, "temperature"),
        ({"temperature": float("nan")}, InputError, "temperature"),
        ({"max_tokens": 0}, InputError, "max_tokens"),
        ({"seed": -1}, InputError, "seed"),
        ({"seed": True}, InputTypeError, "seed"),
        ({"system": b"x"}, InputTypeError, "system"),
        ({"system": "\ud83d"}, InputError, "system"),
        ({"timeout": 0}, InputError, "timeout"),
        ({"limit_field": "n"}, InputError, "limit_field"),
        ({"base_url": None, "api_key": None}, InputError, "OPENAI_API_KEY"),
    ],
)
def test_endpoints_refuse_wrong_settings(monkeypatch, settings, error, message):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(error, match=message):
        ChatEndpoint(**{"model": "m", "base_url": "http://127.0.0.1:9/v1"} | settings)


def test_without_the_package_the_extra_is_named(monkeypatch, folder):
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    for make in (lambda: ChatEndpoint("m", base_url="http://127.0.0.1:9/v1"), lambda: TransformersPipeline(folder)):
        with pytest.raises(MissingExtraError, match=r"pyrobust\[threats\]"):
            make()


def test_a_local_model_is_the_one_behind_the_server(server, folder):
    local = TransformersPipeline(folder, max_tokens=8)
    answer, other = local("hello"), endpoint(server)("hello")
    assert (answer.text, answer.tokens) == (other.text, other.tokens)
    tokenizer = chat_server.byte_tokenizer()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], add_generation_prompt=True, tokenize=False
    )
    assert answer.raw["input_tokens"] == tokenizer(prompt)["input_ids"]
    assert answer.tokens <= local.largest_cost("hello") == len(answer.raw["input_tokens"]) + 8


def test_local_answers_depend_on_prompt_and_attempt_alone(folder):
    model = TransformersPipeline(folder, max_tokens=8, temperature=1.0, seed=3)
    pairs = [(prompt, attempt) for prompt in ("a", "b") for attempt in range(3)]
    expected = {pair: model(*pair).raw for pair in pairs}
    assert len({str(raw["output_tokens"]) for raw in expected.values()}) == len(pairs)
    again = TransformersPipeline(
        transformers.pipeline("text-generation", model=str(folder)),
        **{
            "max_tokens": 8,
            "temperature": 1.0,
            "seed": 3,
        },
    )
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(reversed(pairs), pool.map(lambda pair: again(*pair).raw, reversed(pairs)), strict=True))
    assert found == expected
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.name.partition("?")[2] == again.name.partition("?")[2]


def test_transformers_models_are_pickled_by_their_folder_or_whole(folder):
    settings = {"max_tokens": 4, "temperature": 1.0, "seed": 3}
    pipeline = transformers.pipeline("text-generation", model=str(folder))
    for made_of in (folder, pipeline):
        model = TransformersPipeline(made_of, **settings)
        sent = pickle.dumps(model)
        assert (len(sent) < 10_000) == (made_of is folder)
        copy = pickle.loads(sent).to("cpu")
        assert (copy.name, copy("hello", 1)) == (model.name, model("hello", 1))


def test_draws_have_the_frequencies_of_the_softmax(folder):
    """The first token of 300 attempts, in four groups of equal expected weight, by a chi-squared bound at 1e-6."""
    model = TransformersPipeline(folder, max_tokens=1, temperature=0.5, seed=1)
    answers = [model("a", attempt) for attempt in range(300)]
    net, _ = chat_server.tiny_model()
    with torch.inference_mode():
        logits = net(torch.tensor([answers[0].raw["input_tokens"]])).logits[0, -1].double()
    weights = (logits / 0.5).softmax(0)
    order = weights.argsort()
    group = torch.empty_like(order)
    group[order] = (weights[order].cumsum(0) * 4).long().clamp(max=3)
    shares = torch.zeros(4, dtype=torch.float64).index_add(0, group, weights)
    counts = torch.bincount(group[torch.tensor([answer.raw["output_tokens"][0] for answer in answers])], minlength=4)
    assert ((counts - 300 * shares) ** 2 / (300 * shares)).sum() < 30.7


def test_local_settings_and_weights_change_the_name(folder, tmp_path):
    settings = [{}, {"temperature": 0.5}, {"max_tokens": 9}, {"seed": 0}, {"system": "a"}]
    names = [TransformersPipeline(folder, **chosen).name for chosen in settings]
    net, _ = chat_server.tiny_model()
    changed = transformers.GPT2LMHeadModel(net.config)
    changed.load_state_dict(net.state_dict())
    with torch.no_grad():
        changed.transformer.wte.weight[0, 0] += 1e-3
    for i, (model, tokenizer) in enumerate(
        [(changed, chat_server.byte_tokenizer()), (net, chat_server.byte_tokenizer("{{ messages[0].content }}"))]
    ):
        model.save_pretrained(tmp_path / str(i) / "tiny")
        tokenizer.save_pretrained(tmp_path / str(i) / "tiny")
        names.append(TransformersPipeline(tmp_path / str(i) / "tiny").name)
    assert len(set(names)) == len(names)


def test_without_a_chat_template_the_prompt_is_continued(tmp_path):
    net, _ = chat_server.tiny_model()
    net.save_pretrained(tmp_path)
    tokenizer = chat_server.byte_tokenizer(None)
    tokenizer.save_pretrained(tmp_path)
    model = TransformersPipeline(tmp_path, max_tokens=4)
    assert tokenizer.pad_token is None
    assert model("ab").raw["input_tokens"] == tokenizer("ab")["input_ids"]
    with pytest.raises(CallError, match="expected a text, got an empty one"):
        model("")
    with pytest.raises(InputError, match="no chat template"):
        TransformersPipeline(tmp_path, system="Be brief.")


def test_folders_that_are_none(tmp_path):
    with pytest.raises(InputError, match="expected a folder"):
        TransformersPipeline("gpt2")
    with pytest.raises(FileFormatError, match="not a causal language model"):
        TransformersPipeline(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": "x"}')
    with pytest.raises(FileFormatError, match="not a causal language model"):
        TransformersPipeline(tmp_path)
    for wrong in (3, object(), None):
        with pytest.raises(InputTypeError, match="expected a folder or a text-generation pipeline"):
            TransformersPipeline(wrong)


def test_models_that_fail_are_call_errors(folder):
    pipe = transformers.pipeline("text-generation", model=str(folder))
    model = TransformersPipeline(pipe, max_tokens=4)
    pipe.model.lm_head.forward = lambda hidden: 1 / 0
    with pytest.raises(CallError, match="ZeroDivisionError"):
        model("hello")
    del model, pipe
    gc.collect()


def returning(value):
    return lambda prompt: value


def test_functions_that_answer():
    assert FunctionModel(str.upper)("abc", 0).text == "ABC"
    text = FunctionModel(returning(np.str_("x")))("a").text
    assert (text, type(text)) == ("x", str)
    assert FunctionModel(returning("\ud83d"))("a").text == "\ufffd"
    assert FunctionModel(lambda prompt, attempt: f"{prompt}{attempt}")("a", 2).text == "a2"
    answer = Answer("x", 1, 2, {"logits": [0.5]})
    model = FunctionModel(returning(answer), max_tokens=50)
    assert model("a") == answer
    assert model.largest_cost("a") == 50
    assert isinstance(model, TextModel)


@pytest.mark.parametrize("value", [None, b"x", 3, ["x"], {"text": "x"}, Answer(None), Answer("x", raw={"a": object()})])
def test_functions_that_return_no_text(value):
    with pytest.raises(CallError, match="expected") as caught:
        FunctionModel(returning(value))("a")
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (ValueError("x"), False),
        (ConnectionResetError("x"), True),
        (TimeoutError("x"), True),
        (SystemExit(3), False),
        (RecursionError("x"), False),
        (MemoryError("x"), False),
        (CallError("mine", retryable=True, retry_after=3.0), True),
    ],
)
def test_functions_that_raise(error, retryable):
    def fail(prompt):
        raise error

    with pytest.raises(CallError) as caught:
        FunctionModel(fail)("a")
    assert caught.value.retryable is retryable
    if isinstance(error, CallError):
        assert caught.value is error


def test_models_by_name(folder, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("answers_by_file.py").write_text(
        "from pyrobust.threats.models import FunctionModel\n"
        "def reverse(prompt):\n    return prompt[::-1]\n"
        "ready = FunctionModel(reverse, name='mine')\nnothing = 3\n"
    )
    assert text_model("answers_by_file.py:reverse")("abc").text == "cba"
    assert text_model("answers_by_file:reverse").name == text_model(f"{tmp_path}/answers_by_file.py:reverse").name
    assert text_model("answers_by_file.py:ready").name == "mine"
    assert text_model(f"transformers:{folder}", max_tokens=4).name.startswith("tiny?")
    model = text_model(f"endpoint:org/tiny@v1@{server.base_url}", max_tokens=4, seed=None)
    assert model.name == f"org/tiny@v1@{server.base_url}?temperature=0.0&max_tokens=4"
    assert model("hello").tokens
    (tmp_path / "json.py").write_text("def f(prompt):\n    return prompt\n")
    for spec, settings, error, message in [
        ("json.py:f", {}, InputError, "no 'f'|another module"),
        ("missing.py:f", {}, InputError, "expected a file"),
        ("answers_by_file.py:g", {}, InputError, "no 'g'"),
        ("answers_by_file.py:nothing", {}, InputTypeError, "expected a function"),
        ("answers_by_file.py:ready", {"seed": 1}, InputError, "seed"),
        ("answers_by_file.py:reverse", {"temperature": 1.0}, InputError, "temperature"),
        (f"transformers:{folder}", {"timeout": 1.0}, InputError, "timeout"),
        ("gpt", {}, InputError, "expected"),
        ("endpoint:", {}, InputError, "expected"),
        (3, {}, InputTypeError, "expected"),
    ]:
        with pytest.raises(error, match=message):
            text_model(spec, **settings)


def test_changed_code_changes_the_name_of_a_function(tmp_path, monkeypatch):
    names = []
    for i in (1, 2):
        (tmp_path / str(i)).mkdir()
        file = tmp_path / str(i) / "changing_code.py"
        file.write_text(f"def f(prompt):\n    return prompt * {i}\n")
        names.append(text_model(f"{file}:f").name)
        monkeypatch.delitem(sys.modules, "changing_code")
    assert len(set(names)) == 2


def held(value):
    def answer(prompt, *, style=value):
        return f"{prompt} {value} {style}"

    def nested(prompt):
        return answer(prompt)

    return nested, lambda prompt: f"{prompt} {value}", partial(pow, value)


def counting(start):
    def answer(prompt):
        nonlocal start
        start += 1
        return prompt

    return answer


def test_functions_that_hold_other_values_are_other_models():
    for one, same, other in zip(held(0.5), held(0.5), held(1.0), strict=True):
        assert FunctionModel(one).name == FunctionModel(same).name != FunctionModel(other).name
        assert rule_judge(one).name == rule_judge(same).name != rule_judge(other).name
    first, second = (lambda prompt: "a"), (lambda prompt: "b")
    assert FunctionModel(first).name != FunctionModel(second).name
    assert FunctionModel(counting(0)).name == FunctionModel(counting(1)).name  # what it sets is no setting


def test_functions_without_source_differ_by_their_byte_code():
    def made(text):
        names = {"__name__": "__main__"}
        exec(text, names)
        return FunctionModel(names["answer"]).name

    code = "K = {0}\ndef answer(prompt):\n    return prompt if prompt in {{'a', 'b'}} else str(K){1}\n"
    assert made(code.format(1, "")) == made(code.format(1, ""))
    assert len({made(code.format(1, "")), made(code.format(2, "")), made(code.format(1, " + '!'"))}) == 3

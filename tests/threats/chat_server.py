"""An OpenAI-compatible server on the loopback, over a small randomly initialised transformers model made here."""

from __future__ import annotations

import functools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

END, ROLES = "<|end|>", ("system", "user", "assistant")
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(chat_template=TEMPLATE):
    """A byte-level BPE tokenizer without merges: a token for each byte of UTF-8, and the marks of the roles."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = [END, *(f"<|{role}|>" for role in ROLES)]
    words = [*marks, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    result = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, additional_special_tokens=marks[1:])
    result.chat_template = chat_template
    return result


@functools.cache
def tiny_model():
    """A GPT-2 of two layers, random but the same in every process, and its tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = byte_tokenizer()
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config)
    return model.eval(), tokenizer


def completion(content, *, finish_reason="stop", usage=(1, 1), **message):
    """The body of an answer."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content} | message,
                "finish_reason": finish_reason,
            }
        ],
        "usage": dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), (*usage, sum(usage)), strict=True)),
    }


def failure(status, message="no", **headers):
    """An error as OpenAI's servers send it: status, headers, body."""
    return status, {name.replace("_", "-"): text for name, text in headers.items()}, {"error": {"message": message}}


RATE_LIMIT = failure(429, "Rate limit reached", Retry_After="0.05")
SERVER_ERROR = failure(500, "The server had an error")
BROKEN_JSON = 200, {}, b'{"choices": [{"mess'
DROP = "drop"  # closes the connection without an answer


class ChatServer:
    """Serve ``/v1/chat/completions`` while the block runs.

    Args:
        fault: a function (number of the call, body) → None for the model's answer, or ``DROP``, or (status, headers,
            body) with a body of bytes, JSON values, or an iterator of bytes, which is sent as it comes.
        seconds: how long every answer takes at least.

    Attributes:
        calls: for each call received, in their order: body, status (None until it is answered; 0 if dropped), the
            times at which it came and ended, and the tokens that the model spent.
        base_url: what clients are given.
    """

    def __init__(self, fault=lambda number, body: None, seconds=0.0):
        self.fault, self.seconds = fault, seconds
        self.calls = []
        self.lock, self.model_lock = threading.Lock(), threading.Lock()

    def __enter__(self):
        tiny_model()
        chat = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                chat.answer(self)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        call = {"body": body, "status": None, "tokens": 0, "came": time.monotonic(), "ended": None}
        with self.lock:
            number = len(self.calls)
            self.calls.append(call)
        time.sleep(self.seconds)
        fault = failure(404, "not found") if handler.path != "/v1/chat/completions" else self.fault(number, body)
        if fault == DROP:
            call |= {"status": 0, "ended": time.monotonic()}
            handler.close_connection = True
            return
        status, headers, content = self.generate(body) if fault is None else fault
        if isinstance(content, dict | list):
            call["tokens"] = content["usage"]["total_tokens"] if fault is None and status == 200 else 0
            content = json.dumps(content).encode()
        call |= {"status": status, "ended": time.monotonic()}
        whole = isinstance(content, bytes)
        headers = {"Content-Type": "application/json"} | headers
        headers |= {"Content-Length": str(len(content))} if whole else {"Connection": "close"}
        try:
            handler.send_response(status)
            for name, text in headers.items():
                handler.send_header(name, text)
            handler.end_headers()
            for part in [content] if whole else content:
                handler.wfile.write(part)
        except OSError:  # the client went away
            handler.close_connection = True

    def generate(self, body):
        """The model's answer: greedy at temperature 0, else drawn with the request's seed."""
        model, tokenizer = tiny_model()
        warm = body.get("temperature", 1.0) > 0
        sampling = {"temperature": body.get("temperature", 1.0), "top_k": 0} if warm else {}
        with self.model_lock, torch.random.fork_rng():
            longest = model.config.n_positions - body.get("max_tokens", 16)
            too_long = failure(400, f"This model's maximum context length is {model.config.n_positions} tokens")
            if sum(len(message["content"]) for message in body["messages"]) > longest:
                return too_long  # without counting tokens, of which a character has at least one
            inputs = tokenizer.apply_chat_template(
                body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            if inputs["input_ids"].shape[1] > longest:
                return too_long
            torch.manual_seed(body.get("seed") or 0)
            tokens = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=body.get("max_tokens", 16),
                do_sample=warm,
                pad_token_id=0,
                **sampling,
            )[0, inputs["input_ids"].shape[1] :]
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        stopped = int(tokens[-1]) == tokenizer.eos_token_id
        usage = inputs["input_ids"].shape[1], len(tokens)
        return 200, {}, completion(text, finish_reason="stop" if stopped else "length", usage=usage)

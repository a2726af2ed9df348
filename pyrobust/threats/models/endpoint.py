"""Models behind OpenAI-compatible endpoints, called by the ``openai`` package."""

from __future__ import annotations

import email.utils
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pyrobust.checks import choice, integer, positive, shown
from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.threats.extras import extra_module
from pyrobust.threats.models.answer import Answer, CallError
from pyrobust.threats.models.sampling import Sampling, as_unicode
from pyrobust.threats.readers.untrusted import parse_json

_MAX_BYTES: Final = 16 << 20
_ADVICE: Final = {
    401: "set the environment variable OPENAI_API_KEY, or api_key",
    403: "the key has no access to this model",
    404: "check the name of the model and base_url, which usually ends in /v1",
    413: "the prompt is too long for the server",
    429: "the rate limit or the quota is used up",
}
LimitField = Literal["max_tokens", "max_completion_tokens"]


class ChatEndpoint:
    """A chat model behind an OpenAI-compatible endpoint: OpenAI, vLLM, llama.cpp, Ollama, a gateway.

    A call is one POST to ``/chat/completions`` and is never repeated here; redirects are not followed. May be called
    from several threads. An answer's ``raw`` is the whole response.

    Args:
        model: name of the model.
        base_url: address of the API, usually ending in /v1; None for the client's own, OPENAI_BASE_URL or OpenAI's.
        api_key: None for the environment variable OPENAI_API_KEY; servers other than OpenAI's may do without.
        system: system prompt.
        temperature: 0 for the likeliest tokens; None sends none, as some reasoning models require.
        max_tokens: most tokens of an answer, those of its reasoning included.
        seed: seed of the first attempt; attempt k has (seed + 1000003 k) modulo 2**31. None sends none.
        timeout: seconds until a call is given up; the answer has to be complete by then.
        limit_field: name under which ``max_tokens`` is sent.
        template_tokens: most tokens that the server's chat template adds to a prompt (role marks, a system prompt of
            its own), for ``largest_cost``.

    Raises:
        InputError, InputTypeError: an argument is out of range, or there is no key for OpenAI's own address.
        MissingExtraError: the package ``openai`` is not installed.

    >>> chat = ChatEndpoint("tiny", base_url="http://127.0.0.1:8/v1", max_tokens=50, seed=7)  # doctest: +SKIP
    >>> chat.name  # doctest: +SKIP
    'tiny@http://127.0.0.1:8/v1?temperature=0.0&max_tokens=50&seed=7'
    >>> chat.largest_cost("naïve")  # doctest: +SKIP
    312
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        system: str | None = None,
        temperature: float | None = 0.0,
        max_tokens: int = 256,
        seed: int | None = None,
        timeout: float = 120.0,
        limit_field: LimitField = "max_tokens",
        template_tokens: int = 256,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise InputTypeError(f"model: expected the name of a model, got {shown(model)}")
        self._model = model
        self._sampling = Sampling(system, temperature, max_tokens, seed)
        self._timeout = positive("timeout", timeout)
        self._limit_field = choice("limit_field", limit_field, ("max_tokens", "max_completion_tokens"))
        self._template_tokens = integer("template_tokens", template_tokens, 0)
        openai = extra_module("openai", "ChatEndpoint")
        address = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        host = _host(address)
        key = api_key or os.environ.get("OPENAI_API_KEY")
        if not key and host.endswith("openai.com"):
            raise InputError("api_key: expected a key, got none; set the environment variable OPENAI_API_KEY")
        self._key = key or "none"
        self._client = openai.OpenAI(
            base_url=address,
            api_key=self._key,
            max_retries=0,
            timeout=self._timeout,
            http_client=openai.DefaultHttpxClient(follow_redirects=False, event_hooks={"response": [self._refuse]}),
        )
        self._create = self._client.chat.completions.with_streaming_response.create
        self._timeouts = (openai.APITimeoutError, TimeoutError)
        self._disconnected = (openai.APIConnectionError, ConnectionError)
        parts = urlsplit(address)
        public = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        self.name = self._sampling.identify(f"{model}@{public.rstrip('/')}", limit=self._limit_other())

    def __call__(self, prompt: str, attempt: int = 0) -> Answer:
        """Answer a prompt by one call.

        Raises:
            CallError: no text came back.
        """
        sampling = self._sampling
        request: dict[str, Any] = {"model": self._model, "messages": sampling.messages(prompt)}
        request[self._limit_field] = sampling.max_tokens
        if sampling.temperature is not None:
            request["temperature"] = sampling.temperature
        if sampling.seed is not None:
            request["seed"] = sampling.seed_of(attempt)
        deadline = time.monotonic() + self._timeout
        try:
            with self._create(**request) as response:
                content = _read(response.iter_bytes(), deadline)
        except Exception as error:
            raise self._failed(error) from error
        return _answer(content, response.headers.get("content-type", ""))

    def largest_cost(self, prompt: str) -> int:
        """Upper bound of the tokens of prompt, template and answer.

        A token of a byte-level BPE (GPT-2 to GPT-4, Llama 3, Qwen) stands for at least one byte of the text's UTF-8,
        so bytes bound tokens, given that the template adds at most ``template_tokens``. Tokenizers that first rewrite
        the text (NFKC) can exceed this for rare characters.
        """
        system = len((self._sampling.system or "").encode())
        return system + len(prompt.encode("utf-8", "surrogatepass")) + self._template_tokens + self._sampling.max_tokens

    def _refuse(self, response: Any) -> None:
        """Hook of the HTTP client, called before a response is read."""
        if not 200 <= response.status_code < 300:
            try:
                content = _read(response.iter_bytes(), time.monotonic() + min(self._timeout, 10.0), 1 << 16)
            except Exception:  # the status says enough
                content = b""
            raise _RefusedError(response.status_code, response.headers, content)

    def _limit_other(self) -> str | None:
        """The field of the limit where it is not the usual one."""
        return None if self._limit_field == "max_tokens" else self._limit_field

    def _failed(self, error: Exception) -> CallError:
        """A call error for whatever the client raised; API keys are taken out of messages."""
        for cause in (error, error.__cause__, error.__context__):
            if isinstance(cause, CallError):
                return cause
            if isinstance(cause, _RefusedError):
                return cause.as_call_error(self._key)
        if isinstance(error, self._timeouts) or "Timeout" in type(error).__name__:
            return CallError(f"no complete answer within {self._timeout:g} s; raise timeout", retryable=True)
        reason = f"{type(error).__name__}: {str(error.__cause__ or error)[:200].replace(self._key, '***')}"
        if isinstance(error, self._disconnected) or type(error).__module__.startswith(("httpx", "httpcore")):
            return CallError(f"the connection failed: {reason}", retryable=True)
        return CallError(f"the openai package failed: {reason}")


class _RefusedError(Exception):
    """A response with a status other than 2xx; raised before the client reads it, to limit its size and its time."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.content = status, headers, content

    def as_call_error(self, key: str) -> CallError:
        text = self.content.decode("utf-8", "replace").replace(key, "***")
        try:
            body = parse_json(text.encode(), "body")
        except FileFormatError:
            body = text
        fault = body.get("error", body) if isinstance(body, dict) else body
        message = fault.get("message", fault) if isinstance(fault, dict) else fault
        code = fault.get("code") if isinstance(fault, dict) else None
        location = self.headers.get("location", "")[:200]
        advice = f"redirected to {location}; give that as base_url" if 300 <= self.status < 400 else None
        advice = advice or _ADVICE.get(self.status)
        said = " ".join(as_unicode(message if isinstance(message, str) else json.dumps(message)).split())[:300]
        told = self.headers.get("x-should-retry")
        retryable = self.status in (408, 409, 425, 429) or self.status >= 500
        retryable = told == "true" if told in ("true", "false") else retryable and code != "insufficient_quota"
        return CallError(
            f"the server answered {self.status}: {said}" + (f" ({advice})" if advice else ""),
            retryable=retryable,
            retry_after=_retry_after(self.headers) if retryable else None,
            raw={"status": self.status, "body": body},
        )


def _read(parts: Iterable[bytes], deadline: float, most: int = _MAX_BYTES) -> bytes:
    """Join the parts of a response of limited size that comes in time."""
    content = bytearray()
    for part in parts:
        content += part
        if len(content) > most:
            raise CallError(f"expected a response of at most {most} bytes, got more; lower max_tokens")
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(content)


def _answer(content: bytes, kind: str) -> Answer:
    """The answer in the body of a response."""
    try:
        body = parse_json(content, "response")
    except FileFormatError as error:
        page = "html" in kind or content.lstrip()[:1] == b"<"
        advice = "base_url does not lead to an API" if page else "the response was cut or damaged"
        raise CallError(
            f"expected JSON, got {shown(content[:80])} ({advice})",
            retryable=not page,
            raw={"status": 200, "body": content.decode("utf-8", "replace")},
        ) from error
    raw = {"status": 200, "body": body}
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices:
        raise CallError(f"expected a completion with choices, got {shown(body)}", raw=raw)
    first = choices[0] if isinstance(choices[0], dict) else {}
    message = first.get("message")
    if not isinstance(message, dict):
        raise CallError(f"expected a choice with a message, got {shown(choices[0])}", raw=raw)
    usage = body["usage"] if isinstance(body.get("usage"), dict) else {}
    text = _text(message, usage, first.get("finish_reason"), raw)
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    inputs, outputs = (value if type(value) is int and 0 <= value < 1 << 63 else None for value in counts)
    return Answer(as_unicode(text), inputs, outputs, body)


def _text(message: Mapping[str, Any], usage: Mapping[str, Any], reason: Any, raw: Mapping[str, Any]) -> str:
    """The text of a message: its content, a string or a list of texts, or else the refusal in its place."""
    text = message.get("content")
    if isinstance(text, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in text):
        text = "".join(part["text"] for part in text)
    if not text and isinstance(message.get("refusal"), str):
        text = message["refusal"]
    if isinstance(text, str) and text:
        return text
    if message.get("tool_calls"):
        raise CallError("expected text, got tool calls alone; a model without tools answers in text", raw=raw)
    details = usage.get("completion_tokens_details")
    reasoned = (isinstance(details, dict) and details.get("reasoning_tokens")) or message.get("reasoning_content")
    if reason == "length" and (text is None or (text == "" and reasoned)):
        raise CallError("no text within max_tokens; raise it, since reasoning counts as well", raw=raw)
    if text in (None, "") and reason == "content_filter":
        raise CallError("the provider's content filter withheld the answer", raw=raw)
    if text != "":
        raise CallError(f"expected text, got content {shown(text)} with finish_reason {shown(reason)}", raw=raw)
    return ""


def _host(address: str) -> str:
    """The host of an address of an API."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except (ValueError, AttributeError, TypeError):
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise InputError(f"base_url: expected an address such as http://127.0.0.1:8000/v1, got {shown(address)}")
    return host


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, of the headers retry-after-ms and retry-after (seconds, or a date); None if neither is sound."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "")
        try:
            wait = float(text) * unit
        except ValueError:
            try:
                wait = max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
            except (ValueError, TypeError, OverflowError):
                continue
        if 0 <= wait < math.inf:
            return wait
    return None

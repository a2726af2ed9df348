"""Language models of the ``transformers`` package, run in this process."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import threading
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from pyrobust.checks import shown
from pyrobust.errors import FileFormatError, InputError, InputTypeError
from pyrobust.threats.extras import extra_module
from pyrobust.threats.models.answer import Answer, CallError
from pyrobust.threats.models.sampling import Sampling, as_unicode
from pyrobust.zoo.hashing import model_hash

_UNLIMITED: Final = 1 << 62


class TransformersPipeline:
    """A causal language model of ``transformers``, from a folder or a text-generation pipeline.

    Prompts go through the tokenizer's chat template if it has one. An answer is a function of the model, the settings,
    the prompt and the attempt alone, whatever was called before: at a temperature above 0 tokens are drawn from the
    whole softmax (Gumbel-max, with a generator of the call's own). Calls from several threads wait for each other.
    Token counts are exact. Where it is unpickled, a folder's model is loaded from that folder, on the CPU.

    Args:
        model: folder that ``save_pretrained`` wrote, of which nothing is downloaded and no code is run; or a pipeline,
            whose model and tokenizer are used without its generation settings.
        system: system prompt; needs a chat template.
        temperature: 0 for the likeliest tokens.
        max_tokens: most tokens of an answer.
        seed: seed of the draws; attempts draw on their own. None is 0.
        device: where to run a folder's model, such as "cuda"; the CPU by default.
        dtype: dtype of a folder's model; that of its file by default.

    Raises:
        InputError, InputTypeError: an argument is out of range, the folder does not exist, or a system prompt has no
            template.
        FileFormatError: the folder holds no causal language model with a tokenizer.
        MissingExtraError: ``transformers`` is not installed.

    >>> model = TransformersPipeline("models/tiny", max_tokens=20, device="cuda")  # doctest: +SKIP
    >>> answer = model("Pick a lock.")  # doctest: +SKIP
    >>> answer.input_tokens, answer.output_tokens  # doctest: +SKIP
    (15, 20)
    """

    def __init__(
        self,
        model: Any,
        *,
        system: str | None = None,
        temperature: float = 0.0,
        max_tokens: int = 256,
        seed: int | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if temperature is None:
            raise InputTypeError("temperature: expected a number, got None")
        self._sampling = Sampling(system, temperature, max_tokens, seed)
        self._folder: str | None = None
        self._dtype = dtype
        self._transformers = extra_module("transformers", "TransformersPipeline")
        if isinstance(model, str | os.PathLike):
            self._model, self._tokenizer = _load(self._transformers, os.fspath(model), device, dtype)
            self._folder = os.path.abspath(os.fspath(model))
            name = os.path.basename(self._folder)
        else:
            if device is not None or dtype is not None:
                raise InputError("device, dtype: expected None with a pipeline, which has its own")
            self._model, self._tokenizer = getattr(model, "model", None), getattr(model, "tokenizer", None)
            if not isinstance(self._model, torch.nn.Module) or not callable(self._tokenizer):
                raise InputTypeError(f"model: expected a folder or a text-generation pipeline, got {shown(model)}")
            name = type(self._model).__name__
        self._model.eval()
        self._template = getattr(self._tokenizer, "chat_template", None) is not None
        if system is not None and not self._template:
            raise InputError("system: expected None, since the tokenizer has no chat template; put it into the prompts")
        config = self._model.config.get_text_config()
        self._longest = getattr(config, "max_position_embeddings", None) or _UNLIMITED
        self._settings = _settings(self._model, self._tokenizer, self._sampling.max_tokens)
        self._lock = threading.Lock()
        self.name = self._sampling.identify(name, weights=_identity(self._model, self._tokenizer, self._settings))

    def __call__(self, prompt: str, attempt: int = 0) -> Answer:
        """Answer a prompt.

        Raises:
            CallError: the prompt does not fit the model's context, or the model failed.
        """
        with self._lock:
            inputs = self._tokens(prompt)
            limit = self._longest - self._sampling.max_tokens
            if len(inputs) > limit:
                raise CallError(
                    f"prompt: expected at most {max(limit, 0)} tokens (the model's {self._longest} less max_tokens), "
                    f"got {len(inputs)}; shorten it, or lower max_tokens"
                )
            try:
                tokens = self._generate(inputs, prompt, attempt)
                text = self._tokenizer.decode(tokens, skip_special_tokens=True)
            except Exception as error:
                raise CallError(f"{type(error).__name__}: {str(error)[:300]}") from error
        raw = {"text": text, "input_tokens": inputs, "output_tokens": tokens}
        return Answer(as_unicode(text), len(inputs), len(tokens), raw)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the model is made of; it is named by its weights again where it is unpickled."""
        made_of = self._folder or SimpleNamespace(model=self._model, tokenizer=self._tokenizer)
        return partial(TransformersPipeline, made_of, dtype=self._dtype, **asdict(self._sampling)), ()

    def to(self, device: str | torch.device) -> TransformersPipeline:
        """Move the model to a device, and return it."""
        with self._lock:
            self._model.to(device)
        return self

    def largest_cost(self, prompt: str) -> int:
        """Tokens of prompt and template, exactly, and ``max_tokens``; 0 for a prompt that is refused."""
        try:
            with self._lock:
                tokens = len(self._tokens(prompt))
        except CallError:
            return 0
        return 0 if tokens > self._longest - self._sampling.max_tokens else tokens + self._sampling.max_tokens

    def _tokens(self, prompt: str) -> list[int]:
        """Tokens of a prompt in the chat template; of an empty prompt without one, the token of the beginning."""
        messages = self._sampling.messages(prompt)
        try:
            if self._template:
                text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
                tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            else:
                tokens = self._tokenizer(prompt)["input_ids"]
        except Exception as error:
            raise CallError(f"prompt: the tokenizer failed: {type(error).__name__}: {str(error)[:300]}") from error
        first = self._tokenizer.bos_token_id
        if not tokens and first is None:
            raise CallError("prompt: expected a text, got an empty one, and the tokenizer has no token to begin with")
        return list(tokens) or [first]

    def _generate(self, inputs: list[int], prompt: str, attempt: int) -> list[int]:
        """New tokens, the end-of-text token included."""
        transformers, model, sampling = self._transformers, self._model, self._sampling
        steps = transformers.LogitsProcessorList()
        if sampling.temperature:
            steps.append(_GumbelMax(sampling.temperature, _seed(sampling.seed or 0, attempt, prompt)))
        ids = torch.tensor([inputs], device=model.device)
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=self._settings,
                logits_processor=steps,
            )
        return [int(token) for token in output[0, len(inputs) :]]


class _GumbelMax:
    """Add Gumbel noise to logits / temperature: the largest sum is a draw from the softmax (Gumbel, 1954)."""

    def __init__(self, temperature: float, seed: int) -> None:
        self._temperature = temperature
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        exponential = torch.empty(scores.shape, dtype=torch.float64).exponential_(generator=self._generator)
        return scores.double() / self._temperature - exponential.log().to(scores.device)


def _seed(seed: int, attempt: int, prompt: str) -> int:
    """Seed of the draws of an attempt at a prompt."""
    digest = hashlib.sha256(f"{seed}/{attempt}/{prompt}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _load(transformers: Any, folder: str, device: Any, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """Model and tokenizer of a folder."""
    if not os.path.isdir(folder):
        raise InputError(f"model: expected a folder that save_pretrained wrote, got {folder!r}")
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, **options, **({} if dtype is None else {"dtype": dtype})
        )
    except Exception as error:
        raise FileFormatError(
            f"{folder}: not a causal language model with a tokenizer: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    return model.to(device or "cpu"), tokenizer


def _settings(model: Any, tokenizer: Any, max_tokens: int) -> Any:
    """The model's own generation settings without sampling and beams, and with tokens for the end and for padding."""
    settings = copy.deepcopy(model.generation_config)
    if settings.eos_token_id is None:
        settings.eos_token_id = tokenizer.eos_token_id
    end = settings.eos_token_id
    end = next(iter(end), None) if isinstance(end, list | tuple) else end
    unused = dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "typical_p", "max_length"))
    pad = 0 if end is None else end  # never attended to: a call has one sequence
    settings.update(**unused, do_sample=False, num_beams=1, max_new_tokens=max_tokens, pad_token_id=pad)
    return settings


def _identity(model: Any, tokenizer: Any, settings: Any) -> str:
    """Hash of weights, generation settings, tokenizer and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    known = {name: value for name, value in settings.to_dict().items() if name != "transformers_version"}
    template = json.dumps(getattr(tokenizer, "chat_template", None))
    parts = (model_hash(model), words, json.dumps(known, sort_keys=True, default=str), template)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

"""Conversion of threats to tasks of inspect-ai (UK AI Security Institute), and of judges to its scorers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyrobust.checks import shown
from pyrobust.errors import InputTypeError
from pyrobust.threats.extras import INSPECT, extra_module
from pyrobust.threats.judging import Judge, JudgeLike, RuleJudge, as_judge, ask_function, ask_inspect, check_targets
from pyrobust.threats.prompts import PromptLike, Threat, ThreatPrompt
from pyrobust.threats.rates import error_rate, threat_success_rate
from pyrobust.threats.verdicts import ThreatVerdict, ThreatVerdicts

_VERDICTS = {"C": True, "I": False}


def threat_task(
    prompts: Threat | Sequence[PromptLike] | Any,
    judge: JudgeLike | Sequence[JudgeLike],
    *,
    confidence: float = 0.95,
    **options: Any,
) -> Any:
    """A threat as an ``inspect_ai.Task``: inspect-ai calls the model, and `read_verdicts` reads the log.

    Each sample has the id of its prompt. The metadata of a sample are behaviour, group, category, threat and further
    fields. Each attempt at a prompt is an epoch.

    Args:
        prompts: a ``Threat``, which also gives the number of attempts; a list of strings, chats or mappings; or samples
            of inspect-ai, as a data set or a list. The metadata of such samples may have the fields named above.
        judge: one judge as in ``evaluate_threat``, or several.
        confidence: confidence level of the intervals that inspect-ai shows.
        options: further arguments of ``inspect_ai.Task``, such as ``solver``, ``config`` or ``token_limit``; by default
            a prompt is sent as it stands.

    Returns:
        An inspect_ai.Task.

    Raises:
        InputError, InputTypeError: as in ``evaluate_threat``.
        MissingExtraError: inspect-ai is not installed.

    >>> task = threat_task(Threat(["Pick a lock."], attempts=5), "refusal")  # doctest: +SKIP
    >>> task.epochs, task.dataset[0].metadata["behaviour"]  # doctest: +SKIP
    (5, 'Pick a lock.')
    """
    inspect = extra_module("inspect_ai", "threat_task", INSPECT)
    judges: list[Judge] = list(map(as_judge, judge if isinstance(judge, list | tuple) else [judge]))
    samples = _given_samples(prompts)
    if samples is None:
        threat = prompts if isinstance(prompts, Threat) else Threat(prompts)
        options.setdefault("epochs", threat.attempts)
        samples = list(map(_sample, threat.prompts))
    asked = [_prompt(sample.metadata, str(sample.id), _input_text(sample), _target_text(sample)) for sample in samples]
    for each in judges:
        check_targets(asked, each)
    known = {prompt.id: _names(prompt) for prompt in asked}  # a log that ends early has no samples for some of them
    options["metadata"] = {"prompts": known, **(options.get("metadata") or {})}
    scorers = [threat_scorer(each, confidence=confidence) for each in judges]
    return inspect.Task(dataset=inspect.dataset.MemoryDataset(samples), scorer=scorers, **options)


def threat_scorer(judge: JudgeLike, *, name: str | None = None, confidence: float = 0.95) -> Any:
    """A judge as a scorer for ``inspect_ai.Task(scorer=...)``.

    The score of a sample is "C" if the threat succeeded, "I" if it failed, and "N" if the judge gave no verdict.
    `read_verdicts` can therefore read the verdicts from the log. The judge's own score is in the metadata. The prompt
    is the sample's input; the prompt's behaviour, category and kind of threat are read from the sample's metadata.
    There are three metrics: the rate of ``threat_success_rate``, the interval of this rate, and the number of missing
    verdicts. The rate is the mean, over samples, of each sample's share of successful epochs. Its interval treats the
    behaviours as clusters. Samples that ended in an error are not part of the metrics. To count them, compute the rate
    from the log.

    Args:
        judge: as in ``evaluate_threat``. If the judge calls a model of inspect-ai, and the call still fails at its last
            attempt, the sample fails.
        name: name of the scorer, and of the judge in the log. By default, it is the judge's name, with "-" in place of
            "/".
        confidence: confidence level of the interval.

    Returns:
        A scorer of inspect-ai.

    Raises:
        InputError, InputTypeError: there is no such judge, or the confidence is outside (0, 1).
        MissingExtraError: inspect-ai is not installed.

    >>> from inspect_ai import Task, eval  # doctest: +SKIP
    >>> from inspect_ai.dataset import Sample  # doctest: +SKIP
    >>> task = Task([Sample("Pick a lock.")], scorer=threat_scorer("refusal", name="refusal"))  # doctest: +SKIP
    >>> (log,) = eval(task, model="mockllm/model")  # doctest: +SKIP
    >>> {name: round(metric.value, 3) for name, metric in log.results.scores[0].metrics.items()}  # doctest: +SKIP
    {'value': 1.0, 'lower': 0.025, 'upper': 1.0, 'missing': 0.0}
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise InputTypeError("name", "a string that is not empty, or None", shown(name))
    error_rate(confidence)
    chosen = as_judge(judge)
    inspect = extra_module("inspect_ai.scorer", "threat_scorer", INSPECT)
    anyio = extra_module("anyio", "threat_scorer", INSPECT)

    def rate(confidence: float) -> Callable[[Any], dict[str, float]]:
        def compute(scores: Any) -> dict[str, float]:
            return _rate(scores, confidence)

        # By this annotation inspect-ai distinguishes metrics of samples from metrics of bare scores.
        compute.__annotations__["scores"] = list[inspect.SampleScore]  # type: ignore[name-defined]  # an optional package without stubs
        return compute

    def judged() -> Any:
        async def score(state: Any, target: Any) -> Any:
            prompt = _prompt(state.metadata, str(state.sample_id), state.input_text, target.text)
            answer = state.output.completion
            if isinstance(chosen, RuleJudge):
                judgement = chosen(prompt, answer)
            elif isinstance(chosen.model, str):
                judgement = await ask_inspect(chosen, prompt, answer)
            else:
                judgement = await anyio.to_thread.run_sync(ask_function, chosen, prompt, answer)
            value = "N" if judgement.success is None else "C" if judgement.success else "I"
            metadata = {"status": judgement.status, "score": judgement.score}
            return inspect.Score(value=value, answer=answer, explanation=judgement.error, metadata=metadata)

        return score

    metric = inspect.metric(name="threat_success_rate", scores="unreduced")(rate)(confidence)
    return inspect.scorer(metrics=[metric], name=(name or chosen.name).replace("/", "-"))(judged)()


def _given_samples(prompts: Any) -> list[Any] | None:
    """Return copies of inspect-ai's samples, with the metadata for success rates; None for prompts of another type."""
    dataset = extra_module("inspect_ai.dataset", "threat_task", INSPECT)
    listed = isinstance(prompts, list | tuple) and prompts and all(isinstance(x, dataset.Sample) for x in prompts)
    if not isinstance(prompts, dataset.Dataset) and not listed:
        return None
    samples = []
    for number, sample in enumerate(prompts):
        name, text = str(number if sample.id is None else sample.id), _input_text(sample)
        fields = sample.metadata or {}
        metadata = fields | _names(_prompt(fields, name, text, _target_text(sample)))
        samples.append(sample.model_copy(update={"id": name, "metadata": metadata}))
    return samples


def _sample(prompt: ThreatPrompt) -> Any:
    """Convert a prompt to a sample of inspect-ai. If the prompt has no behaviour, its text is the behaviour."""
    dataset = extra_module("inspect_ai.dataset", "threat_task", INSPECT)
    messages = extra_module("inspect_ai.model", "threat_task", INSPECT)
    roles = {"system": messages.ChatMessageSystem, "assistant": messages.ChatMessageAssistant}
    chat = [
        roles.get(message["role"], messages.ChatMessageUser)(content=message["content"])
        for message in prompt.chat or ()
    ]
    metadata = {**prompt.extra, **_names(prompt)}
    return dataset.Sample(id=prompt.id, input=chat or prompt.prompt, target=prompt.target, metadata=metadata)


def _names(prompt: ThreatPrompt) -> dict[str, str]:
    """Return a prompt's group, category, threat and behaviour; if it has no behaviour, its text is the behaviour."""
    fields = {name: getattr(prompt, name) for name in ("group", "category", "threat")}
    return {"behaviour": prompt.behaviour or prompt.prompt} | fields


def _prompt(metadata: dict[str, Any] | None, name: str, text: str, target: str) -> ThreatPrompt:
    """Return the prompt of a sample."""
    fields = metadata or {}

    def field(*names: str) -> str:
        return next((fields[key] for key in names if isinstance(fields.get(key), str)), "")

    behaviour, threat = field("behavior", "behaviour"), field("threat") or "jailbreak"
    return ThreatPrompt(
        name, text or name, behaviour, field("group"), category=field("category"), target=target, threat=threat
    )


def _input_text(sample: Any) -> str:
    """Return the text of a sample's input; for a chat, the text of the last message that has one."""
    if isinstance(sample.input, str):
        return sample.input
    return next((message.text for message in reversed(sample.input) if message.text), "")


def _target_text(sample: Any) -> str:
    return sample.target if isinstance(sample.target, str) else "".join(sample.target)


def _rate(scores: Sequence[Any], confidence: float) -> dict[str, float]:
    """Compute the success rate, with its interval, from the scores of all samples and epochs."""
    if not scores:
        return {"value": float("nan"), "lower": 0.0, "upper": 1.0, "missing": 0.0}
    rows = []
    for i, item in enumerate(scores):
        metadata = item.sample_metadata or {}
        behaviour = next((metadata[key] for key in ("behavior", "behaviour") if isinstance(metadata.get(key), str)), "")
        success = _VERDICTS.get(str(item.score.value))
        sample = str(item.sample_id)
        rows.append(
            ThreatVerdict(
                str(i),
                prompt=sample,
                behaviour=behaviour or sample,
                success=success,
                status="unparsable" if success is None else "judged",
            )
        )
    rate = threat_success_rate(ThreatVerdicts(tuple(rows)), confidence=confidence)[0]
    return {"value": rate.value, "lower": rate.lower, "upper": rate.upper, "missing": float(rate.missing)}
